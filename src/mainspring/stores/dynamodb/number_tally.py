"""What this process has counted for the numbers over time, and not written yet."""

from __future__ import annotations

import time
from collections import Counter

from mainspring.clock import Millis
from mainspring.job import Status
from mainspring.stores.engine.numbers import Row, within_limit
from mainspring.stores.numbers import MINUTE, Measure, bucket_of

FLUSH_EVERY = 5.0  # seconds; each write is billed
ENDS = {
    Status.COMPLETED: Measure.COMPLETED,
    Status.RETRYING: Measure.RETRIED,
    Status.DEAD_LETTER: Measure.DEAD,
    Status.CANCELLED: Measure.CANCELLED,
}

Key = tuple[Millis, str, str, int, int]


class NumberTally:
    def __init__(self) -> None:
        self._pending: Counter[Key] = Counter()
        self._flushed_at = time.monotonic()
        self._places: set[tuple[str, str]] = set()  # those that this process counts by name

    def add(
        self, now: Millis, queue: str, task: str, measure: Measure, length: Millis | None = None, *, number: int = 1
    ) -> None:
        """Count a job. `length` is its wait or its duration, if the measure has one."""
        minute = now - now % MINUTE
        self._pending[minute, queue, task, measure, 0 if length is None else bucket_of(length)] += number
        if length is not None and length > 0:
            total = Measure.WAIT if measure is Measure.STARTED else Measure.DURATION
            self._pending[minute, queue, task, total, 0] += length * number

    def take_start_back(self, now: Millis, queue: str, task: str, waited: Millis) -> None:
        """Count a start less: the claimed job was held back, and its handler was not called."""
        self.add(now, queue, task, Measure.STARTED, waited, number=-1)

    def add_end(self, now: Millis, queue: str, task: str, status: Status, duration: Millis) -> None:
        """Count the end of a run, unless the job was snoozed, released or suspended."""
        if (measure := ENDS.get(status)) is not None:
            self.add(now, queue, task, measure, None if measure is Measure.CANCELLED else duration)

    def due(self) -> bool:
        return bool(self._pending) and time.monotonic() - self._flushed_at >= FLUSH_EVERY

    def take(self) -> list[Row]:
        """Return what is to be written now."""
        self._flushed_at = time.monotonic()
        taken, self._pending = self._pending, Counter()
        rows = list(within_limit([(*key, number) for key, number in taken.items()], self._places))
        self._places.update((task, queue) for _, queue, task, *_ in rows)
        return rows
