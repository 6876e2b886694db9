"""Numbers over time, made from the entries of the change feed.

The feed records in the same commit what happened, with the number of jobs and their waits or durations. So the numbers
need no writes of their own: now and then a store folds the new entries, which means that it adds them to the numbers,
and notes up to where it has folded. Until then, readers add those entries up themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mainspring.clock import Millis
from mainspring.stores.feed import ChangeKind
from mainspring.stores.numbers import MAX_PLACES, OTHER, Counts, Line, Measure, Period, slot

MEASURES = {
    ChangeKind.CREATED: Measure.ENQUEUED,
    ChangeKind.STARTED: Measure.STARTED,
    ChangeKind.COMPLETED: Measure.COMPLETED,
    ChangeKind.RETRYING: Measure.RETRIED,
    ChangeKind.DEAD_LETTERED: Measure.DEAD,
    ChangeKind.CANCELLED: Measure.CANCELLED,
    ChangeKind.STALLED: Measure.STALLED,
}
TIMED = frozenset({ChangeKind.COMPLETED, ChangeKind.RETRYING, ChangeKind.DEAD_LETTERED})  # kinds that end an attempt

KINDS = ", ".join(f"'{kind}'" for kind in MEASURES)
MEASURE = f"CASE kind {' '.join(f'WHEN {kind.value!r} THEN {code:d}' for kind, code in MEASURES.items())} END"
SUM = f"CASE kind WHEN '{ChangeKind.STARTED}' THEN {Measure.WAIT:d} ELSE {Measure.DURATION:d} END"
"""SQL that stores share: the kinds that count, the measure of a kind, and that of the sum of its times."""

Row = tuple[Millis, str, str, int, int, int]
"""Entries of the feed, added up: minute, queue, task, measure, bucket, number."""


def spread(rows: Iterable[Row]) -> list[Line]:
    """Return the lines to which the entries add: for each period, and also for all tasks of a queue, and for all."""
    found: dict[tuple[Period, Millis, str, str], Counts] = {}
    for minute, queue, task, measure, bucket, number in rows:
        key = slot(measure, bucket)
        for period in Period:
            start = minute - minute % period.length
            for place in ((task, queue), ("", queue), ("", "")):
                counts = found.setdefault((period, start, *place), {})
                counts[key] = counts.get(key, 0) + number
    return [Line(*place, counts) for place, counts in found.items()]


def within_limit(rows: list[Row], known: Collection[tuple[str, str]]) -> Iterator[Row]:
    """Count under OTHER what is not of a known queue and task, once MAX_PLACES of them are known."""
    named = set(known)
    for minute, queue, task, *rest in rows:
        if (task, queue) not in named and len(named) < MAX_PLACES:
            named.add((task, queue))
        place = (queue, task) if (task, queue) in named else (OTHER, OTHER)
        yield (minute, *place, *rest)  # type: ignore[misc]
