"""Count the jobs of a queue by status. The counts are not part of the jobs' writes, so they are an estimate.

Changes are added up in memory. About once a second a background task writes them into one of several partitions, so
that no partition gets all the writes. A process that is killed loses up to a second of changes;
`mainspring doctor --repair` counts anew.
Finished jobs are counted under the day on which they expire. That day's count expires with them, without another write.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from mainspring.clock import Millis
from mainspring.job import FINISHED, Status

SLOTS = 4
FLUSH_EVERY = 1.0  # seconds
DAY: Millis = 86_400_000
LIVE_DAY = "live"  # for jobs that do not expire

Tally = dict[tuple[str, str], Counter[str]]  # (queue, day) -> change of each status


class Counts:
    def __init__(self) -> None:
        self._pending: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._flushed_at = -FLUSH_EVERY
        self.slot = random.randrange(SLOTS)  # noqa: S311 - spreads the load

    def add(self, queue: str, status: Status, number: int, day: str = LIVE_DAY) -> None:
        self._pending[queue, day][status.value] += number

    def due(self) -> bool:
        return bool(self._pending) and time.monotonic() - self._flushed_at >= FLUSH_EVERY

    def take(self) -> Tally:
        """Return the changes to write now. If writing fails, put them back with `restore`."""
        self._flushed_at = time.monotonic()
        taken, self._pending = self._pending, defaultdict(Counter)
        clean = {place: Counter({name: n for name, n in numbers.items() if n}) for place, numbers in taken.items()}
        return {place: numbers for place, numbers in clean.items() if numbers}

    def restore(self, tally: Tally) -> None:
        for place, numbers in tally.items():
            self._pending[place].update(numbers)


def day_of(status: Status, expires_at: str | None) -> str:
    return expires_at[:10] if status in FINISHED and expires_at else LIVE_DAY


def sum_up(rows: Iterable[Mapping[str, object]], today: str | None) -> dict[str, Counter[Status]]:
    """Add up the counts per queue, without days before `today`, whose jobs are gone."""
    total: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for row in rows:
        queue, day = str(row["SK"]).rsplit("#", 1)
        if today is not None and day != LIVE_DAY and day < today:
            continue
        for status in Status:
            number = row.get(status.value, 0)
            total[queue][status] += int(number) if isinstance(number, int | float) else 0
    return {queue: Counter({s: n for s, n in counts.items() if n > 0}) for queue, counts in sorted(total.items())}
