"""Numbers over time: what happened to jobs per minute, hour and day, by queue and task.

A store keeps a number for each period, its start, a queue and a task, a measure and a bucket, and adds the numbers of
many writes up. A number whose task is empty counts all tasks of its queue; if its queue is empty too, it counts
everything. So the common questions read few numbers, however many tasks there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple

from mainspring.clock import Millis
from mainspring.queue_patterns import is_among

MINUTE: Millis = 60_000
HOUR: Millis = 3_600_000
DAY: Millis = 86_400_000

BOUNDS: tuple[Millis, ...] = (
    10, 50, 200, 1000, 5000, 15_000, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR,
)  # fmt: skip
"""Where the buckets of waits and durations end, exclusive. The last of the 12 buckets has no end."""

BUCKETS = len(BOUNDS) + 1

MAX_PLACES = 1000
"""How many pairs of queue and task are counted by name. A store counts further ones under `OTHER`."""

OTHER = "*"
"""The queue and task under which a store counts pairs beyond MAX_PLACES. It is not a name for a queue."""


class Period(IntEnum):
    """How long numbers are counted together. Stores keep the codes."""

    MINUTE = 0
    HOUR = 1
    DAY = 2

    @property
    def length(self) -> Millis:
        return (MINUTE, HOUR, DAY)[self]

    @property
    def kept(self) -> Millis:
        """How long stores keep the numbers of such periods."""
        return (48 * HOUR, 30 * DAY, 731 * DAY)[self]


PERIOD_BY_CODE = tuple(Period)


def is_due(pruned_at: Millis, now: Millis) -> bool:
    """Return whether old numbers are to be deleted: once an hour, and if the clock was ahead at the last time."""
    return not now - HOUR < pruned_at <= now


class Measure(IntEnum):
    """What a number counts. Stores keep the codes."""

    ENQUEUED = 0
    STARTED = 1  # its buckets are those of the waits
    COMPLETED = 2  # its buckets are those of the durations, as are those of RETRIED and DEAD
    RETRIED = 3
    DEAD = 4
    CANCELLED = 5
    STALLED = 6
    WAIT = 7  # the sum of the waits, in milliseconds
    DURATION = 8


Counts = dict[int, int]
"""The numbers of one period: how often, by `slot` of measure and bucket."""


def slot(measure: int, bucket: int) -> int:
    """Return the key of a measure and a bucket in `Counts`. The bucket is 0 if the measure has none."""
    return measure * BUCKETS + bucket


SLOT = f"measure * {BUCKETS} + bucket"
"""The same in SQL."""


def measure_and_bucket(key: int) -> tuple[Measure, int]:
    code, bucket = divmod(key, BUCKETS)
    return Measure(code), bucket


class Span(NamedTuple):
    """The periods that start in an interval of time."""

    period: Period
    since: Millis  # inclusive
    until: Millis  # exclusive


class Line(NamedTuple):
    """The numbers that a store keeps of one period, task and queue."""

    period: Period
    start: Millis
    task: str  # empty: all tasks of the queue
    queue: str  # empty: all queues
    counts: Counts


Grouping = Literal["queue", "task"]


@dataclass(frozen=True, slots=True)
class NumbersQuery:
    """Which numbers to read."""

    spans: tuple[Span, ...]
    queue: str | None = None  # None: all
    task: str | None = None
    by: Grouping | None = None  # count each queue or task apart
    within: tuple[str, ...] = ()  # patterns of queues, as in `Filter`: the numbers of these queues only

    @property
    def place(self) -> tuple[str, str] | None:
        """The task and queue of the only lines that are wanted; None if several places must be added up."""
        if self.by is not None or (self.queue is None and (self.task is not None or self.within)):
            return None
        return self.task or "", self.queue or ""

    def wants(self, task: str, queue: str) -> bool:
        """Return whether the lines of this place are wanted. No job is counted in two of the wanted places."""
        if self.within and not is_among(queue, self.within):
            return False
        place = self.place
        if place is not None:
            return (task, queue) == place
        if self.task is not None:
            return task == self.task and self.queue in {None, queue}
        if self.by != "task":
            return not task and bool(queue) and self.queue in {None, queue}
        return bool(task) and self.queue in {None, queue}

    def group(self, task: str, queue: str) -> str:
        return "" if self.by is None else queue if self.by == "queue" else task


class Figure(NamedTuple):
    """An answer to a query: the numbers of a period that starts then."""

    start: Millis
    group: str  # empty unless the query has `by`
    counts: Counts

    def total(self, measure: Measure) -> int:
        """Return how often, over all buckets."""
        first = slot(measure, 0)
        return sum(self.counts.get(key, 0) for key in range(first, first + BUCKETS))


def answer(query: NumbersQuery, lines: Iterable[Line]) -> list[Figure]:
    """Add up the lines that a query wants. It must be fast: 48 hours by minute are some 26,000 numbers.

    Leave out zeros: some stores keep them, after starts were taken back, and others do not.
    """
    spans = [[(span.since, span.until) for span in query.spans if span.period is period] for period in Period]
    groups: dict[tuple[str, str], str | None] = {}  # by place; None: not wanted
    found: dict[tuple[Millis, str], Counts] = {}
    for period, start, task, queue, counts in lines:
        place = (task, queue)
        if place not in groups:
            groups[place] = query.group(task, queue) if query.wants(task, queue) else None
        group = groups[place]
        if group is not None and is_in(spans[period], start):
            add_to(found.setdefault((start, group), {}), counts)
    sums = ((place, {key: n for key, n in counts.items() if n}) for place, counts in found.items())
    return [Figure(start, group, counts) for (start, group), counts in sums if counts]


def add_to(sums: Counts, counts: Counts) -> None:
    if not sums:
        sums.update(counts)
        return
    for key, n in counts.items():
        sums[key] = sums.get(key, 0) + n


def is_in(spans: Iterable[tuple[Millis, Millis]], start: Millis) -> bool:
    for since, until in spans:  # noqa: SIM110 - `any` takes twice as long
        if since <= start < until:
            return True
    return False


# -- waits and durations ------------------------------------------------------------------------------------

Times = list[int]
"""A sum in milliseconds, and then the number of values in each bucket."""


def times_of(lengths: Sequence[Millis]) -> Times:
    """Sum up waits or durations. A negative one counts as 0: the clocks of worker and store may differ."""
    ordered = sorted(lengths)
    if ordered[0] < 0:
        ordered = [max(0, length) for length in ordered]
    first = bisect_right(BOUNDS, ordered[0])
    if first == bisect_right(BOUNDS, ordered[-1]):
        times = [0] * (BUCKETS + 1)
        times[0], times[1 + first] = sum(ordered), len(ordered)
        return times
    ends = [bisect_left(ordered, bound) for bound in BOUNDS]
    return [sum(ordered), *(end - start for start, end in pairwise([0, *ends, len(ordered)]))]


def times_of_bucket(bucket: int, number: int, total: Millis) -> Times:
    times = [0] * (BUCKETS + 1)
    times[0], times[1 + bucket] = total, number
    return times


def bucket_of(length: Millis) -> int:
    return bisect_right(BOUNDS, length)
