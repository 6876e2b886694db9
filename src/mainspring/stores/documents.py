"""Documents: JSON data that a store keeps besides jobs, such as schedules, their ledgers, people and occasions.

Documents are read by key, in the order of their group, or when they come due. A writer states which version it has
seen. If another process has written since, nothing is written. So any number of processes may attempt the same work,
and exactly one of them does it. Documents that must change together, and the jobs that follow from them, form a bundle.

A change can also write the document of a key that its caller has chosen (`By.once`, `Bundle.once`): the change and the
document are one commit, and a second change with the same key is refused. So a request that is repeated has its effect
once. The part of the program that knows the key (the service) need not know where the commit is: it names the key for
the current context, see `using_key`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mainspring.clock import Millis
from mainspring.ids import new_id, new_version
from mainspring.job import Inserted, NewJob, Step
from mainspring.names import check_searched

ABSENT = ""
"""The version of a document that does not exist."""


class Key(NamedTuple):
    collection: str  # "schedules"
    group: str  # within it; may be empty
    id: str


@dataclass(frozen=True, slots=True)
class Document:
    key: Key
    data: str  # JSON
    version: str  # changes with each write
    due_at: Millis | None = None  # `Store.due` returns it from then on
    expires_at: Millis | None = None  # no method returns it from then on


Became = Literal["created", "updated", "deleted"]
"""What has become of the thing that a document is about. A deleted thing may leave its document for a while."""


@dataclass(slots=True)
class Write:
    """New contents for a document, written only if the document has the expected version.

    Treat it as immutable. It is not frozen because Python takes three times as long to make a frozen object.
    """

    key: Key
    data: str | None  # None: delete it
    expected: str | None = None  # a version, or ABSENT; None: any version, or none
    due_at: Millis | None = None
    expires_at: Millis | None = None
    version: str = field(default_factory=new_version)  # the new version
    announced: bool = False  # a previous write has woken workers for this due time, or for an earlier one
    recorded: bool = False  # the write is a change that readers of the change feed see
    became: str | None = None  # what the feed says about it: a `Became`, or the new state; None: whether it was deleted
    actor: str | None = None  # what the feed says about it: the person or program that did it by hand


# -- changes with a key ---------------------------------------------------------------------------

OnceWriter = Callable[[Mapping[str, Any]], Write | None]
"""Makes the write of a key's document, with some data about the change."""

_ONCE: ContextVar[OnceWriter | None] = ContextVar("mainspring_once", default=None)


def current_once(**about: Any) -> Write | None:
    """Return the write of the current context's key; None if it has no key.

    Its `version` identifies the request. A store writes it together with a change if the document does not exist, and
    skips it if the document has this version: one request may make several commits. Otherwise another request has used
    the key: the store changes nothing and raises AlreadyDone.
    """
    make = _ONCE.get()
    return None if make is None else make(about)


@contextmanager
def using_key(make: OnceWriter | None) -> Iterator[None]:
    """Let all changes that are made in this block use a key; None: no key, for what is not the effect of a request."""
    before = _ONCE.set(make)
    try:
        yield
    finally:
        _ONCE.reset(before)


class Held(NamedTuple):
    """A document that this process has taken by a write. Another version means that another process has taken it."""

    key: Key
    version: str  # of that write


@dataclass(frozen=True, slots=True)
class By:
    """Who makes a change by hand, and why. The store writes it into the audit log."""

    actor: str
    reason: str = ""
    operation: str = field(default_factory=new_id)  # all pages of one operation share one audit entry
    audited: bool = True  # False: not made by a person (an enqueue replaces the pending job); leaves no entry
    list_for: Millis | None = None  # list the changed jobs, and keep the list for so long, see affected.py
    only_while: Held | None = None  # change nothing, and raise TakenOver, once the document has another version
    once: Write | None = field(default=None, compare=False, repr=False)  # see `current_once`; None: the context's

    def __post_init__(self) -> None:
        check_searched(self.actor, "actor")
        check_searched(self.reason, "reason")
        if self.once is None and self.audited and _ONCE.get() is not None:
            object.__setattr__(self, "once", current_once(operation=self.operation))


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the audit log: who changed what by hand, and why."""

    by: By
    action: str  # "schedule.pause"
    detail: Mapping[str, Any]  # JSON data


@dataclass(slots=True)
class Bundle:
    """Writes, new jobs and an audit entry that take effect together, or not at all.

    Treat it as immutable; see `Write` for why it is not frozen.
    """

    writes: tuple[Write, ...]
    jobs: tuple[NewJob, ...] = ()
    note: Note | None = None
    spread: bool = False  # wake workers (Wake.STATE): they cache these documents, and must read them again at once
    once: Write | None = None  # see `current_once`; None: that of the note
    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)  # of new jobs: those that are recorded already

    def __post_init__(self) -> None:
        if self.once is None and self.note is not None:
            self.once = self.note.by.once
        if len(self.writes) > 1 and len({write.key for write in self.writes}) < len(self.writes):
            msg = f"a bundle may write each document only once: {[write.key for write in self.writes]}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Listing:
    """Selects documents of a collection, ordered by group and id."""

    collection: str
    group: str | None = None  # None: all groups
    after: tuple[str, str] | None = None  # the last (group, id) seen
    limit: int = 100
    backwards: bool = False
    prefix: str = ""  # with a group: only ids that begin with it


@dataclass(frozen=True, slots=True)
class Due:
    documents: list[Document]
    now: Millis  # by the store's clock
    next_at: Millis | None  # when the next document that is not in `documents` comes due


def accepted(bundles: Iterable[Bundle], versions: Mapping[Key, str]) -> list[bool]:
    """Return for each bundle whether its expected versions match, given that the bundles before it were written.

    `versions` are the current ones. A bundle whose new versions exist already is accepted again: it was written
    before, and only the answer got lost.
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
    """Return whether the bundle has been written already."""
    puts = [write for write in bundle.writes if write.data is not None]
    return bool(puts) and all(versions.get(write.key) == write.version for write in puts)


def last_writes(bundles: Iterable[Bundle]) -> list[Write]:
    """Return the last write of each document: the same result as writing the bundles one after the other."""
    return list({write.key: write for bundle in bundles for write in bundle.writes}.values())


def answers(
    bundles: Sequence[Bundle], holds: Sequence[bool], inserted: Sequence[Inserted]
) -> list[list[Inserted] | None]:
    """Return the inserted jobs of each bundle, or None for a bundle whose expected versions did not match."""
    jobs = iter(inserted)
    return [[next(jobs) for _ in bundle.jobs] if held else None for bundle, held in zip(bundles, holds, strict=True)]


WORKER_POLL: Millis = 15_000  # workers look for due documents at least this often, and need a wake-up only within it


def comes_soon(writes: Iterable[Write], now: Millis) -> bool:
    """Return whether a document comes due before the workers' next poll, so that they must be woken."""
    return any(
        write.due_at is not None and write.due_at <= now + WORKER_POLL and not write.announced for write in writes
    )
