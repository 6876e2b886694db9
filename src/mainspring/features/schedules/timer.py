"""Fires the schedules that are due. Any number of processes may do so at once.

`DueTimer` has what is the same for schedules and for people's occasions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from mainspring.clock import SKEW, Millis, to_datetime
from mainspring.errors import MainspringError, SystemHalted
from mainspring.events import ScheduleFired, ScheduleSkipped
from mainspring.feature import Timer
from mainspring.features.schedules.firing import Firing, firing_of, needs_last_jobs, without_repeats
from mainspring.features.schedules.ledger import SCHEDULES, Became, Entry, Ledger, halts_around, note_refusal
from mainspring.features.schedules.rules import tzdata_version
from mainspring.features.schedules.storage import COLLECTION, StoredSchedule
from mainspring.job import Inserted, Job
from mainspring.log import get_log
from mainspring.pipeline import Pipeline
from mainspring.services import Services
from mainspring.stores.documents import Bundle, By, Document
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Action, Filter
from mainspring.timers import leave_to_newer

log = get_log("mainspring.schedules")

T = TypeVar("T")
Written = tuple[Firing[T], Sequence[Inserted]]  # with what the store says about the firing's jobs

MAX_REMEMBERED_SCHEDULES = 1000


class DueTimer(Timer, ABC, Generic[T]):
    """Fires documents of one collection: reads them, writes firings, and leaves unreadable ones to newer workers."""

    ledger: Ledger

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
