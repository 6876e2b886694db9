"""Decides what to write when a plan is due: the plan, the job, and entries of the person's ledger.

The code here is pure: every process decides the same, and only one write succeeds. The ledger says for each date
whether a message was sent, or why it was skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from mainspring.features.people.plan import Moment, Next, OccasionPlan
from mainspring.features.schedules.firing import Became, Entry, Firing, Ledger
from mainspring.features.schedules.rules import tzdata_version
from mainspring.features.schedules.rules.parse import write_length
from mainspring.features.schedules.rules.policies import LATE_AFTER
from mainspring.job import NewJob

MakeJob = Callable[[OccasionPlan, datetime], NewJob]  # makes the job for the plan's next message
OCCASIONS = Ledger("occasion_ledger", timedelta(days=800))
SECOND = timedelta(seconds=1)
LATE_SECONDS = LATE_AFTER.total_seconds()
REPEATED = "repeated"


def firing_of(plan: OccasionPlan, now: datetime, make_job: MakeJob) -> Firing[OccasionPlan]:
    """Decide what to do with a plan that is due. If several years were missed, skip those that are too late."""
    if plan.tzdata < tzdata_version():
        plan = plan.derived()
    jobs: list[NewJob] = []
    entries: list[Entry] = []
    while (upcoming := plan.next) is not None and upcoming.due <= now:
        if now - upcoming.due > plan.times.grace_length:
            entries.append(too_late(plan, upcoming, now))
            plan = plan.beyond()
        elif (clear := plan.times.after_quiet(now)) > now:
            plan = replace(plan, next=upcoming._replace(due=clear))
        else:
            jobs.append(make_job(plan, now))
            entries.append(fired(plan, upcoming, jobs[-1].id, now))
            plan = plan.beyond(sent=True)
    return Firing(plan, plan.write(now), tuple(jobs), tuple(entries))


# -- the ledger --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OccasionEntry(Entry):
    """What became of one occasion on one date.

    At most one message is sent for each date, so a date has one entry. If it was skipped first, and sent after a
    change, it has an entry for each: the key of a skipped one also says when that was decided.
    """

    @property
    def kind(self) -> str:
        return self.key.rpartition(" ")[2]

    @property
    def on(self) -> date:
        return day_of(self)


def day_of(entry: Entry) -> date:
    """Return the local date that an entry is about."""
    return date.fromisoformat(entry.nominal[:10])


def fired(plan: OccasionPlan, upcoming: Next, job_id: str, now: datetime) -> OccasionEntry:
    lateness = (now - upcoming.utc).total_seconds()
    entry = _entry(Became.FIRED, plan, upcoming, now)
    entry.job_id, entry.lateness, entry.late = job_id, lateness, lateness > LATE_SECONDS
    return entry


def too_late(plan: OccasionPlan, upcoming: Next, now: datetime) -> OccasionEntry:
    late = (now - upcoming.due) // SECOND * SECOND
    why = f"{write_length(late)} late, and its grace is {plan.times.grace}"
    return _skipped(plan, upcoming, now, "too_late", why)


def passed_over(before: OccasionPlan | None, after: OccasionPlan, now: datetime) -> list[OccasionEntry]:
    """Return an entry for a message that will not be sent because its date was changed to one that has passed."""
    if before is None or before.next is None or after.gone:
        return []
    moment = after.times.in_year(before.next.on.year)
    if moment is None or (after.next is not None and after.next.on.year <= moment.on.year):
        return []
    why = f"the date was changed to {moment.on}, which had passed"
    return [_skipped(after, moment, now, "passed", why)]


def repeated(entry: Entry, job_id: str) -> Entry:
    """Return what replaces the entry of a firing whose job existed already."""
    why = "a message for this person, kind and date had been made before"
    return replace(entry, became=Became.SKIPPED, reason=REPEATED, why=why, job_id=job_id, lateness=0.0, late=False)


def _skipped(plan: OccasionPlan, moment: Next | Moment, now: datetime, reason: str, why: str) -> OccasionEntry:
    entry = _entry(Became.SKIPPED, plan, moment, now)
    decided = f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    return replace(entry, key=f"{decided} {plan.kind}", reason=reason, why=why)


def _entry(became: Became, plan: OccasionPlan, moment: Next | Moment, now: datetime) -> OccasionEntry:
    return OccasionEntry(became, now, f"{moment.on}T{plan.times.at}", moment.utc, plan.kind)
