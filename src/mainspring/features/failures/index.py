"""The index of failure groups: lists of them by the time of their last failure, kept as documents.

A group has an entry in each list that shows it: that of its state, and that of its state and task; if it belongs to a
project, also in those lists of the project. The bundle that changes a group moves its entries, so the index is never
out of date. A page reads as many entries as it shows, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.clock import Millis
from mainspring.features.failures.group import GroupState
from mainspring.features.failures.rules import GroupData
from mainspring.fingerprint import project_in
from mainspring.stores.documents import Key, Write

INDEX = "failure-index"
DIGITS = 16  # of a time in milliseconds, so that entries sort by it
EVERY_PROJECT = ""


def lane(project: str, state: GroupState, task: str | None) -> str:
    """Return the name of a list."""
    return f"{project}/{state}" if task is None else f"{project}/{state}/{task}"


def entry_id(last_seen: Millis, fingerprint: str) -> str:
    return f"{last_seen:0{DIGITS}d}.{fingerprint}"


def fingerprint_in(entry: str) -> str:
    return entry.partition(".")[2]


def earliest(since: Millis) -> str:
    """Return the text after which the ids of all entries since a time sort."""
    return f"{max(0, since):0{DIGITS}d}"


def entries(group: GroupData | None) -> Iterator[Key]:
    """Yield the entries of a group; none if it does not exist."""
    if group is None:
        return
    own = entry_id(group.last_seen, group.fingerprint)
    for project in dict.fromkeys((EVERY_PROJECT, project_in(group.fingerprint))):
        for task in (None, group.task):
            yield Key(INDEX, lane(project, group.state, task), own)


def moves(before: GroupData | None, after: GroupData | None) -> list[Write]:
    """Return the writes that move the entries of a group. Its own write must be in the same bundle."""
    old, new = list(entries(before)), list(entries(after))
    gone = [Write(key, None) for key in old if key not in new]
    return [*gone, *(Write(key, "{}") for key in new if key not in old)]
