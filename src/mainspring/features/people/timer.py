"""Fires the plans of one kind that are due. Any number of processes may do so at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from mainspring.clock import Millis, duration, to_datetime
from mainspring.errors import InvalidPerson
from mainspring.events import OccasionSent, OccasionSkipped
from mainspring.features.people import kinds, ledger
from mainspring.features.people.firing import Firing, fire
from mainspring.features.people.ledger import Became, Entry
from mainspring.features.people.plan import Plan, collection_of
from mainspring.features.schedules.rules import tzdata_version
from mainspring.job import Inserted, NewJob
from mainspring.log import get_log
from mainspring.stores.documents import Bundle, Document, Listing
from mainspring.task import Task
from mainspring.timers import leave_to_newer

if TYPE_CHECKING:
    from mainspring.app import Mainspring

log = get_log("mainspring.occasions")

CHUNK = 8192  # plans at a time; other timers wait meanwhile, for less than a second
PLANS_PER_WRITE = 1024  # takes about 35 ms of Python, while jobs wait
MAX_WRITES_AT_ONCE = 3  # several, because a busy event loop notices late that one has ended
YIELD_TO_OTHERS: Millis = 250  # after another process wrote a whole chunk first; else both would keep colliding
PAGE = 500
MAX_LOG_LINES = 20  # about messages that are sent at once
HARMLESS_SKEW = duration(timedelta(minutes=10))  # graces are longer, so a clock that was ahead by less skipped nothing
DEDUPE_RETENTION = duration(timedelta(days=400))  # until after the next year's message


class OccasionTimer:
    chunk = CHUNK

    def __init__(self, app: Mainspring, kind: str, task: Task[..., Any, Any]) -> None:
        self._app = app
        self.kind = kind
        self.task = task
        self.collection = collection_of(kind)
        self._unreadable: set[str] = set()

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        """Fire plans in parts. While the store writes some parts, the next part is prepared."""
        moment, written = to_datetime(now), 0
        writing: deque[asyncio.Task[int]] = deque()
        try:
            for start in range(0, len(documents), PLANS_PER_WRITE):
                firings = self._firings(documents[start : start + PLANS_PER_WRITE], moment)
                writing.append(asyncio.create_task(self._write(firings, moment)))
                await asyncio.sleep(0)  # lets the store begin to write, and jobs run
                if len(writing) == MAX_WRITES_AT_ONCE:
                    written += await writing.popleft()
            written += sum([await task for task in writing])
        finally:
            await asyncio.gather(*writing, return_exceptions=True)
        unreadable = [plan for plan in documents if plan.key.id in self._unreadable] if self._unreadable else []
        again = await leave_to_newer(self._app.services, unreadable, now, CHUNK)
        return again if written or again is not None else now + YIELD_TO_OTHERS

    def _firings(self, documents: Sequence[Document], now: datetime) -> list[Firing]:
        plans = [plan for document in documents if (plan := self._read(document)) is not None]
        return [fire(plan, now, self._job) for plan in plans]

    async def _write(self, firings: Sequence[Firing], now: datetime) -> int:
        """Write the firings; return how many were written. Another process has written the others."""
        answers = await self._app.pipeline.write([firing.bundle(now) for firing in firings])
        found = zip(firings, answers, strict=True)
        written = [(firing, inserted) for firing, inserted in found if inserted is not None]
        await self._report(written)
        return len(written)

    def _job(self, plan: Plan, now: datetime) -> NewJob:
        assert plan.next is not None  # noqa: S101 - it is due
        lateness = (now - plan.next.utc).total_seconds()
        payload = {
            "person": plan.person, "kind": plan.kind, "on": plan.next.on, "due": plan.next.utc, "lateness": lateness,
        }  # fmt: skip
        job = self.task.template_of(to_json(payload).decode())
        job.dedupe_key, job.dedupe_for, job.target = plan.message_key, DEDUPE_RETENTION, ("person", plan.person)
        return job

    def _read(self, document: Document) -> Plan | None:
        try:
            plan = Plan.from_document(document)
        except InvalidPerson as error:
            if document.key.id not in self._unreadable:
                log.warning("occasion_unreadable", person=document.key.id, kind=self.kind, error=str(error))
            self._unreadable.add(document.key.id)
            return None
        self._unreadable.discard(document.key.id)
        return plan

    async def _report(self, written: Sequence[tuple[Firing, Sequence[Inserted]]]) -> None:
        entries = [(firing.after.person, entry) for firing, inserted in written for entry in became(firing, inserted)]
        repeats = [Bundle((entry.write(person),)) for person, entry in entries if entry.reason == ledger.REPEATED]
        if repeats:
            await self._app.store.write(repeats)
        self._log_entries(entries)

    def _log_entries(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """Log each entry and emit its event. A burst gets one log line for all, as 50,000 lines take seconds."""
        sent = sum(entry.became is Became.SENT for _, entry in entries)
        if sent > MAX_LOG_LINES:
            log.info("occasions_sent", kind=self.kind, number=sent)
        level = logging.DEBUG if sent > MAX_LOG_LINES else logging.INFO
        wanted = log.wants(level) or self._app.bus.wants(OccasionSent)
        for person, entry in entries:
            if wanted or entry.became is not Became.SENT:
                self._log_entry(person, entry, log.debug if level == logging.DEBUG else log.info)

    def _log_entry(self, person: str, entry: Entry, write: Callable[..., None]) -> None:
        if entry.became is Became.SENT:
            write("occasion_sent", person=person, kind=entry.kind, on=str(entry.on), job_id=entry.job_id)
            self._app.bus.emit(
                OccasionSent(
                    person=person, kind=entry.kind, on=entry.on, job_id=entry.job_id or "", lateness=entry.lateness
                )
            )
        else:
            log.warning("occasion_skipped", person=person, kind=entry.kind, on=str(entry.on), why=entry.why)
            self._app.bus.emit(OccasionSkipped(person=person, kind=entry.kind, on=entry.on, reason=entry.reason))

    async def recover(self) -> None:
        """Do nothing: a fire is one write, so it cannot be left half done."""

    async def clock_went_back(self, by: Millis) -> None:
        """Plan again what a clock that was far ahead skipped as too late. A small skew skips nothing."""
        if by < HARMLESS_SKEW:
            return
        now, seen = self._app.now(), None
        while page := await self._app.store.browse(Listing(self.collection, "", seen, PAGE)):
            seen = page[-1].key[1:]
            plans = [plan for one in page if (plan := self._read(one)) is not None]
            changed = [after for plan in plans if (after := plan.rewound(now)) is not plan]
            if changed:
                log.warning("occasions_rewound", kind=self.kind, plans=len(changed))
                await self._app.store.write([Bundle((plan.write(now),)) for plan in changed])

    async def refresh(self) -> None:
        """Compute instants again for plans that were made with an older tzdata. Reads plans only if tzdata is newer.

        If this version cannot read some plans, a newer version has to read them all again.
        """
        newest = tzdata_version()
        if (known := await kinds.tzdata_of(self._app.store, self.kind)) is None or known >= newest:
            return
        seen, moved, unread = None, 0, 0
        while page := await self._app.store.browse(Listing(self.collection, "", seen, PAGE)):
            seen = page[-1].key[1:]
            plans = [self._read(one) for one in page]
            unread += plans.count(None)
            old = [plan for plan in plans if plan is not None and plan.tzdata < newest]
            changed = [plan.derived() for plan in old]
            await self._app.store.write([Bundle((plan.write(self._app.now()),)) for plan in changed])
            moved += sum(after.next != before.next for after, before in zip(changed, old, strict=True))
        log.info("occasions_derived_anew", kind=self.kind, moved=moved, left_to_newer=unread, tzdata=newest)
        if not unread:
            await kinds.mark(self._app.store, self.kind, newest)


def became(firing: Firing, inserted: Sequence[Inserted]) -> list[Entry]:
    """Return the entries of a firing as they turned out: a message whose dedupe key was taken is a repeat."""
    answers = iter(inserted)
    return [
        ledger.repeated(entry, answer.id)
        if entry.became is Became.SENT and not (answer := next(answers)).created
        else entry
        for entry in firing.entries
    ]
