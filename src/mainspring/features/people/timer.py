"""Fires the plans of one kind that are due. Any number of processes may do so at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_json

from mainspring.clock import Millis, duration, to_datetime
from mainspring.errors import MainspringError
from mainspring.events import OccasionFired, OccasionSkipped
from mainspring.features.people.firing import OCCASIONS, REPEATED, day_of, firing_of, repeated
from mainspring.features.people.plan import OccasionPlan, collection_of
from mainspring.features.people.storage import kind_tzdata, mark_kind
from mainspring.features.schedules.firing import Became, Entry, Firing
from mainspring.features.schedules.rules import tzdata_version
from mainspring.features.schedules.timer import DueTimer
from mainspring.job import Inserted, NewJob
from mainspring.log import get_log
from mainspring.pipeline import Pipeline
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document
from mainspring.task import Task

log = get_log("mainspring.occasions")

PLANS_AT_A_TIME = 8192  # other timers wait meanwhile, for less than a second
PLANS_PER_WRITE = 1024  # takes about 35 ms of Python, while jobs wait
MAX_WRITES_AT_ONCE = 3  # several, because a busy event loop notices late that one has ended
YIELD_TO_OTHERS: Millis = 250  # after another process wrote a whole page first; else both would keep colliding
MAX_LOG_LINES = 20  # about messages that are sent at once
HARMLESS_SKEW = duration(timedelta(minutes=10))  # graces are longer, so a clock that was ahead by less skipped nothing
DEDUPE_RETENTION = duration(timedelta(days=400))  # until after the next year's message


class OccasionTimer(DueTimer[OccasionPlan]):
    """Fires the plans of one kind of occasion."""

    ledger = OCCASIONS
    page_size = PLANS_AT_A_TIME

    def __init__(self, services: Services, pipeline: Pipeline, kind: str, task: Task[..., Any, Any]) -> None:
        super().__init__(services, pipeline)
        self.kind = kind
        self.task = task
        self.collection = collection_of(kind)

    # -- firing ---------------------------------------------------------------------------------------

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        """Fire plans in parts. While the store writes some parts, the next part is prepared."""
        moment, written = to_datetime(now), 0
        writing: deque[asyncio.Task[int]] = deque()
        try:
            for start in range(0, len(documents), PLANS_PER_WRITE):
                plans = self.read(documents[start : start + PLANS_PER_WRITE])
                firings = [firing_of(plan, moment, self._job) for plan in plans]
                writing.append(asyncio.create_task(self._write(firings, moment)))
                await asyncio.sleep(0)  # lets the store begin to write, and jobs run
                if len(writing) == MAX_WRITES_AT_ONCE:
                    written += await writing.popleft()
            written += sum([await task for task in writing])
        finally:
            await asyncio.gather(*writing, return_exceptions=True)
        again = await self.leave_unreadable(documents, now)
        return again if written or again is not None else now + YIELD_TO_OTHERS

    def _job(self, plan: OccasionPlan, now: datetime) -> NewJob:
        assert plan.next is not None  # noqa: S101 - it is due
        lateness = (now - plan.next.utc).total_seconds()
        payload = {
            "person": plan.person, "kind": plan.kind, "on": plan.next.on, "due": plan.next.utc, "lateness": lateness,
        }  # fmt: skip
        job = self.task.template_of(to_json(payload).decode())
        job.dedupe_key, job.dedupe_for, job.target = plan.message_key, DEDUPE_RETENTION, ("person", plan.person)
        return job

    async def _write(self, firings: Sequence[Firing[OccasionPlan]], now: datetime) -> int:
        """Write the firings and report them; return how many were written."""
        written = await self.write(firings, now)
        entries = [(firing.owner, entry) for firing, inserted in written for entry in became(firing, inserted)]
        repeats = [Bundle((entry.write(OCCASIONS, who),)) for who, entry in entries if entry.reason == REPEATED]
        if repeats:
            await self._services.store.write(repeats)
        self._report(entries)
        return len(written)

    def _report(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """Log each entry and emit its event. A burst gets one log line for all, as 50,000 lines take seconds."""
        fired = sum(entry.became is Became.FIRED for _, entry in entries)
        if fired > MAX_LOG_LINES:
            log.info("occasions_fired", kind=self.kind, number=fired)
        level = logging.DEBUG if fired > MAX_LOG_LINES else logging.INFO
        wanted = log.wants(level) or self._services.bus.wants(OccasionFired)
        for person, entry in entries:
            if entry.became is not Became.FIRED:
                self._report_skipped(person, entry)
            elif wanted:
                self._report_fired(person, entry, log.debug if level == logging.DEBUG else log.info)

    def _report_fired(self, person: str, entry: Entry, write: Callable[..., None]) -> None:
        on, job_id = day_of(entry), entry.job_id or ""
        write("occasion_fired", person=person, kind=self.kind, on=str(on), job_id=job_id)
        self._services.bus.emit(
            OccasionFired(person=person, kind=self.kind, on=on, job_id=job_id, lateness=entry.lateness)
        )

    def _report_skipped(self, person: str, entry: Entry) -> None:
        on = day_of(entry)
        log.warning("occasion_skipped", person=person, kind=self.kind, on=str(on), why=entry.why)
        self._services.bus.emit(OccasionSkipped(person=person, kind=self.kind, on=on, reason=entry.reason))

    # -- reading --------------------------------------------------------------------------------------

    def parse(self, document: Document) -> OccasionPlan:
        return OccasionPlan.from_document(document)

    def warn_unreadable(self, document: Document, error: MainspringError) -> None:
        log.warning("occasion_unreadable", person=document.key.id, kind=self.kind, error=str(error))

    # -- repairing ------------------------------------------------------------------------------------

    async def clock_went_back(self, by: Millis) -> None:
        """Plan again what a clock that was far ahead skipped as too late. A small skew skips nothing."""
        if by < HARMLESS_SKEW:
            return
        now = self._services.now()
        async for page in self.pages():
            changed = [after for plan in self.read(page) if (after := plan.rewound(now)) is not plan]
            if changed:
                log.warning("occasions_rewound", kind=self.kind, plans=len(changed))
                await self._services.store.write([Bundle((plan.write(now),)) for plan in changed])

    async def refresh(self) -> None:
        """Compute instants again for plans that were made with an older tzdata. Reads plans only if tzdata is newer.

        If this version cannot read some plans, a newer version has to read them all again.
        """
        newest = tzdata_version()
        if (known := await kind_tzdata(self._services.store, self.kind)) is None or known >= newest:
            return
        moved, unread = 0, 0
        async for page in self.pages():
            plans = self.read(page)
            unread += len(page) - len(plans)
            old = [plan for plan in plans if plan.tzdata < newest]
            changed = [plan.derived() for plan in old]
            await self._services.store.write([Bundle((plan.write(self._services.now()),)) for plan in changed])
            moved += sum(after.next != before.next for after, before in zip(changed, old, strict=True))
        log.info("occasions_derived_anew", kind=self.kind, moved=moved, left_to_newer=unread, tzdata=newest)
        if not unread:
            await mark_kind(self._services.store, self.kind, newest)


def became(firing: Firing[OccasionPlan], inserted: Sequence[Inserted]) -> Sequence[Entry]:
    """Return the entries of a firing as they turned out: a message whose dedupe key was taken is a repeat."""
    answers = iter(inserted)
    return [
        repeated(entry, answer.id) if entry.became is Became.FIRED and not (answer := next(answers)).created else entry
        for entry in firing.entries
    ]
