"""Patterns for queues: `mail` is one queue, `p/acme/*` all whose names begin with `p/acme/`, and `*` all of them.

No queue has such a name itself: `check_queue` refuses names that end with `/*`. The queues of the project `acme` are
those of `p/acme/*`, see projects.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

EVERY = "*"
REST = "/*"  # the end of a pattern that stands for all names with the same beginning
PROJECTS = "p/"  # with what the queues of all projects begin
PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")  # the name of a project


def project_of(queue: str) -> str | None:
    """Return the project to which a queue belongs; None if it does not belong to one."""
    if not queue.startswith(PROJECTS):
        return None
    name, _, rest = queue.removeprefix(PROJECTS).partition("/")
    return name if rest and PROJECT.fullmatch(name) else None


def is_pattern(text: str) -> bool:
    """Return whether it can stand for several queues."""
    return text == EVERY or text.endswith(REST)


def beginning_of(pattern: str) -> str | None:
    """Return with what the names of the queues begin; None if the pattern is the name of a single queue."""
    return pattern[:-1] if is_pattern(pattern) else None


def after_all(beginning: str) -> str:
    """Return the first text, by code points, after all texts with a beginning that ends with a slash."""
    return f"{beginning[:-1]}{chr(ord('/') + 1)}"


def covers(pattern: str, queue: str) -> bool:
    """Return whether the pattern stands for this queue."""
    return pattern in (queue, EVERY) or (pattern.endswith(REST) and queue.startswith(pattern[:-1]))


def is_among(queue: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns stands for this queue."""
    return any(covers(pattern, queue) for pattern in patterns)


def are_all_among(inner: Iterable[str], patterns: Collection[str]) -> bool:
    """Return whether every queue of the inner patterns is also one of the outer ones."""
    return all(any(is_part_of(pattern, outer) for outer in patterns) for pattern in inner)


def is_part_of(inner: str, outer: str) -> bool:
    beginning = beginning_of(inner)
    return covers(outer, inner) if beginning is None else outer == EVERY or covers(outer, beginning)


def meet(served: Collection[str], queues: Collection[str]) -> bool:
    """Return whether one of the queues, which may be `*`, is among those that a worker serves."""
    if EVERY in served or EVERY in queues or any(queue in served for queue in queues):
        return True
    beginnings = tuple(pattern[:-1] for pattern in served if pattern.endswith(REST))
    return bool(beginnings) and any(queue.startswith(beginnings) for queue in queues)
