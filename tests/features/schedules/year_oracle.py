"""The oracle of a year of schedules: which times should have fired, and in what the records differ from that.

It uses nothing of `mainspring.features.schedules.rules`. All times here are whole quarters of an hour, so it walks
along local time in steps of that length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from mainspring.features.schedules.firing import Became, Entry

QUARTER = timedelta(minutes=15)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MISSED = {"too_late", "too_many", "missed"}
Times = dict[str, set[datetime]]  # key → the instants at which it may have been
Span = tuple[datetime, datetime]


def on_the_wall(zone: ZoneInfo, start: datetime, end: datetime, matches: Callable[[datetime], bool]) -> Times:
    """Nominal local times. Those that clocks skip are as long after the last; of two the first counts."""
    return {wall.isoformat(): {utc} for wall, utc in _walk(zone, start, end) if utc > start and matches(wall)}


def _walk(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    utc = start.replace(minute=start.minute // 15 * 15, second=0, microsecond=0)
    wall = seen = _wall(utc, zone)
    while utc + QUARTER <= end:
        before, utc = (utc, wall), utc + QUARTER
        wall = _wall(utc, zone)
        while seen < wall:
            seen += QUARTER
            yield seen, utc if seen == wall else before[0] + (seen - before[1])


def _wall(utc: datetime, zone: ZoneInfo) -> datetime:
    return utc.astimezone(zone).replace(tzinfo=None, fold=0)


def in_real_time(start: datetime, end: datetime, hours: int) -> Times:
    """Every so many hours, counted from midnight UTC."""
    first = start.replace(hour=0, minute=0, second=0, microsecond=0)
    steps = (
        first + timedelta(hours=hours) * number for number in range(int((end - first) / timedelta(hours=hours)) + 1)
    )
    return {f"{utc.replace(tzinfo=None).isoformat()}Z": {utc} for utc in steps if start < utc <= end}


def by_changing_rules(
    before: ZoneInfo, after: ZoneInfo, start: datetime, end: datetime, matches: Callable[[datetime], bool]
) -> Times:
    """The same wall times, each once, by either: from the start by the old rules until the end by the new ones."""
    one, other = on_the_wall(before, start, end + DAY, matches), on_the_wall(after, start - DAY, end, matches)
    return {key: one[key] | other[key] for key in one.keys() & other.keys()}


# -- what was ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A job that a schedule made."""

    id: str
    run_at: datetime


@dataclass(frozen=True)
class Halted:
    """The whole system, from one instant to before the other."""

    since: datetime
    until: datetime | None
    accepts: bool  # new jobs

    def covers(self, moment: datetime, longer: timedelta = timedelta()) -> bool:
        return self.since <= moment and (self.until is None or moment < self.until + longer)


@dataclass(frozen=True)
class Record:
    """All there is about one schedule when the year is over."""

    name: str
    expected: Times
    entries: Sequence[Entry]
    jobs: Sequence[Made]
    looks: frozenset[datetime]  # the clock's times at which a process decided something
    jitter: timedelta = timedelta()
    pauses: Sequence[Span] = ()
    catches_up: bool = False  # every single one
    lets_go: bool = False  # what is more than a minute late
    halts: Sequence[Halted] = ()
    noted: Sequence[Span] = ()  # of those that refused jobs: since when, and when a job was last seen to be refused


def violations(record: Record) -> list[str]:
    checks = (each_is_told_once, each_fire_has_its_job, lateness_is_right, reasons_hold, halts_are_told)
    return [f"{record.name}: {found}" for check in checks for found in check(record)]


def each_is_told_once(record: Record) -> Iterator[str]:
    told: Counter[str] = Counter()
    for entry in record.entries:
        covered = list(_covered(record.expected, entry))
        told.update(covered)
        if len(covered) != entry.count:
            yield f"an entry about {entry.count} from {entry.utc} is about {len(covered)}: {entry.became}"
    for key in sorted(record.expected):
        if told[key] != 1:
            yield f"{key} is told {told[key]} times"


