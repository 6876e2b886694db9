"""What the ledger says about halts: which halt delayed an occurrence, or makes its job wait.

A halt that refuses new jobs leaves no record when it ends. So a worker that is refused records the halt as a document,
and updates the document while the halt lasts. A worker that fires later can then say why the fire was late.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from mainspring.clock import to_millis
from mainspring.features.schedules.firing import Firing
from mainspring.features.schedules.ledger import SCHEDULES, Became, Entry
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Halt, Store

T = TypeVar("T")

COLLECTION = "halts"
NOTE_INTERVAL = timedelta(seconds=60)
MAX_PAST_HALTS = 50  # that are read, newest first


@dataclass(frozen=True, slots=True)
class PastHalt:
    """A halt that refused jobs."""

    actor: str
    reason: str
    since: datetime
    seen: datetime  # when it last refused a worker, or up to a minute before that

    def covers(self, utc: datetime) -> bool:
        return self.since <= utc <= self.seen + NOTE_INTERVAL

    def write(self) -> Write:
        data = {"actor": self.actor, "reason": self.reason, "seen": self.seen.isoformat()}
        return Write(_key(self.since), json.dumps(data), expires_at=to_millis(self.seen + SCHEDULES.retention))

    @classmethod
    def from_document(cls, document: Document) -> PastHalt:
        data = json.loads(document.data)
        since, seen = datetime.fromisoformat(document.key.id), datetime.fromisoformat(data["seen"])
        return cls(data["actor"], data["reason"], since, seen)


def _key(since: datetime) -> Key:
    return Key(COLLECTION, "", since.isoformat())


async def note_refusal(store: Store, now: datetime) -> None:
    """Record the halt that refused this process. If several processes do so at once, only the times differ a little."""
    refusing = next((halt for halt in await store.halts() if halt.queue is None and not halt.accept), None)
    if refusing is None:  # the halt has just ended
        return
    known = [PastHalt.from_document(document) for document in await store.documents([_key(refusing.since)])]
    if not known or now - known[0].seen >= NOTE_INTERVAL:
        noted = PastHalt(refusing.actor, refusing.reason, refusing.since, now)
        await store.write([Bundle((noted.write(),))])


async def past_halts(store: Store) -> Sequence[PastHalt]:
    found = await store.browse(Listing(COLLECTION, "", limit=MAX_PAST_HALTS, backwards=True))
    return [PastHalt.from_document(document) for document in found]


# -- what the entries say ---------------------------------------------------------------------------


async def with_halts(store: Store, firings: Sequence[Firing[T]]) -> Sequence[Firing[T]]:
    """Add to the entries which halt made them late, and which halt or pause makes their jobs wait."""
    halts = await store.halts() if any(firing.jobs for firing in firings) else []
    late = any(is_to_explain(entry) for firing in firings for entry in firing.entries)
    past = await past_halts(store) if late else []
    if not halts and not past:
        return firings
    return [_with_halts(firing, halts, past) for firing in firings]


def _with_halts(firing: Firing[T], halts: Sequence[Halt], past: Sequence[PastHalt]) -> Firing[T]:
    queue = firing.jobs[0].queue if firing.jobs else ""
    entries = tuple(_with_waiting_job(_explained(entry, past), queue, halts) for entry in firing.entries)
    return replace(firing, entries=entries)


def is_to_explain(entry: Entry) -> bool:
    return entry.late or entry.became is Became.COALESCED or entry.reason in {"too_late", "too_many", "missed"}


def _explained(entry: Entry, past: Sequence[PastHalt]) -> Entry:
    """Return the entry; if a halt covered its time, with that halt as the explanation."""
    for halt in past:
        if is_to_explain(entry) and halt.covers(entry.utc):
            cause = f"the system was halted by {_by_whom(halt.actor, halt.since, halt.reason)}"
            return replace(entry, halted=True, why=f"{entry.why}; {cause}" if entry.why else cause)
    return entry


def _with_waiting_job(entry: Entry, queue: str, halts: Sequence[Halt]) -> Entry:
    """Return the entry; if it fired and a halt or pause keeps its job from starting, say so in it."""
    for halt in halts:
        if entry.became is Became.FIRED and halt.queue in {None, queue}:
            what = "the system is halted" if halt.queue is None else f"queue {queue} is paused"
            cause = f"its job waits: {what} by {_by_whom(halt.actor, halt.since, halt.reason)}"
            return replace(entry, halted=True, why=f"{entry.why}; {cause}" if entry.why else cause)
    return entry


def _by_whom(actor: str, since: datetime, reason: str) -> str:
    return f"{actor} since {since:%Y-%m-%d %H:%M:%S} UTC" + (f" ({reason})" if reason else "")
