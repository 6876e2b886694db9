"""Fires the schedules that are due. Any number of processes may do so at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from mainspring.clock import SKEW, Millis, to_datetime
from mainspring.errors import InvalidSchedule, SystemHalted
from mainspring.events import ScheduleFired, ScheduleSkipped
from mainspring.features.schedules.firing import Firing, fire, needs_last_jobs
from mainspring.features.schedules.halt_log import explained, is_to_explain, note_refusal, past_halts, with_waiting_job
from mainspring.features.schedules.ledger import Became, Entry
from mainspring.features.schedules.rules import tzdata_version
from mainspring.features.schedules.storage import COLLECTION, StoredSchedule
from mainspring.job import Job
from mainspring.log import get_log
from mainspring.stores.documents import Bundle, Document, Listing
from mainspring.stores.protocol import Action, By, Filter
from mainspring.timers import CHUNK, leave_to_newer

if TYPE_CHECKING:
    from mainspring.app import Mainspring

log = get_log("mainspring.schedules")

PAGE = 500
MAX_REMEMBERED_SCHEDULES = 1000


class ScheduleTimer:
    collection = COLLECTION
    chunk = CHUNK

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._unreadable: set[str] = set()
        self._written: dict[str, StoredSchedule] = {}  # by id, as this process wrote them last

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        schedules = [stored for document in documents if (stored := self._read(document)) is not None]
        unreadable = [document for document in documents if document.key.id in self._unreadable]
        again = await leave_to_newer(self._app.services, unreadable, now)
        known = await self._last_jobs(schedules)
        last = [[known[job_id] for job_id in stored.last_jobs if job_id in known] for stored in schedules]
        moment = to_datetime(now)
        firings = [fire(stored, moment, jobs) for stored, jobs in zip(schedules, last, strict=True)]
        firings = await self._without_repeats(firings)
        firings = await self._with_halts(firings)
        await self._cancel_old(schedules, firings, last)
        bundles = [firing.bundle() for firing in firings]
        try:
            answers = await self._app.pipeline.write(bundles)
        except SystemHalted:
            await note_refusal(self._app.store, moment)
            raise
        for firing, bundle, inserted in zip(firings, bundles, answers, strict=True):
            if inserted is not None:  # else another process has fired it
                self._remember(firing.after, bundle)
                self._report(firing)
        return again

    def _remember(self, stored: StoredSchedule, bundle: Bundle) -> None:
        """Remember a schedule as written, so that its next fire need not parse JSON."""
        version = next(write.version for write in bundle.writes if write.key == stored.key)
        self._written.pop(stored.id, None)
        self._written[stored.id] = replace(stored, version=version)
        if len(self._written) > MAX_REMEMBERED_SCHEDULES:
            del self._written[next(iter(self._written))]

    async def _without_repeats(self, firings: Sequence[Firing]) -> list[Firing]:
        """Remove occurrences that have fired early, by a clock that was ahead and has gone back since."""
        doubtful = [firing for firing in firings if firing.after.ahead is not None]
        keys = [entry.write(one.after.id).key for one in doubtful for entry in one.entries if entry.job_id]
        found = {one.key: Entry.from_document(one) for one in await self._app.store.documents(keys)} if keys else {}
        fired = {key for key, entry in found.items() if entry.became is Became.FIRED}
        return [firing.without(fired) if firing in doubtful else firing for firing in firings]

    async def _with_halts(self, firings: Sequence[Firing]) -> list[Firing]:
        """Add to the entries which halt made them late, and which halt or pause makes their jobs wait."""
        halts = await self._app.store.halts() if any(firing.jobs for firing in firings) else []
        late = any(is_to_explain(entry) for firing in firings for entry in firing.entries)
        past = await past_halts(self._app.store) if late else []
        if not halts and not past:
            return list(firings)
        return [
            replace(
                firing,
                entries=tuple(
                    with_waiting_job(explained(entry, past), str(firing.after.job["queue"]), halts)
                    for entry in firing.entries
                ),
            )
            for firing in firings
        ]

    def _read(self, document: Document) -> StoredSchedule | None:
        written = self._written.get(document.key.id)
        if written is not None and written.version == document.version:
            return written
        try:
            stored = StoredSchedule.from_document(document)
        except InvalidSchedule as error:
            if document.key.id not in self._unreadable:
                log.warning("schedule_unreadable", schedule=document.key.id, error=str(error))
            self._unreadable.add(document.key.id)
            return None
        self._unreadable.discard(document.key.id)
        return stored

    async def _last_jobs(self, schedules: Sequence[StoredSchedule]) -> dict[str, Job]:
        ids = [one for stored in schedules if needs_last_jobs(stored) for one in stored.last_jobs]
        return {job.id: job for job in await self._app.store.get(ids)} if ids else {}

    async def _cancel_old(
        self, before: Sequence[StoredSchedule], firings: Sequence[Firing], last: Sequence[Sequence[Job]]
    ) -> None:
        """Cancel running jobs before the new ones are written. If this process dies in between, another repeats it."""
        for stored, firing, jobs in zip(before, firings, last, strict=True):
            running = tuple(job.id for job in jobs if not job.finished)
            if firing.jobs and running and stored.schedule.overlap == "cancel_old":
                by = By("mainspring", f"schedule {stored.id} fires again")
                await self._app.store.change(Action.CANCEL, Filter(ids=running), by)

    def _report(self, firing: Firing) -> None:
        for entry in firing.entries:
            if entry.became is Became.FIRED and entry.job_id:
                log.info("schedule_fired", schedule=firing.after.id, job_id=entry.job_id, lateness=entry.lateness)
                if self._app.bus.wants(ScheduleFired):
                    self._app.bus.emit(
                        ScheduleFired(
                            schedule=firing.after.id, job_id=entry.job_id, nominal=entry.nominal,
                            lateness=entry.lateness,
                        )
                    )  # fmt: skip
            else:
                reason = entry.reason or entry.became
                log.warning(
                    "schedule_skipped", schedule=firing.after.id, reason=reason, why=entry.why, count=entry.count
                )
                self._app.bus.emit(ScheduleSkipped(schedule=firing.after.id, reason=reason, count=entry.count))

    async def recover(self) -> None:
        """Do nothing: a fire is one write, so it cannot be left half done."""

    async def clock_went_back(self, by: Millis) -> None:
        """Rewind schedules that fired by a clock that was ahead, so that future occurrences fire at their time."""
        del by
        seen = None
        while page := await self._app.store.browse(Listing(COLLECTION, "", seen, PAGE)):
            seen = page[-1].key[1:]
            pending: Sequence[Document] = page
            while pending := await self._rewind(pending):  # changed meanwhile, perhaps fired by the wrong clock
                pass

    async def _rewind(self, documents: Sequence[Document]) -> list[Document]:
        """Rewind what lies in the future; return the documents to retry, as another process changed them meanwhile."""
        now = self._app.now()
        limit = now + timedelta(milliseconds=SKEW)
        schedules = [stored for one in documents if (stored := self._read(one)) is not None]
        wrong = [one for one in schedules if one.since > limit or (one.decided and one.decided.utc > limit)]
        if not wrong:
            return []
        answers = await self._app.store.write([Bundle((stored.rewound(now).write(),)) for stored in wrong])
        log.warning("schedules_rewound", schedules=[stored.id for stored in wrong])
        lost = [stored.key for stored, answer in zip(wrong, answers, strict=True) if answer is None]
        return await self._app.store.documents(lost) if lost else []

    async def refresh(self) -> None:
        """Compute `next` again for schedules that were written with an older tzdata."""
        newest, seen = tzdata_version(), None
        while page := await self._app.store.browse(Listing(COLLECTION, "", seen, PAGE)):
            seen = page[-1].key[1:]
            old = [stored for one in page if (stored := self._read(one)) is not None and stored.tzdata < newest]
            if old:
                log.info("schedules_derived_anew", schedules=len(old), tzdata=newest)
                await self._app.store.write([Bundle((stored.derived().write(),)) for stored in old])
