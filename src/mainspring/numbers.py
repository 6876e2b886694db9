"""Numbers over time: `await app.numbers(since=timedelta(hours=24))`.

A store keeps numbers per minute, hour and day. This module chooses which of them cover the time that is asked for, and
adds them up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import pairwise
from typing import Literal

from mainspring.clock import Length, Millis, check_moment, duration, shown, to_datetime, to_millis
from mainspring.errors import ConfigurationError
from mainspring.humanize import show_exactly
from mainspring.names import check_searched
from mainspring.stores.numbers import (
    BOUNDS,
    BUCKETS,
    HOUR,
    Figure,
    Grouping,
    Measure,
    NumbersQuery,
    Period,
    Span,
)
from mainspring.stores.protocol import Store

StepName = Literal["minute", "hour", "day"]
STEPS = {"minute": Period.MINUTE, "hour": Period.HOUR, "day": Period.DAY}
DEFAULT_SINCE = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long jobs waited or ran, in 12 buckets. Lengths are seconds."""

    buckets: tuple[int, ...]  # how many, by `Histogram.bounds`; the last bucket has no end
    total: float = 0.0  # the sum

    bounds = tuple(bound / 1000 for bound in BOUNDS)
    """Where the buckets end, exclusive."""

    @property
    def count(self) -> int:
        return sum(self.buckets)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentile(self, p: float) -> float | None:
        """Return an estimate of the length that `p` percent of the jobs stayed below; None without jobs.

        The true value is in the same bucket. In the last bucket, which has no end, the answer is its beginning.
        """
        if not is_percentile(p):
            msg = f"{shown(p)} is not a percentile; give a number from 0 to 100"
            raise ConfigurationError(msg)
        wanted, below = self.count * p / 100, 0
        ends, begin = (*self.bounds, self.bounds[-1]), 0.0
        for number, end in zip(self.buckets, ends, strict=True):
            if number and below + number >= wanted:
                return begin + (end - begin) * max(0.0, wanted - below) / number
            below, begin = below + number, end
        return None


def is_percentile(p: object) -> bool:
    return isinstance(p, int | float) and 0 <= p <= 100


@dataclass(frozen=True, slots=True)
class Tally:
    """What happened to jobs in a time. docs/numbers.md says what each number means."""

    start: datetime
    end: datetime
    enqueued: int
    started: int
    completed: int
    retried: int
    dead: int
    cancelled: int
    stalled: int
    wait: Histogram  # from when a job was due until a worker claimed it
    duration: Histogram  # of attempts that succeeded or failed

    @property
    def failed(self) -> int:
        """Attempts that failed: the job waits for another one, or became a dead letter."""
        return self.retried + self.dead

    @property
    def failure_rate(self) -> float:
        """The share of attempts that failed, from 0 to 1; 0 without attempts."""
        attempts = self.completed + self.failed
        return self.failed / attempts if attempts else 0.0

    @property
    def throughput(self) -> float:
        """Completed jobs per second."""
        seconds = (self.end - self.start).total_seconds()
        return self.completed / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers over time. `for tally in numbers.series` goes through the steps, oldest first, also empty ones."""

    step: StepName
    zone: str  # in which days begin
    total: Tally
    series: list[Tally]
    groups: Mapping[str, Numbers] = field(default_factory=dict)  # with `by`: the same for each queue or task


# -- which lines are read ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that are wanted, and the lines that cover them."""

    starts: list[Millis]  # of each step
    end: Millis  # of the last one
    spans: tuple[Span, ...]


def plan(since: Millis, until: Millis, step: Period, zone: tzinfo, now: Millis) -> Plan:
    """Choose lines that cover the time from `since` to `until` as exactly as they were kept."""
    in_utc = zone is UTC
    refuse_older(since, step, now, in_utc=in_utc)
    since = floor(since, finest(since, step, now, in_utc=in_utc))
    starts = list(steps(since, until, step, zone))
    end = next_step(starts[-1], step, zone)  # nothing lies in the future, so the whole step can be read
    if until < now:
        end = ceil(until, finest(until, step, now, in_utc=in_utc))
    units = [unit for unit in reversed(Period) if unit <= step and (in_utc or unit is not Period.DAY)]
    bounds = pairwise([*starts, end]) if len(units) > 1 else [(starts[0], end)]  # steps of minutes are one span
    spans = [span for start, stop in bounds for span in cover(start, stop, units, now)]
    return Plan(starts, until, tuple(merged(spans)))


