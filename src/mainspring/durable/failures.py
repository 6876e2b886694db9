"""The failure of a step that its function has caught and lived with: after a resume it must meet it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.errors import StepFailed
from mainspring.stores.rules import LONGEST_MESSAGE, shorten

MOST_BITS = 14_000  # of an integer: Python writes and reads up to 4,300 digits
LONGEST = 65_536  # characters, about, of what an error carries


def dump_failure(error: Exception) -> str:
    """Write down an error. Long texts in it are shortened; of one that carries too much, only the message is kept."""
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__ if issubclass(kind, Exception)]
    args: Any = error.args
    fields: Any = vars(error)
    if not is_short((args, fields)):
        args, fields = (message_of(error),), {}
    return json.dumps({"kinds": kinds, "args": as_json(args), "fields": as_json(fields)})


def is_short(value: Any) -> bool:
    """Whether it can be kept whole, but for texts that are shortened; found without writing it out."""
    left, room = [value], LONGEST
    while left and room > 0:
        part = left.pop()
        if isinstance(part, (str, bytes, bytearray)):
            room -= min(len(part), LONGEST_MESSAGE)
        elif isinstance(part, (Mapping, list, tuple, set, frozenset)):
            room -= 2 * len(part)
            if room > 0:
                left += [*part, *part.values()] if isinstance(part, Mapping) else part
        room -= 2
    return room > 0


def as_json(value: Any) -> Any:
    """What of it is JSON; the rest as it is shown. Each text has the length of an error's message at most."""
    try:
        return json.loads(json.dumps(shortened(value), default=as_text, skipkeys=True, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return [as_text(value)] if isinstance(value, tuple) else {}


def shortened(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value, LONGEST_MESSAGE)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return as_text(value)
    if isinstance(value, (list, tuple)):
        return [shortened(part) for part in value]
    return {key: shortened(part) for key, part in value.items()} if isinstance(value, dict) else value


def as_text(value: Any) -> str:
    """How it is shown. Integers of thousands of digits cannot be, and other programs' objects may refuse."""
    try:
        return shorten(repr(value), LONGEST_MESSAGE)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def message_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is not ours
        return f"<{type(error).__name__}>"


def load_failure(text: str) -> Exception:
    """An error like that one: of the nearest kind that this process knows, so that the same `except` catches it."""
    data = json.loads(text)
    kind = next((known for known in map(find_kind, data["kinds"]) if known is not None), StepFailed)
    try:
        error: Exception = kind.__new__(kind, *data["args"])  # not __init__: it may want what we do not have
        error.args = tuple(data["args"])
        vars(error).update(data["fields"])
    except (TypeError, AttributeError):
        return StepFailed(" ".join(map(str, data["args"])))
    return error


def find_kind(name: Sequence[str]) -> type[Exception] | None:
    module, qualname = name
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
