"""What is to be written when a plan is due. Pure: every process finds the same, and one of them gets it written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from mainspring.job import NewJob
from mainspring.occasions import ledger
from mainspring.occasions.ledger import Entry
from mainspring.occasions.plan import Plan
from mainspring.schedule import tzdata_version
from mainspring.stores.documents import Bundle

MakeJob = Callable[[Plan, datetime], NewJob]  # for what the plan has next


@dataclass(slots=True)
class Firing:
    after: Plan  # as it is once this is written
    jobs: tuple[NewJob, ...]  # one or none
    entries: tuple[Entry, ...]

    def bundle(self, now: datetime) -> Bundle:
        writes = self.after.write(now), *(entry.write(self.after.person) for entry in self.entries)
        return Bundle(writes, self.jobs)


def fire(plan: Plan, now: datetime, make_job: MakeJob) -> Firing:
    """Of several years that were missed, those that are too late are skipped one by one."""
    if plan.tzdata < tzdata_version():
        plan = plan.derived()
    jobs: list[NewJob] = []
    entries: list[Entry] = []
    while (one := plan.next) is not None and one.due <= now:
        if now - one.due > plan.times.grace_length:
            entries.append(ledger.too_late(plan, one, now))
            plan = plan.beyond()
        elif (clear := plan.times.clear(now)) > now:
            plan = replace(plan, next=one._replace(due=clear))
        else:
            jobs.append(make_job(plan, now))
            entries.append(ledger.sent(plan, one, jobs[-1].id, now))
            plan = plan.beyond(sent=True)
    return Firing(plan, tuple(jobs), tuple(entries))