def refuse_older(since: Millis, step: Period, now: Millis, *, in_utc: bool) -> None:
    kept = step if in_utc else min(step, Period.HOUR)
    oldest = now - kept.kept
    if since < oldest - kept.length:
        zones = "" if in_utc or step is not Period.DAY else " in UTC; days of other time zones are made from hours"
        msg = (
            f"since is {show_exactly(to_datetime(since))} UTC, but minutes are kept for 48 hours, hours for 30 days "
            f"and days for 2 years{zones}; give a later time, or a longer step"
        )
        raise ConfigurationError(msg)


def finest(moment: Millis, step: Period, now: Millis, *, in_utc: bool) -> Millis:
    """Return the length of the shortest periods that are kept of that time."""
    longest = step if in_utc else min(step, Period.HOUR)
    return next((p.length for p in Period if p >= longest or moment >= oldest_kept(p, now)), longest.length)


def oldest_kept(period: Period, now: Millis) -> Millis:
    """Return from when on all lines of such periods are there."""
    return ceil(now - period.kept, period.length)


def steps(since: Millis, until: Millis, step: Period, zone: tzinfo) -> Iterator[Millis]:
    """Yield where the steps begin: the first one at `since`, the others at full minutes, hours or local days."""
    start = since
    while start < until:
        yield start
        start = next_step(start, step, zone)


def next_step(moment: Millis, step: Period, zone: tzinfo) -> Millis:
    if step is not Period.DAY:
        return floor(moment, step.length) + step.length
    local = to_datetime(moment).astimezone(zone)
    return to_millis(datetime.combine(local.date() + timedelta(days=1), time(), zone).astimezone(UTC))


def cover(start: Millis, end: Millis, units: Sequence[Period], now: Millis) -> Iterator[Span]:
    """Yield the lines of one step: long periods where they fit, and shorter ones at its ends, if they are kept.

    Where minutes are no longer kept, an hour belongs to the step in which it begins.
    """
    while start < end:
        unit = next(u for u in units if start % u.length == 0 and start + u.length <= end)
        stop = start + (end - start) // unit.length * unit.length
        if unit is Period.MINUTE and len(units) > 1:
            if start < oldest_kept(Period.MINUTE, now):
                unit, start = Period.HOUR, ceil(start, HOUR)
                stop = start + HOUR
            else:
                stop = min(end, floor(start, HOUR) + HOUR)
        if start < end:
            yield Span(unit, start, stop)
        start = stop


def merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in spans:
        if found and found[-1].period is span.period and found[-1].until == span.since:
            found[-1] = Span(span.period, found[-1].since, span.until)
        else:
            found.append(span)
    return found


def floor(moment: Millis, length: Millis) -> Millis:
    return moment - moment % length


