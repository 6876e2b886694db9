"""JSON: reading and writing it fast, and which of it can be kept.

What can be kept is what every store takes and every reader gets back as it was. Pydantic's core is imported at first
use: that takes a while, and importing Mainspring should not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from json import JSONEncoder
from typing import Any

MOST_LEVELS = 190  # of nesting; Pydantic reads 200, and a value may be kept within another
MOST_DIGITS = 4300  # of an integer; Python reads no more
ROOM = 200 - MOST_LEVELS
SHORT = 2 * MOST_LEVELS  # a text of no more characters is neither nested too deep nor has too long a number
NOTHING: Mapping[str, Any] = {}


def from_json(text: str | bytes) -> Any:
    """Return what `json.loads` would, in a fraction of its time.

    Pydantic's core refuses halves of surrogate pairs. A job that has some must not hold up the others of its claim.
    """
    from pydantic_core import from_json as read  # noqa: PLC0415 - see above

    try:
        return read(text)
    except ValueError:
        return json.loads(text)


def read_object(text: str | None) -> Mapping[str, Any]:
    """Return the JSON object in a text; an empty one for None, and for what was written by hand and is not one."""
    try:
        value = NOTHING if text is None else from_json(text)
    except ValueError:
        return NOTHING
    return value if isinstance(value, dict) else NOTHING


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
    """Whether there is a NaN or an infinity in a value. Found by Python's writer of JSON, which is in C.

    To go through a large value in Python would take seconds, in which a worker does nothing else.
    """
    try:
        FINITE.encode(value)
    except ValueError as error:
        return "float" in str(error)  # else it is an integer that is too long
    except (TypeError, RecursionError):  # Pydantic has a way to write it, or it is too deep
        return False
    return False


def parts_of(value: Any) -> Any:
    """What of an object is JSON; None for what has no parts."""
    from pydantic import BaseModel  # noqa: PLC0415 - see above

    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, BaseModel):
        return {**vars(value), **(value.model_extra or {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return None


FINITE = JSONEncoder(skipkeys=True, allow_nan=False, default=parts_of)


def is_perhaps_deep(text: str) -> bool:
    """Whether lists and objects may be nested too deep. Wrong only for odd text within strings, and then it says yes.

    Takes all brackets outside of strings and removes pairs of them, innermost first, as often as levels are allowed.
    """
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return False
    brackets = brackets_in(text)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return True


def brackets_in(text: str) -> bytes:
    """Return the brackets that are not within strings. Two quotes side by side enclose nothing, or nothing between."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    left = text.encode("utf-8", "replace").translate(None, NOT_STRUCTURE).replace(b'""', b"")
    return STRING.sub(b"", left)


STRUCTURE = b'[]{}"'
NOT_STRUCTURE = bytes(set(range(256)) - set(STRUCTURE))
STRING = re.compile(b'"[^"]*"')
DIGITS = re.compile("[0-9]*")


def has_perhaps_long_number(text: str) -> bool:
    """Whether a number, or digits in a string, are too long: then they cover at least one of these places."""
    places = (place for place in range(MOST_DIGITS, len(text), MOST_DIGITS) if text[place].isdigit())
    return any(digits_around(text, place) > MOST_DIGITS for place in places)


def digits_around(text: str, place: int) -> int:
    before = text[max(0, place - MOST_DIGITS) : place]
    return len(before) - len(before.rstrip("0123456789")) + len(DIGITS.match(text, place)[0])  # type: ignore[index] # it matches


def problem_of_reading(text: str) -> str | None:
    from pydantic_core import from_json as read  # noqa: PLC0415 - see above

    try:
        read("[" * ROOM + text + "]" * ROOM)
    except ValueError as error:
        if "recursion" in str(error):
            return f"it is nested too deep; give at most {MOST_LEVELS} levels of lists and objects"
        return f"it cannot be read again ({error}); an integer has at most {MOST_DIGITS:,} digits"
    return None
