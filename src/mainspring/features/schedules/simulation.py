"""Runs a schedule on virtual time, with the decisions of firing.py, as if its jobs took no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import islice

from mainspring.errors import ScheduleNotFound
from mainspring.features.schedules.api import Declared
from mainspring.features.schedules.firing import Became, Entry, firing_of
from mainspring.features.schedules.rules import remarks
from mainspring.features.schedules.storage import StoredSchedule, template_of, with_pause


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


# -- which schedules --------------------------------------------------------------------------------


def with_declared(
    stored: Iterable[StoredSchedule], declared: Iterable[Declared], now: datetime
) -> list[StoredSchedule]:
    """Return the schedules of a store and of the code by id; the code's version counts if both have one."""
    known = {schedule.id: schedule for schedule in stored}
    for new in declared:
        schedule = with_pause(new.schedule, known[new.id].schedule) if new.id in known else new.schedule
        known[new.id] = StoredSchedule(new.id, schedule, template_of(new.job), now, new.owner).derived()
    return [known[name] for name in sorted(known)]


def choose_schedules(schedules: Sequence[StoredSchedule], ids: Sequence[str] | None) -> Sequence[StoredSchedule]:
    if not ids:
        return schedules
    known = {schedule.id: schedule for schedule in schedules}
    for name in ids:
        if name not in known:
            msg = f"there is no schedule {name!r}"
            raise ScheduleNotFound(msg)
    return [known[name] for name in dict.fromkeys(ids)]


def fires_on_first_day(stored: StoredSchedule, start: datetime, most: int) -> int:
    """Return how often a schedule fires on the first day, counted up to `most`: an estimate of a simulation's work."""
    if stored.disabled:
        return 0
    return sum(1 for _ in islice(stored.schedule.between(start, start + timedelta(days=1)), most))


def fires_per_day(courses: Iterable[Course]) -> Counter[date]:
    return sum((course.days for course in courses), Counter())
