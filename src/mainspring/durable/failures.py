"""The failure of a step that its function has caught and lived with: after a resume it must meet it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from mainspring.errors import StepFailed


def dump_failure(error: Exception) -> str:
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__ if issubclass(kind, Exception)]
    return json.dumps({"kinds": kinds, "args": as_json(error.args), "fields": as_json(vars(error))})


def as_json(value: Any) -> Any:
    """What of it is JSON; the rest as it is shown."""
    try:
        return json.loads(json.dumps(value, default=repr, skipkeys=True, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return [repr(value)] if isinstance(value, tuple) else {}


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
