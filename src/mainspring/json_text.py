"""JSON: reading and writing it fast, and which of it can be kept.

What can be kept is what every store takes and every reader gets back as it was. Pydantic's core is imported at first
use: that takes a while, and importing Mainspring should not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

MOST_LEVELS = 190  # of nesting; Pydantic reads 200, and a value may be kept within another
MOST_DIGITS = 4300  # of an integer; Python reads no more
ROOM = 200 - MOST_LEVELS
SHORT = 2 * MOST_LEVELS  # a text of no more characters is neither nested too deep nor has too long a number


def from_json(text: str | bytes) -> Any:
    """Return what `json.loads` would, in a fraction of its time.

    Pydantic's core refuses halves of surrogate pairs. A job that has some must not hold up the others of its claim.
    """
    from pydantic_core import from_json as read  # noqa: PLC0415 - see above

    try:
        return read(text)
    except ValueError:
        return json.loads(text)


def to_json(data: Any) -> str:
    """Return what `json.dumps` would, without spaces, in a fraction of its time."""
    from pydantic_core import to_json as write  # noqa: PLC0415 - see above

    return write(data).decode()


def problem_of_json(text: str, value: Any) -> str | None:
    """Return why a value cannot be kept as this JSON text; None: it can.

    Pydantic writes NaN and infinities as null, and writes deeper lists and longer integers than anything can read.
    """
    if "null" in text and has_nan(value):
        return "it has a NaN or an infinity, which JSON does not have; give None or text instead"
    if len(text) > SHORT and (is_perhaps_deep(text) or has_perhaps_long_number(text)):
        return problem_of_reading(text)
    return None


def has_nan(value: Any) -> bool:
    from pydantic import BaseModel  # noqa: PLC0415 - see above

    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return True
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
        elif isinstance(one, BaseModel):
            left += [*vars(one).values(), *(one.model_extra or {}).values()]
        elif is_dataclass(one) and not isinstance(one, type):
            left += [getattr(one, each.name) for each in fields(one)]
    return False


def is_perhaps_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > MOST_LEVELS


def has_perhaps_long_number(text: str) -> bool:
    """A number that is too long covers at least one of these places."""
    return any(text[place].isdigit() for place in range(MOST_DIGITS, len(text), MOST_DIGITS))


def problem_of_reading(text: str) -> str | None:
    from pydantic_core import from_json as read  # noqa: PLC0415 - see above

    try:
        read("[" * ROOM + text + "]" * ROOM)
    except ValueError as error:
        if "recursion" in str(error):
            return f"it is nested too deep; give at most {MOST_LEVELS} levels of lists and objects"
        return f"it cannot be read again ({error}); an integer has at most {MOST_DIGITS:,} digits"
    return None
