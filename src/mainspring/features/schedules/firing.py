"""Decides what to write when a schedule is due. Pure: every process decides the same, and only one write succeeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from mainspring.features.schedules import ledger
from mainspring.features.schedules.ledger import Became, Entry
from mainspring.features.schedules.rules import Drop, Fire, Reason, tzdata_version
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.job import Job, NewJob
from mainspring.stores.documents import Bundle, Key

RUN_CHECK_INTERVAL = timedelta(seconds=10)
"""How soon to check again whether a run has ended, if the next one starts after that."""


@dataclass(frozen=True, slots=True)
class Firing:
    """What to write for one schedule that is due."""

    after: StoredSchedule  # the schedule after this write
    jobs: tuple[NewJob, ...] = ()
    entries: tuple[Entry, ...] = ()
    look_at: datetime | None = None  # when to check the schedule again, if that is before its next occurrence

    def without(self, fired: Collection[Key]) -> Firing:
        """Return this without the occurrences in `fired`: they fired early, by a clock that was ahead."""
        kept = tuple(entry for entry in self.entries if entry.write(self.after.id).key not in fired)
        gone = {entry.job_id for entry in self.entries if entry not in kept}
        jobs = tuple(job for job in self.jobs if job.id not in gone)
        after = replace(
            self.after,
            fires=self.after.fires - len(self.jobs) + len(jobs),
            last_jobs=tuple(job_id for job_id in self.after.last_jobs if job_id not in gone),
            ahead=None if self._is_past(self.after.ahead) else self.after.ahead,
        )
        return replace(self, after=after, jobs=jobs, entries=kept)

    def _is_past(self, ahead: datetime | None) -> bool:
        return ahead is not None and self.after.decided is not None and self.after.decided.utc >= ahead

    def bundle(self) -> Bundle:
        writes = self.after.write(look_at=self.look_at), *(entry.write(self.after.id) for entry in self.entries)
        return Bundle(writes, self.jobs)


def needs_last_jobs(stored: StoredSchedule) -> bool:
    return bool(stored.last_jobs) and (stored.schedule.rule.from_finish or stored.schedule.overlap != "allow")


def fire(stored: StoredSchedule, now: datetime, last: Sequence[Job] = ()) -> Firing:
    """Decide what to do with the occurrences that are due. `last`: the last fired jobs, if `needs_last_jobs`."""
    running = [job for job in last if not job.finished]
    if stored.schedule.rule.from_finish and last:
        if running:
            return Firing(stored, look_at=now + RUN_CHECK_INTERVAL)
        stored = replace(stored, since=max(stored.since, *(job.finished_at or now for job in last)))
    plan = stored.schedule.plan(stored.undecided_since, now)
    busy = running[0] if running and stored.schedule.overlap == "skip" else None
    fires, overlaps = _without_overlap(stored, plan.fires, busy)
    jobs = tuple(stored.job_for(fire.occurrence) for fire in fires)
    entries = [
        *(_entry_of(drop, busy, now) for drop in plan.drops),
        *(ledger.fired(fire, job.id, now) for fire, job in zip(fires, jobs, strict=True)),
        *(ledger.overlapped(fire, busy.id if busy else jobs[0].id, now) for fire in overlaps),
    ]
    after = replace(
        stored,
        schedule=stored.schedule if plan.decided is None else stored.schedule.decided_until(plan.decided.utc),
        decided=plan.decided or stored.decided,
        next=plan.next,
        last_jobs=tuple(job.id for job in jobs) or stored.last_jobs,
        fires=stored.fires + len(jobs),
        tzdata=tzdata_version(),  # that `next` was found with; a process with a newer version finds it again
    )
    is_open = stored.schedule.rule.from_finish and bool(jobs)
    return Firing(after, jobs, tuple(entries), look_at=now + RUN_CHECK_INTERVAL if is_open else None)


def undecided_entries(stored: StoredSchedule, now: datetime, reason: str, why: str) -> tuple[Entry, ...]:
    """Return ledger entries for due occurrences that did not fire before the schedule was replaced or removed."""
    if stored.disabled or stored.schedule.rule.from_finish:  # the latter has no fixed times that could be missed
        return ()
    plan = stored.schedule.plan(stored.undecided_since, now)
    paused = [drop for drop in plan.drops if drop.reason is Reason.PAUSED]
    others = [drop for drop in plan.drops if drop.reason is not Reason.PAUSED]
    return (
        *(ledger.dropped(drop, now) for drop in paused),
        *(replace(ledger.dropped(drop, now), became=Became.SKIPPED, reason=reason, why=why) for drop in others),
        *(ledger.skipped(fire.occurrence, now, reason, why) for fire in plan.fires),
    )


def _entry_of(drop: Drop, busy: Job | None, now: datetime) -> Entry:
    """Return the entry for a drop. What is coalesced into an occurrence that overlaps is skipped as well."""
    coalesced = drop.reason is Reason.COALESCED
    return ledger.overlapped_in_a_row(drop, busy.id, now) if busy and coalesced else ledger.dropped(drop, now)


def _without_overlap(
    stored: StoredSchedule, fires: tuple[Fire, ...], busy: Job | None
) -> tuple[tuple[Fire, ...], tuple[Fire, ...]]:
    """Return the fires, and those that overlap with a run. Of several due at once, only the first can fire."""
    if stored.schedule.overlap != "skip":
        return fires, ()
    return ((), fires) if busy else (fires[:1], fires[1:])
