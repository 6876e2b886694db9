"""Failures of steps that the function caught: they are recorded, so that a later run raises the same error again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.errors import StepFailed
from mainspring.stores.engine.ack import LONGEST_MESSAGE, shorten

MAX_INT_BITS = 14_000  # Python converts integers of up to 4,300 digits to and from text; larger ones are kept as text
MAX_ERROR_LENGTH = 65_536  # characters, roughly, of all arguments and attributes of an error


def dump_failure(error: Exception) -> str:
    """Return an error as JSON. Long texts are shortened. If it carries too much data, only its message is kept."""
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__ if issubclass(kind, Exception)]
    args: Any = error.args
    fields: Any = vars(error)
    if not is_short((args, fields)):
        args, fields = (message_of(error),), {}
    return json.dumps({"kinds": kinds, "args": as_json(args), "fields": as_json(fields)})


def is_short(value: Any) -> bool:
    """Return whether a value fits once long texts are shortened. Does not serialize it, as it may be huge."""
    pending, room = [value], MAX_ERROR_LENGTH
    while pending and room > 0:
        part = pending.pop()
        if isinstance(part, (str, bytes, bytearray)):
            room -= min(len(part), LONGEST_MESSAGE)
        elif isinstance(part, (Mapping, list, tuple, set, frozenset)):
            room -= 2 * len(part)
            if room > 0:
                pending += [*part, *part.values()] if isinstance(part, Mapping) else part
        room -= 2
    return room > 0


def as_json(value: Any) -> Any:
    """Return a value as JSON data; parts that are not JSON become their `repr`. Long texts are shortened."""
    try:
        return json.loads(json.dumps(shortened(value), default=as_text, skipkeys=True, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return [as_text(value)] if isinstance(value, tuple) else {}


def shortened(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value, LONGEST_MESSAGE)
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        return as_text(value)
    if isinstance(value, (list, tuple)):
        return [shortened(part) for part in value]
    return {key: shortened(part) for key, part in value.items()} if isinstance(value, dict) else value


def as_text(value: Any) -> str:
    """Return the `repr`, or the type's name if that fails: huge integers and foreign classes may raise."""
    try:
        return shorten(repr(value), LONGEST_MESSAGE)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def message_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - foreign code may raise anything
        return f"<{type(error).__name__}>"


def load_failure(text: str) -> Exception:
    """Return the recorded error, as its nearest class that this process has loaded: the same `except` catches it."""
    data = json.loads(text)
    kind = next((known for known in map(find_kind, data["kinds"]) if known is not None), StepFailed)
    try:
        error: Exception = kind.__new__(kind, *data["args"])  # __init__ may need arguments that are not recorded
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