def _covered(expected: Times, entry: Entry) -> Iterator[str]:
    """Those in its range. One alone must be the very one that it names, at an instant at which that may have been."""
    if entry.count == 1:
        if entry.utc in expected.get(entry.key, ()):
            yield entry.key
        return
    assert entry.last is not None
    low, high = entry.utc, entry.last
    yield from (key for key, instants in expected.items() if any(low <= instant <= high for instant in instants))


def each_fire_has_its_job(record: Record) -> Iterator[str]:
    made = Counter(job.id for job in record.jobs)
    fired = {entry.job_id: entry for entry in record.entries if entry.became is Became.FIRED}
    if len(fired) != sum(entry.became is Became.FIRED for entry in record.entries):
        yield "two entries tell of the same job"
    for job_id, entry in fired.items():
        if made[str(job_id)] != 1:
            yield f"{entry.key} was fired, and its job is there {made[str(job_id)]} times"
    for job in record.jobs:
        about = fired.get(job.id)
        if about is None:
            yield f"job {job.id}, due {job.run_at}, is in no entry"
        elif not timedelta() <= job.run_at - about.utc <= record.jitter:
            yield f"the job of {about.key} is due at {job.run_at}"


def lateness_is_right(record: Record) -> Iterator[str]:
    for entry in record.entries:
        if entry.at not in record.looks:
            yield f"{entry.key} was decided at {entry.at}, when no process looked"
        if entry.at < (entry.last or entry.utc):
            yield f"{entry.key} was decided before its time"
        late = (entry.at - entry.utc).total_seconds() if entry.became is Became.FIRED else 0.0
        if abs(entry.lateness - late) > 0.002 or entry.late != (late > 60):
            yield f"{entry.key} says that it is {entry.lateness} s late; it is {late}"


def reasons_hold(record: Record) -> Iterator[str]:
    coalesced: Counter[datetime] = Counter()
    for entry in record.entries:
        coalesced[entry.at] += entry.coalesced - (entry.count if entry.became is Became.COALESCED else 0)
        if entry.became is Became.SKIPPED and not (entry.reason and entry.why):
            yield f"{entry.key} was skipped, and nothing says why"
        in_pause = any(since <= entry.utc < until for since, until in record.pauses)
        if in_pause != (entry.reason == "paused"):
            yield f"{entry.key} was {entry.became} {entry.reason}; was the schedule paused? {in_pause}"
        if record.catches_up and entry.became is not Became.FIRED and not in_pause:
            yield f"{entry.key} was {entry.became}, although each is caught up"
        if record.lets_go and entry.became is Became.FIRED and entry.at - entry.utc > MINUTE:
            yield f"{entry.key} was fired too late"
    yield from (f"at {at} {number} too many were called coalesced" for at, number in coalesced.items() if number)


def halts_are_told(record: Record) -> Iterator[str]:
    """Of those that kept it from being fired in time, and of those that keep its job from being started."""
    for entry in record.entries:
        waits = entry.became is Became.FIRED and any(halt.covers(entry.at) for halt in record.halts)
        missed = entry.late or entry.became is Became.COALESCED or entry.reason in MISSED
        kept = missed and any(since <= entry.utc <= seen < entry.at for since, seen in record.noted)
        may_be_kept = missed and any(halt.covers(entry.utc, longer=MINUTE) for halt in record.halts if not halt.accepts)
        if (waits or kept) and not entry.halted:
            yield f"{entry.key} was {entry.became}, and nothing tells of a halt"
        if entry.halted and not (waits or may_be_kept):
            yield f"{entry.key} was {entry.became}, and a halt is told that was not"
        if entry.halted and "halted by ana since" not in entry.why:
            yield f"{entry.key} does not say whose halt it was: {entry.why}"


def check_all(records: Mapping[str, Record]) -> list[str]:
    return [found for record in records.values() for found in violations(record)]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
