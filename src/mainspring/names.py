"""The rules for texts by which jobs are found, the same for all stores: names of tasks and queues, keys, tags, targets.

A name has up to 200 characters, a key up to 500 (and 1,500 bytes in UTF-8), so that the indexes of every store can hold
them. Neither may be empty or have control characters: PostgreSQL refuses some of them, and terminals obey them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mainspring.clock import shown
from mainspring.errors import ConfigurationError

LONGEST_NAME = 200  # characters
LONGEST_KEY = 500  # characters
MAX_KEY_BYTES = 1500  # in UTF-8
REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, halves of surrogate pairs

UNSEARCHABLE = re.compile("[\x00\ud800-\udfff]")


def unkeepable(text: str, what: str, longest: int = LONGEST_KEY) -> str | None:
    """Return why some store cannot keep a name or key; None if all of them can."""
    if "\0" in text:
        return f"{what} has a NUL character: {shown(text)}; give text without it"
    if len(text) > longest:
        return f"{what} has {len(text):,} characters: {shown(text)}; give at most {longest}"
    if len(text) > MAX_KEY_BYTES // 4 and (size := len(text.encode(errors="replace"))) > MAX_KEY_BYTES:
        return f"{what} has {size:,} bytes in UTF-8: {shown(text)}; give at most {MAX_KEY_BYTES:,}"
    return None


def problem_of(text: Any, what: str, longest: int = LONGEST_NAME) -> str | None:
    """Return what is wrong with a name or key; None if nothing is."""
    if not isinstance(text, str):
        return f"{what} must be a string, not {shown(text)}"
    if not text:
        return f"{what} is empty; give 1 to {longest} characters"
    if not text.isprintable() and (found := REFUSED.search(text)):
        kind = "half of a surrogate pair" if found[0] >= "\ud800" else "a control character"
        return f"{what} has {kind} ({found[0]!a}): {text!a:.100}; give text without it"
    return unkeepable(text, what, longest)


def check_name(text: Any, what: str) -> str:
    """Return a name of a task, queue, tag or kind of target; raise ConfigurationError if some store cannot keep it."""
    return _checked(text, problem_of(text, what))


def check_key(text: Any, what: str) -> str:
    """Return a dedupe key or the id of a target; raise ConfigurationError if some store cannot keep it."""
    return _checked(text, problem_of(text, what, LONGEST_KEY))


def check_names(texts: Iterable[Any], what: str) -> None:
    for text in texts:
        check_name(text, what)


def check_searched(text: Any, what: str) -> None:
    """Raise ConfigurationError for a search text that no store can keep. A text that matches no job is fine."""
    if not isinstance(text, str):
        _checked("", f"{what} must be a string, not {shown(text)}")
    elif not text.isprintable() and UNSEARCHABLE.search(text):
        _checked("", f"{what} is {text!a:.100}; leave out NUL and halves of surrogate pairs, which no store can keep")


def showable(text: str) -> str:
    """Return a text for people to read, without the characters that a store cannot keep."""
    return text if text.isprintable() else UNSEARCHABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _checked(text: str, problem: str | None) -> str:
    if problem:
        raise ConfigurationError(problem)
    return text
