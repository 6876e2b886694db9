"""The ledger: for each occurrence of a schedule or an occasion, whether it fired, or why it did not.

An entry is a document of its own, in the same write as the job that it is about. Each schedule and each person has a
ledger.

An entry also says which halt delayed its occurrence, or makes its job wait. A halt that refuses new jobs leaves no
record when it ends. So a worker that is refused records the halt as a document, and updates the document while the halt
lasts. A worker that fires later can then explain why the fire was late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Self

from mainspring.clock import Millis, check_moment, to_millis
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Halt, Store

PAST_HALTS = "halts"  # the collection
NOTE_INTERVAL = timedelta(seconds=60)
MAX_PAST_HALTS = 50  # that are read, newest first


class Ledger(NamedTuple):
    """Where entries are stored, and for how long."""

    collection: str
    retention: timedelta

    def page(self, owner: str, limit: int, before: datetime | None) -> Listing:
        """Select the entries of one schedule or person, newest first; with `before`, only those of earlier instants."""
        seen = None if before is None else (owner, _sortable(check_moment(before, "before").astimezone(UTC)))
        return Listing(self.collection, owner, seen, limit, backwards=True)


SCHEDULES = Ledger("ledger", timedelta(days=90))


class Became(StrEnum):
    FIRED = "fired"
    COALESCED = "coalesced"  # a newer occurrence was fired instead
    SKIPPED = "skipped"
    TRIGGERED = "triggered"  # by a person, in addition to the schedule's own times


@dataclass(slots=True)
class Entry:
    """What became of one occurrence, or of several in a row with the same outcome.

    Treat it as immutable; `Write` says why it is not frozen.
    """

    became: Became
    at: datetime  # when that was decided
    nominal: str  # the local time that the rule names; of several, that of the first
    utc: datetime  # its instant
    key: str  # identifies it among those of the same instant; for a triggered one, the job's id
    reason: str = ""  # why it was skipped: overlap, paused, too_late, …
    why: str = ""  # the same in words
    job_id: str | None = None
    lateness: float = 0.0  # seconds
    late: bool = False
    coalesced: int = 0  # how many earlier occurrences were coalesced into this one
    count: int = 1  # of occurrences
    last: datetime | None = None  # of several: the instant of the last one
    exact: bool = True  # False: there were at least `count`
    halted: bool = False  # a halt made it late, skipped it, or makes its job wait; `why` says which halt

    def document_key(self, ledger: Ledger, owner: str) -> Key:
        return Key(ledger.collection, owner, f"{_sortable(self.utc)} {self.key}")

    def write(self, ledger: Ledger, owner: str) -> Write:
        """Return the write, without the fields that have their default value."""
        data: dict[str, Any] = {
            "became": self.became, "at": self.at, "nominal": self.nominal, "utc": self.utc, "key": self.key,
        }  # fmt: skip
        for name, default in DEFAULTS:
            if (value := getattr(self, name)) != default:
                data[name] = value
        return Write(self.document_key(ledger, owner), to_json(data), expires_at=_expiry(self.at, ledger.retention))

    @classmethod
    def from_document(cls, document: Document) -> Self:
        stored: dict[str, Any] = from_json(document.data)
        data = {name: stored[name] for name in NAMES if name in stored}  # newer versions may have more fields
        data |= {name: datetime.fromisoformat(data[name]) for name in ("at", "utc", "last") if name in data}
        return cls(**data | {"became": Became(data["became"])})


NAMES = tuple(field.name for field in fields(Entry))
DEFAULTS = tuple((field.name, field.default) for field in fields(Entry) if field.default is not MISSING)


# Cached, because all entries of a burst have the same times.


@lru_cache(maxsize=256)
def _sortable(utc: datetime) -> str:
    """Return an instant as text that sorts by time, like the ids of entries."""
    return f"{utc:%Y-%m-%dT%H:%M:%S.%fZ}"


@lru_cache(maxsize=16)
def _expiry(decided: datetime, retention: timedelta) -> Millis:
    return to_millis(decided + retention)


# -- halts that refused jobs ---------------------------------------------------------------------------


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
        return Write(_halt_key(self.since), to_json(data), expires_at=to_millis(self.seen + SCHEDULES.retention))

    @classmethod
    def from_document(cls, document: Document) -> PastHalt:
        data = from_json(document.data)
        since, seen = datetime.fromisoformat(document.key.id), datetime.fromisoformat(data["seen"])
        return cls(data["actor"], data["reason"], since, seen)


def _halt_key(since: datetime) -> Key:
    return Key(PAST_HALTS, "", since.isoformat())


async def note_refusal(store: Store, now: datetime) -> None:
    """Record the halt that refused this process. If several processes do so at once, only the times differ a little."""
    refusing = next((halt for halt in await store.halts() if halt.queue is None and not halt.accept), None)
    if refusing is None:  # the halt has just ended
        return
    known = [PastHalt.from_document(document) for document in await store.documents([_halt_key(refusing.since)])]
    if not known or now - known[0].seen >= NOTE_INTERVAL:
        noted = PastHalt(refusing.actor, refusing.reason, refusing.since, now)
        await store.write([Bundle((noted.write(),))])


async def past_halts(store: Store) -> Sequence[PastHalt]:
    found = await store.browse(Listing(PAST_HALTS, "", limit=MAX_PAST_HALTS, backwards=True))
    return [PastHalt.from_document(document) for document in found]


# -- what the entries say about halts ------------------------------------------------------------------


class Halts(NamedTuple):
    """The halts that may explain entries."""

    current: Sequence[Halt]
    past: Sequence[PastHalt]

    def explain(self, entry: Entry, queue: str) -> Entry:
        """Return the entry with the halt that made it late, and with the halt or pause that makes its job wait."""
        return self._with_waiting_job(self._with_delay(entry), queue)

    def _with_delay(self, entry: Entry) -> Entry:
        halt = next((halt for halt in self.past if halt.covers(entry.utc)), None)
        if halt is None or not is_to_explain(entry):
            return entry
        return _because(entry, f"the system was halted by {_by_whom(halt)}")

    def _with_waiting_job(self, entry: Entry, queue: str) -> Entry:
        halt = next((halt for halt in self.current if halt.queue in {None, queue}), None)
        if halt is None or entry.became is not Became.FIRED:
            return entry
        what = "the system is halted" if halt.queue is None else f"queue {queue} is paused"
        return _because(entry, f"its job waits: {what} by {_by_whom(halt)}")


async def halts_around(store: Store, entries: Sequence[Entry]) -> Halts | None:
    """Read the halts that may explain these entries; return None if there are none."""
    current = await store.halts() if any(entry.became is Became.FIRED for entry in entries) else []
    past = await past_halts(store) if any(is_to_explain(entry) for entry in entries) else []
    return Halts(current, past) if current or past else None


def is_to_explain(entry: Entry) -> bool:
    return entry.late or entry.became is Became.COALESCED or entry.reason in {"too_late", "too_many", "missed"}


def _because(entry: Entry, cause: str) -> Entry:
    return replace(entry, halted=True, why=f"{entry.why}; {cause}" if entry.why else cause)


def _by_whom(halt: Halt | PastHalt) -> str:
    return f"{halt.actor} since {halt.since:%Y-%m-%d %H:%M:%S} UTC" + (f" ({halt.reason})" if halt.reason else "")
