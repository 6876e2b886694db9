"""Finds the plans of one kind that are due, and writes what follows from it. Any number of processes may do so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis, duration, to_datetime
from mainspring.errors import InvalidPerson
from mainspring.events import OccasionSent, OccasionSkipped
from mainspring.job import Inserted, NewJob
from mainspring.log import get_log
from mainspring.occasions import kinds, ledger
from mainspring.occasions.firing import Firing, fire
from mainspring.occasions.ledger import Became, Entry
from mainspring.occasions.plan import Plan, collection_of
from mainspring.schedule import tzdata_version
from mainspring.stores.documents import Bundle, Document, Listing
from mainspring.task import Task
from mainspring.timers import leave_to_newer

if TYPE_CHECKING:
    from mainspring.app import Mainspring

log = get_log("mainspring.occasions")

PAGE = 500
SKIPS_NOTHING = duration(timedelta(minutes=10))  # graces are longer
KEY_KEPT = duration(timedelta(days=400))  # beyond the next year's


class OccasionTimer:
    def __init__(self, app: Mainspring, kind: str, task: Task[..., Any, Any]) -> None:
        self._app = app
        self.kind = kind
        self.task = task
        self.collection = collection_of(kind)
        self._unreadable: set[str] = set()

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        plans = [plan for document in documents if (plan := self._read(document)) is not None]
        unreadable = [one for one in documents if one.key.id in self._unreadable]
        again = await leave_to_newer(self._app, unreadable, now)
        moment = to_datetime(now)
        firings = [fire(plan, moment, self._job) for plan in plans]
        answers = await self._app.store.write([firing.bundle(moment) for firing in firings])
        for firing, inserted in zip(firings, answers, strict=True):
            if inserted is not None:  # else another process was quicker
                self._app.announce(firing.jobs, inserted)
                await self._tell(firing, inserted)
        return again

    def _job(self, plan: Plan, now: datetime) -> NewJob:
        assert plan.next is not None  # noqa: S101 - it is due
        lateness = (now - plan.next.utc).total_seconds()
        job = self.task.template({
            "person": plan.person, "kind": plan.kind, "on": plan.next.on, "due": plan.next.utc, "lateness": lateness,
        })  # fmt: skip
        return replace(
            job,
            dedupe_key=plan.message_key,
            dedupe_for=KEY_KEPT,
            target=("person", plan.person),
            options=json.dumps({**json.loads(job.options or "{}"), "idempotency_key": plan.message_key}),
        )

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

    async def _tell(self, firing: Firing, inserted: Sequence[Inserted]) -> None:
        made = iter(inserted)
        for entry in firing.entries:
            if entry.became is Became.SENT and not (answer := next(made)).created:
                entry = ledger.repeated(entry, answer.id)  # noqa: PLW2901 - what really became of it
                await self._app.store.write([Bundle((entry.write(firing.after.person),))])
            self._say(firing.after.person, entry)

    def _say(self, person: str, entry: Entry) -> None:
        if entry.became is Became.SENT and entry.job_id:
            log.info("occasion_sent", person=person, kind=entry.kind, on=str(entry.on), job_id=entry.job_id)
            self._app.bus.emit(
                OccasionSent(person=person, kind=entry.kind, on=entry.on, job_id=entry.job_id, lateness=entry.lateness)
            )
        else:
            log.warning("occasion_skipped", person=person, kind=entry.kind, on=str(entry.on), why=entry.why)
            self._app.bus.emit(OccasionSkipped(person=person, kind=entry.kind, on=entry.on, reason=entry.reason))

    async def recover(self) -> None:
        """Nothing: what fires is one write, so nothing is ever half done."""

    async def clock_went_back(self, by: Millis) -> None:
        """Plan again what was skipped as too late by a clock that was far ahead. A small error skips nothing."""
        if by < SKIPS_NOTHING:
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
        """Find instants anew of plans that an older tzdata was used for. Looks at them all only if there is a newer.

        If there were some that only newer versions can read, one of those has to look at them all too.
        """
        newest = tzdata_version()
        if (known := await kinds.tzdata_of(self._app.store, self.kind)) is None or known >= newest:
            return
        seen, moved, left = None, 0, 0
        while page := await self._app.store.browse(Listing(self.collection, "", seen, PAGE)):
            seen = page[-1].key[1:]
            plans = [self._read(one) for one in page]
            left += plans.count(None)
            old = [plan for plan in plans if plan is not None and plan.tzdata < newest]
            changed = [plan.derived() for plan in old]
            await self._app.store.write([Bundle((plan.write(self._app.now()),)) for plan in changed])
            moved += sum(one.next != before.next for one, before in zip(changed, old, strict=True))
        log.info("occasions_derived_anew", kind=self.kind, moved=moved, left_to_newer=left, tzdata=newest)
        if not left:
            await kinds.mark(self._app.store, self.kind, newest)