def ceil(moment: Millis, length: Millis) -> Millis:
    return -(-moment // length) * length


# -- adding up ----------------------------------------------------------------------------------------------


SLOTS_OF = [(int(measure), bucket) for measure in Measure for bucket in range(BUCKETS)]
"""The measure and bucket of each slot, as plain integers: a `Measure` is slower to compare and to use as an index."""

MEASURES = len(Measure)
STARTED = int(Measure.STARTED)
WITH_DURATION = frozenset(map(int, (Measure.COMPLETED, Measure.RETRIED, Measure.DEAD)))


def tally(start: datetime, end: datetime, figures: Iterable[Figure]) -> Tally:
    """Add figures up. It must be fast: 48 hours by minute are 2,880 tallies."""
    totals, waits, durations = [0] * MEASURES, [0] * BUCKETS, [0] * BUCKETS
    for _, _, counts in figures:
        for key, n in counts.items():
            measure, bucket = SLOTS_OF[key]
            totals[measure] += n
            if measure in WITH_DURATION:
                durations[bucket] += n
            elif measure == STARTED:
                waits[bucket] += n
    # A claim may be counted at the end of one step, and taken back at the beginning of the next one: not below zero.
    totals = [max(0, n) for n in totals]
    enqueued, started, completed, retried, dead, cancelled, stalled, wait, duration = totals  # as in `Measure`
    waited = Histogram(tuple(max(0, n) for n in waits), wait / 1000)
    ran = Histogram(tuple(durations), duration / 1000)
    return Tally(start, end, enqueued, started, completed, retried, dead, cancelled, stalled, waited, ran)


def series_of(plan: Plan, figures: Sequence[Figure]) -> list[Tally]:
    found: list[list[Figure]] = [[] for _ in plan.starts]
    for figure in figures:
        found[max(0, bisect_right(plan.starts, figure.start) - 1)].append(figure)
    bounds = pairwise(map(to_datetime, [*plan.starts, plan.end]))
    return [tally(start, end, part) for (start, end), part in zip(bounds, found, strict=True)]


def numbers_of(plan: Plan, figures: Sequence[Figure], step: StepName, zone: str) -> Numbers:
    total = tally(to_datetime(plan.starts[0]), to_datetime(plan.end), figures)
    return Numbers(step, zone, total, series_of(plan, figures))


# -- what is asked for --------------------------------------------------------------------------------------


def length_of(since: Length) -> Millis:
    """Return the milliseconds of a length of time before now; raise ConfigurationError if it is not above 0."""
    if (millis := duration(since)) <= 0:
        msg = (
            f"since is {shown(since)}, but it is a length of time before now, and must be above 0; give for example"
            " timedelta(hours=24), or the time from which to count"
        )
        raise ConfigurationError(msg)
    return millis


async def read_numbers(
    store: Store,
    *,
    since: datetime | Length,
    until: datetime | None,
    step: StepName,
    queue: str | None,
    task: str | None,
    by: Grouping | None,
    zone: str,
    within: tuple[str, ...] = (),
) -> Numbers:
    """Read numbers from a store. `app.numbers` explains the options."""
    now = store.clock.now()
    end = now if until is None else min(now, to_millis(check_moment(until, "until")))
    begin = to_millis(since) if isinstance(since, datetime) else now - length_of(since)
    if begin >= end:
        bound = "now" if end == now else "until"
        msg = f"since is {show_exactly(to_datetime(begin))} UTC, which is not before {bound}; give an earlier time"
        raise ConfigurationError(msg)
    wanted = plan(begin, end, step_of(step), zone_of(zone), now)
    query = NumbersQuery(wanted.spans, checked(queue, "queue"), checked(task, "task"), by_of(by), within)
    figures = await store.numbers(query)
    numbers = numbers_of(wanted, figures, step, zone)
    if by is None:
        return numbers
    groups: dict[str, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.group, []).append(figure)
    parts = {name: numbers_of(wanted, part, step, zone) for name, part in sorted(groups.items())}
    return Numbers(step, zone, numbers.total, numbers.series, parts)


def step_of(name: StepName) -> Period:
    if name not in tuple(STEPS):
        msg = f"step is {shown(name)}; use one of {', '.join(STEPS)}"
        raise ConfigurationError(msg)
    return STEPS[name]


def by_of(by: Grouping | None) -> Grouping | None:
    if by not in (None, "queue", "task"):  # a set would hash it
        msg = f"by is {shown(by)}; use queue or task, or leave it out"
        raise ConfigurationError(msg)
    return by


def zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - takes long, and is rarely needed

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        msg = f"{shown(name)} is not a time zone; give a name such as UTC or Europe/Berlin"
        raise ConfigurationError(msg) from None


def checked(name: str | None, what: str) -> str | None:
    if name is not None:
        check_searched(name, what)
    return name
