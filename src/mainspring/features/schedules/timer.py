"""Fires the schedules that are due. Any number of processes may do so at once.

`DueTimer` has what is the same for schedules and for people's occasions.

An entry of the ledger also says which halt delayed its occurrence, or makes its job wait. A halt that refuses new jobs
leaves no record when it ends. So a worker that is refused records the halt as a document, and updates the document
while the halt lasts. A worker that fires later can then explain why the fire was late.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from mainspring.clock import SKEW, Millis, to_datetime, to_millis
from mainspring.errors import MainspringError, SystemHalted
from mainspring.events import ScheduleFired, ScheduleSkipped
from mainspring.feature import Timer
from mainspring.features.schedules.firing import (
    SCHEDULES,
    Became,
    Entry,
    Firing,
    Ledger,
    firing_of,
    needs_last_jobs,
    without_repeats,
)
from mainspring.features.schedules.rules import tzdata_version
from mainspring.features.schedules.storage import COLLECTION, StoredSchedule
from mainspring.job import Inserted, Job
from mainspring.json_text import from_json, to_json
from mainspring.log import get_log
from mainspring.pipeline import Pipeline
from mainspring.services import Services
from mainspring.stores.documents import Bundle, By, Document, Key, Listing, Write
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Action, Filter, Halt, Store
from mainspring.timers import leave_to_newer

log = get_log("mainspring.schedules")

T = TypeVar("T")
Written = tuple[Firing[T], Sequence[Inserted]]  # with what the store says about the firing's jobs

MAX_REMEMBERED_SCHEDULES = 1000
PAST_HALTS = "halts"  # the collection
NOTE_INTERVAL = timedelta(seconds=60)
MAX_PAST_HALTS = 50  # that are read, newest first


class DueTimer(Timer, ABC, Generic[T]):
    """Fires documents of one collection: reads them, writes firings, and leaves unreadable ones to newer workers."""

    ledger: Ledger
    is_schedule = True

    def __init__(self, services: Services, pipeline: Pipeline) -> None:
        self._services = services
        self._pipeline = pipeline
        self._unreadable: set[str] = set()  # ids of documents that only a newer version can read

    @abstractmethod
    def parse(self, document: Document) -> T:
        """Return what a document contains. Raise MainspringError if this version cannot read it."""

    @abstractmethod
    def warn_unreadable(self, document: Document, error: MainspringError) -> None:
        """Log that this version cannot read a document."""

    def read(self, documents: Sequence[Document]) -> list[T]:
        """Return what the documents contain, without those that this version cannot read."""
        return [value for document in documents if (value := self._read(document)) is not None]

    def _read(self, document: Document) -> T | None:
        try:
            value = self.parse(document)
        except MainspringError as error:
            if document.key.id not in self._unreadable:
                self.warn_unreadable(document, error)
            self._unreadable.add(document.key.id)
            return None
        if self._unreadable:
            self._unreadable.discard(document.key.id)
        return value

    async def leave_unreadable(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        """Leave documents that `read` could not read to newer workers; return when to look at them again."""
        unreadable = (
            [document for document in documents if document.key.id in self._unreadable] if self._unreadable else []
        )
        return await leave_to_newer(self._services, unreadable, now, self.page_size)

    async def write(self, firings: Sequence[Firing[T]], now: datetime) -> list[Written[T]]:
        """Write firings; return those that were written. Another process has written the others."""
        firings = await self._with_halts(firings)
        try:
            answers = await self._pipeline.write([firing.bundle(self.ledger) for firing in firings])
        except SystemHalted:
            await note_refusal(self._services.store, now)
            raise
        found = zip(firings, answers, strict=True)
        return [(firing, inserted) for firing, inserted in found if inserted is not None]

    async def _with_halts(self, firings: Sequence[Firing[T]]) -> Sequence[Firing[T]]:
        entries = [entry for firing in firings for entry in firing.entries]
        if (halts := await halts_around(self._services.store, entries)) is None:
            return firings
        return [firing.with_entries(halts.explain) for firing in firings]

    async def pages(self) -> AsyncIterator[Sequence[Document]]:
        async for page in pages(self._services.store, self.collection):
            yield page


class ScheduleTimer(DueTimer[StoredSchedule]):
    collection = COLLECTION
    ledger = SCHEDULES

    def __init__(self, services: Services, pipeline: Pipeline) -> None:
        super().__init__(services, pipeline)
        self._written: dict[str, StoredSchedule] = {}  # by id, as this process wrote them last

    # -- firing ---------------------------------------------------------------------------------------

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        schedules, moment = self.read(documents), to_datetime(now)
        again = await self.leave_unreadable(documents, now)
        last = await self._last_jobs(schedules)
        firings = [firing_of(stored, moment, jobs) for stored, jobs in zip(schedules, last, strict=True)]
        firings = await self._without_repeats(firings)
        await self._cancel_old(schedules, firings, last)
        for firing, _ in await self.write(firings, moment):
            self._remember(firing)
            self._report(firing)
        return again

    async def _last_jobs(self, schedules: Sequence[StoredSchedule]) -> list[list[Job]]:
        """Return the last fired jobs of each schedule, for those whose next fire depends on them."""
        ids = [job_id for stored in schedules if needs_last_jobs(stored) for job_id in stored.last_jobs]
        known = {job.id: job for job in await self._services.store.get(ids)} if ids else {}
        return [[known[job_id] for job_id in stored.last_jobs if job_id in known] for stored in schedules]

    async def _without_repeats(self, firings: Sequence[Firing[StoredSchedule]]) -> list[Firing[StoredSchedule]]:
        """Remove occurrences that have fired early, by a clock that was ahead and has gone back since."""
        doubtful = [firing for firing in firings if firing.after.ahead is not None]
        keys = [
            entry.document_key(SCHEDULES, firing.owner)
            for firing in doubtful
            for entry in firing.entries
            if entry.job_id
        ]
        found = await self._services.store.documents(keys) if keys else []
        fired = {document.key for document in found if Entry.from_document(document).became is Became.FIRED}
        return [without_repeats(firing, fired) if firing in doubtful else firing for firing in firings]

    async def _cancel_old(
        self,
        before: Sequence[StoredSchedule],
        firings: Sequence[Firing[StoredSchedule]],
        last: Sequence[Sequence[Job]],
    ) -> None:
        """Cancel running jobs before the new ones are written. If this process dies in between, another repeats it."""
        for stored, firing, jobs in zip(before, firings, last, strict=True):
            running = tuple(job.id for job in jobs if not job.finished)
            if firing.jobs and running and stored.schedule.overlap == "cancel_old":
                by = By("mainspring", f"schedule {stored.id} fires again")
                await self._services.store.change(Action.CANCEL, Filter(ids=running), by)

    def _report(self, firing: Firing[StoredSchedule]) -> None:
        for entry in firing.entries:
            if entry.became is Became.FIRED and entry.job_id:
                log.info("schedule_fired", schedule=firing.owner, job_id=entry.job_id, lateness=entry.lateness)
                if self._services.bus.wants(ScheduleFired):
                    self._services.bus.emit(
                        ScheduleFired(
                            schedule=firing.owner, job_id=entry.job_id, nominal=entry.nominal, lateness=entry.lateness
                        )
                    )
            else:
                reason = entry.reason or entry.became
                log.warning("schedule_skipped", schedule=firing.owner, reason=reason, why=entry.why, count=entry.count)
                self._services.bus.emit(ScheduleSkipped(schedule=firing.owner, reason=reason, count=entry.count))

    # -- reading --------------------------------------------------------------------------------------

    def parse(self, document: Document) -> StoredSchedule:
        written = self._written.get(document.key.id)
        if written is not None and written.version == document.version:
            return written
        return StoredSchedule.from_document(document)

    def warn_unreadable(self, document: Document, error: MainspringError) -> None:
        log.warning("schedule_unreadable", schedule=document.key.id, error=str(error))

    def _remember(self, firing: Firing[StoredSchedule]) -> None:
        """Remember a schedule as written, so that its next fire need not parse JSON."""
        self._written.pop(firing.owner, None)
        self._written[firing.owner] = replace(firing.after, version=firing.write.version)
        if len(self._written) > MAX_REMEMBERED_SCHEDULES:
            del self._written[next(iter(self._written))]

    # -- repairing ------------------------------------------------------------------------------------

    async def clock_went_back(self, by: Millis) -> None:
        """Rewind schedules that fired by a clock that was ahead, so that future occurrences fire at their time."""
        del by
        async for page in self.pages():
            pending = page
            while pending := await self._rewind(pending):  # changed meanwhile, perhaps fired by the wrong clock
                pass

    async def _rewind(self, documents: Sequence[Document]) -> Sequence[Document]:
        """Rewind what lies in the future; return the documents to retry, as another process changed them meanwhile."""
        now = self._services.now()
        limit = now + timedelta(milliseconds=SKEW)
        wrong = [
            stored
            for stored in self.read(documents)
            if stored.since > limit or (stored.decided and stored.decided.utc > limit)
        ]
        if not wrong:
            return []
        answers = await self._services.store.write([Bundle((stored.rewound(now).write(),)) for stored in wrong])
        log.warning("schedules_rewound", schedules=[stored.id for stored in wrong])
        lost = [stored.key for stored, answer in zip(wrong, answers, strict=True) if answer is None]
        return await self._services.store.documents(lost) if lost else []

    async def refresh(self) -> None:
        """Compute `next` again for schedules that were written with an older tzdata."""
        newest = tzdata_version()
        async for page in self.pages():
            old = [stored for stored in self.read(page) if stored.tzdata < newest]
            if old:
                log.info("schedules_derived_anew", schedules=len(old), tzdata=newest)
                await self._services.store.write([Bundle((stored.derived().write(),)) for stored in old])


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
