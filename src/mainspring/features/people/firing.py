"""Decides what to write when a plan is due. Pure: every process decides the same, and only one write succeeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from mainspring.features.people import ledger
from mainspring.features.people.plan import Plan
from mainspring.features.schedules.firing import Firing
from mainspring.features.schedules.ledger import Entry
from mainspring.features.schedules.rules import tzdata_version
from mainspring.job import NewJob

MakeJob = Callable[[Plan, datetime], NewJob]  # makes the job for the plan's next message


def firing_of(plan: Plan, now: datetime, make_job: MakeJob) -> Firing[Plan]:
    """Decide what to do with a plan that is due. If several years were missed, skip those that are too late."""
    if plan.tzdata < tzdata_version():
        plan = plan.derived()
    jobs: list[NewJob] = []
    entries: list[Entry] = []
    while (upcoming := plan.next) is not None and upcoming.due <= now:
        if now - upcoming.due > plan.times.grace_length:
            entries.append(ledger.too_late(plan, upcoming, now))
            plan = plan.beyond()
        elif (clear := plan.times.after_quiet(now)) > now:
            plan = replace(plan, next=upcoming._replace(due=clear))
        else:
            jobs.append(make_job(plan, now))
            entries.append(ledger.fired(plan, upcoming, jobs[-1].id, now))
            plan = plan.beyond(sent=True)
    return Firing(plan, plan.write(now), tuple(jobs), tuple(entries))
