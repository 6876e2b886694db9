"""Runs a schedule on virtual time, with the decisions of firing.py, as if its jobs took no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime

from mainspring.features.schedules.firing import Became, Entry, firing_of
from mainspring.features.schedules.rules import remarks
from mainspring.features.schedules.storage import StoredSchedule


@dataclass(slots=True)
class Course:
    """What one schedule did between two instants."""

    stored: StoredSchedule
    fires: int = 0
    first: Entry | None = None
    last: Entry | None = None
    skipped: Counter[str] = field(default_factory=Counter)  # per reason
    days: Counter[date] = field(default_factory=Counter)  # fires per local day
    remarks: list[tuple[date, str]] = field(default_factory=list)  # days on which clocks change

    def note(self, entry: Entry) -> None:
        if entry.became is not Became.FIRED:
            self.skipped[entry.reason] += entry.count
            return
        self.fires += 1
        self.first, self.last = self.first or entry, entry
        self.days[date.fromisoformat(entry.nominal[:10])] += 1


def simulate(
    stored: StoredSchedule, start: datetime, end: datetime, on_fire: Callable[[datetime], None] = lambda _: None
) -> Course:
    """Return what a schedule created at `start` does before `end`."""
    course = Course(stored)
    if stored.disabled:
        return course
    for entry in entries(stored, start, end):
        course.note(entry)
        on_fire(entry.utc)
    course.remarks = remarks(stored.schedule, start, end)
    return course


def entries(stored: StoredSchedule, start: datetime, end: datetime) -> Iterator[Entry]:
    """Yield the ledger entries that the schedule would write in that time."""
    now = replace(stored, since=start, decided=None, last_jobs=(), fires=0).derived()
    while now.next is not None and now.next.utc < end:
        firing = firing_of(now, now.next.utc)
        yield from firing.entries
        now = _after_its_job(firing.after, now.next.utc)


def _after_its_job(stored: StoredSchedule, at: datetime) -> StoredSchedule:
    """Return the schedule after its job has ended. An interval from the last finish continues from there."""
    return replace(stored, since=at).derived() if stored.schedule.rule.from_finish else stored
