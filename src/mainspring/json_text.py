"""Read and write JSON fast, and check whether a value can be stored as JSON.

A value can be stored if every store accepts it and every reader gets it back unchanged. Pydantic's core is imported at
first use, because that takes a while and importing Mainspring should be fast.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import accumulate
from json import JSONEncoder
from types import ModuleType
from typing import Any

from mainspring.errors import ConfigurationError

MAX_LEVELS = 190  # of nesting; Pydantic reads 200, and a value may be stored within another
MAX_DIGITS = 4300  # of an integer; Python reads no more
SPARE_LEVELS = 200 - MAX_LEVELS
MAX_UNCHECKED_CHARS = 2 * MAX_LEVELS  # a text of up to this length is not nested too deep and has no too long number
NOTHING: Mapping[str, Any] = {}


@functools.cache  # an import statement that is executed each time costs more than reading a short text
def _core() -> ModuleType:
    import pydantic_core  # noqa: PLC0415 - see above

    return pydantic_core


def from_json(text: str | bytes) -> Any:
    """Return what `json.loads` would, in a fraction of its time.

    Pydantic's core refuses halves of surrogate pairs, so fall back to `json.loads`: a job that has some must not hold
    up the other jobs of its claim.
    """
    try:
        return _core().from_json(text)
    except ValueError:
        return json.loads(text)


def read_object(text: str | None) -> Mapping[str, Any]:
    """Return the JSON object in a text; an empty one for None, and for a hand-written text that is not an object."""
    try:
        value = NOTHING if text is None else from_json(text)
    except ValueError:
        return NOTHING
    return value if isinstance(value, dict) else NOTHING


def to_json(data: Any) -> str:
    """Return what `json.dumps` would, without spaces, in a fraction of its time."""
    text: bytes = _core().to_json(data)
    return text.decode()


def problem_of_json(text: str, value: Any) -> str | None:
    """Return why a value cannot be stored as this JSON text; None if it can.

    Pydantic writes NaN and infinities as null, and writes deeper lists and longer integers than can be read again.
    """
    if "null" in text and has_nan(value):
        return "it has a NaN or an infinity, which JSON does not have; give null (None in Python) or text instead"
    if len(text) > MAX_UNCHECKED_CHARS and (is_perhaps_deep(text) or has_perhaps_long_number(text)):
        return problem_of_reading(text)
    return None


def has_nan(value: Any) -> bool:
    """Return whether there is a NaN or an infinity in a value, found by Python's JSON encoder, which is written in C.

    Walking a large value in Python would take seconds and block the worker meanwhile.
    """
    try:
        FINITE.encode(value)
    except ValueError as error:
        return "float" in str(error)  # otherwise it is an integer that is too long
    except (TypeError, RecursionError):  # a type that only Pydantic can write, or nested too deep
        return False
    return False


def parts_of(value: Any) -> Any:
    """Return the parts of an object as a dict or list; None if it has no parts."""
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
    """Return whether lists and objects may be nested too deep. Odd text within strings can cause a wrong True."""
    if text.count("[") + text.count("{") <= MAX_LEVELS:
        return False
    return has_more_levels(brackets_in(text), MAX_LEVELS)


def has_more_levels(brackets: bytes, levels: int) -> bool:
    """Return whether more brackets than this are open at some place.

    Removing pairs, innermost first, takes one level off. That is fast, and nothing is left of most values. What is left
    is counted, which takes the same time however it is nested.
    """
    for _ in range(USUAL_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return any(depth > levels - USUAL_LEVELS for depth in accumulate(map(STEPS.__getitem__, brackets)))


def is_deep(body: bytes, levels: int) -> bool:
    """Return whether this JSON has more levels of lists and objects. False if it is not JSON: reading it says so."""
    if not has_more_levels(brackets_in(body.decode("utf-8", "replace")), levels):
        return False
    try:
        value = json.loads(body)
    except RecursionError:
        return True
    except ValueError:
        return False
    return depth_of(value) > levels


def depth_of(value: Any) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def brackets_in(text: str) -> bytes:
    """Return the brackets outside of strings, those of objects as those of lists.

    After all other characters are removed, two adjacent quotes enclose no brackets, or have none between them.
    """
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    structure = text.encode("utf-8", "replace").translate(AS_LISTS, NOT_STRUCTURE).replace(b'""', b"")
    return STRING.sub(b"", structure)


STRUCTURE = b'[]{}"'
STEPS = {ord("["): 1, ord("]"): -1, ord('"'): 0}
USUAL_LEVELS = 8
AS_LISTS = bytes.maketrans(b"{}", b"[]")
NOT_STRUCTURE = bytes(set(range(256)) - set(STRUCTURE))
STRING = re.compile(b'"[^"]*"')
DIGITS = re.compile("[0-9]*")


def has_perhaps_long_number(text: str) -> bool:
    """Return whether a number, or digits in a string, are too long: such digits cover one of these places."""
    places = (place for place in range(MAX_DIGITS, len(text), MAX_DIGITS) if text[place].isdigit())
    return any(digits_around(text, place) > MAX_DIGITS for place in places)


def digits_around(text: str, place: int) -> int:
    before = text[max(0, place - MAX_DIGITS) : place]
    return len(before) - len(before.rstrip("0123456789")) + len(DIGITS.match(text, place)[0])  # type: ignore[index] # it matches


def problem_of_reading(text: str) -> str | None:
    from pydantic_core import from_json as read  # noqa: PLC0415 - see above

    try:
        read("[" * SPARE_LEVELS + text + "]" * SPARE_LEVELS)
    except ValueError as error:
        if "recursion" in str(error):
            return f"it is nested too deep; give at most {MAX_LEVELS} levels of lists and objects"
        return f"it cannot be read again ({error}); an integer has at most {MAX_DIGITS:,} digits"
    return None


def key_and_value(text: str) -> tuple[str, Any]:
    """Return the key and the value of a condition such as `guest.id=7`. A value that is not JSON is a text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        msg = f"{text!r} is not a condition; write key=value, such as guest.id=7"
        raise ConfigurationError(msg)
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def conditions(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return conditions by their keys. A second one for a key is refused: no value can fulfil both."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            msg = f"there are two conditions on {key!r}, but each of them must match; give one"
            raise ConfigurationError(msg)
        found[key] = value
    return found
