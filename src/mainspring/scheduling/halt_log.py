"""What the ledger says of halts: which kept occurrences from being fired on time, and whose jobs wait.

A halt that refuses new jobs leaves nothing behind when it ends. So whoever is refused notes it as a document, and goes
on noting while it lasts; whoever fires later can tell why that was late.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from mainspring.clock import to_millis
from mainspring.scheduling.ledger import KEPT, Became, Entry
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Halt, Store

COLLECTION = "halts"
NOTED_EVERY = timedelta(seconds=60)
MOST = 50  # the newest


@dataclass(frozen=True, slots=True)
class PastHalt:
    """A halt that refused jobs."""

    actor: str
    reason: str
    since: datetime
    seen: datetime  # when somebody was refused last, or up to a minute before that

    def covers(self, utc: datetime) -> bool:
        return self.since <= utc <= self.seen + NOTED_EVERY

    def write(self) -> Write:
        data = {"actor": self.actor, "reason": self.reason, "seen": self.seen.isoformat()}
        return Write(_key(self.since), json.dumps(data), expires_at=to_millis(self.seen + KEPT))

    @classmethod
    def from_document(cls, document: Document) -> PastHalt:
        data = json.loads(document.data)
        since, seen = datetime.fromisoformat(document.key.id), datetime.fromisoformat(data["seen"])
        return cls(data["actor"], data["reason"], since, seen)


def _key(since: datetime) -> Key:
    return Key(COLLECTION, "", since.isoformat())


async def note_refusal(store: Store, now: datetime) -> None:
    """Several may do so at once: they write the same, but for moments."""
    refusing = next((halt for halt in await store.halts() if halt.queue is None and not halt.accept), None)
    if refusing is None:  # it has just ended
        return
    known = [PastHalt.from_document(one) for one in await store.documents([_key(refusing.since)])]
    if not known or now - known[0].seen >= NOTED_EVERY:
        noted = PastHalt(refusing.actor, refusing.reason, refusing.since, now)
        await store.write([Bundle((noted.write(),))])


async def past_halts(store: Store) -> Sequence[PastHalt]:
    found = await store.browse(Listing(COLLECTION, "", limit=MOST, backwards=True))
    return [PastHalt.from_document(document) for document in found]


# -- what the entries say ---------------------------------------------------------------------------


def is_to_explain(entry: Entry) -> bool:
    return entry.late or entry.became is Became.COALESCED or entry.reason in {"too_late", "too_many", "missed"}


def explained(entry: Entry, past: Sequence[PastHalt]) -> Entry:
    """With the halt that was in the way, if one was."""
    for halt in past:
        if is_to_explain(entry) and halt.covers(entry.utc):
            told = f"the system was halted by {_who(halt.actor, halt.since, halt.reason)}"
            return replace(entry, halted=True, why=f"{entry.why}; {told}" if entry.why else told)
    return entry


def with_waiting_job(entry: Entry, queue: str, halts: Sequence[Halt]) -> Entry:
    """Fired, but its job is not started for now."""
    for halt in halts:
        if entry.became is Became.FIRED and halt.queue in {None, queue}:
            what = "the system is halted" if halt.queue is None else f"queue {queue} is paused"
            told = f"its job waits: {what} by {_who(halt.actor, halt.since, halt.reason)}"
            return replace(entry, halted=True, why=f"{entry.why}; {told}" if entry.why else told)
    return entry


def _who(actor: str, since: datetime, reason: str) -> str:
    return f"{actor} since {since:%Y-%m-%d %H:%M:%S} UTC" + (f" ({reason})" if reason else "")
