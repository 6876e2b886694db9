"""What a store keeps beside jobs: schedules and their ledgers, people and their occasions. JSON under a key.

A document is found by its key, in the order of its group, or when it comes due. Whoever writes says which version he
has seen: if another was quicker, nothing is written. So any number of processes may do the same work, and one of them
gets it done. What belongs together, several documents and the jobs that follow from them, is one bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.clock import Millis
from mainspring.ids import new_version
from mainspring.job import Inserted, NewJob

if TYPE_CHECKING:
    from mainspring.stores.protocol import By

ABSENT = ""
"""The version of a document that is not there."""


class Key(NamedTuple):
    collection: str  # "schedules"
    group: str  # within it; may be empty
    id: str


@dataclass(frozen=True, slots=True)
class Document:
    key: Key
    data: str  # JSON
    version: str  # another one after each write
    due_at: Millis | None = None  # comes up in `Store.due` from then on
    expires_at: Millis | None = None  # is gone from then on


@dataclass(slots=True)
class Write:
    """A document's new contents, if it has the expected version.

    Treat it as immutable. It is not frozen because Python takes three times as long to make a frozen object.
    """

    key: Key
    data: str | None  # None: delete it
    expected: str | None = None  # a version, or ABSENT; None: whatever is there
    due_at: Millis | None = None
    expires_at: Millis | None = None
    version: str = field(default_factory=new_version)  # the new one
    announced: bool = False  # an earlier write has told workers of this due time, or an earlier one


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the audit log: who does what by hand, to what, and why."""

    by: By
    action: str  # "schedule.pause"
    detail: Mapping[str, Any]  # JSON data


@dataclass(slots=True)
class Bundle:
    """Writes, new jobs and a line of the audit log that take effect together, or not at all.

    Treat it as immutable; see `Write` for why it is not frozen.
    """

    writes: tuple[Write, ...]
    jobs: tuple[NewJob, ...] = ()
    note: Note | None = None
    spread: bool = False  # wake workers (Wake.STATE): they keep what it writes in memory, and should look at once

    def __post_init__(self) -> None:
        if len(self.writes) > 1 and len({write.key for write in self.writes}) < len(self.writes):
            msg = f"a bundle writes each document once: {[write.key for write in self.writes]}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Listing:
    """Which documents of a collection, by group and id."""

    collection: str
    group: str | None = None  # None: all groups
    after: tuple[str, str] | None = None  # the last (group, id) seen
    limit: int = 100
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    documents: list[Document]
    now: Millis  # by the store's clock
    next_at: Millis | None  # when the first of those comes due that are not in `documents`


def accepted(bundles: Iterable[Bundle], versions: Mapping[Key, str]) -> list[bool]:
    """Which bundles find what they expect, each after the ones before it. `versions` are those that are there now.

    A bundle that is there already was written before, and only the answer got lost.
    """
    current = dict(versions)
    answers: list[bool] = []
    for bundle in bundles:
        holds = is_there(bundle, current) or all(
            write.expected is None or write.expected == current.get(write.key, ABSENT) for write in bundle.writes
        )
        if holds:
            current |= {write.key: ABSENT if write.data is None else write.version for write in bundle.writes}
        answers.append(holds)
    return answers


def is_there(bundle: Bundle, versions: Mapping[Key, str]) -> bool:
    puts = [write for write in bundle.writes if write.data is not None]
    return bool(puts) and all(versions.get(write.key) == write.version for write in puts)


def last_writes(bundles: Iterable[Bundle]) -> list[Write]:
    """What is left to do if they are written one after the other."""
    return list({write.key: write for bundle in bundles for write in bundle.writes}.values())


def answers(
    bundles: Sequence[Bundle], holds: Sequence[bool], inserted: Sequence[Inserted]
) -> list[list[Inserted] | None]:
    """Per bundle what became of its jobs, or None: it did not find what it expected."""
    jobs = iter(inserted)
    return [[next(jobs) for _ in bundle.jobs] if held else None for bundle, held in zip(bundles, holds, strict=True)]


SOON: Millis = 15_000  # workers look at least this often, and need be told only of what comes before that


def comes_soon(writes: Iterable[Write], now: Millis) -> bool:
    """Whether workers must be told, or they would look too late."""
    return any(write.due_at is not None and write.due_at <= now + SOON and not write.announced for write in writes)
