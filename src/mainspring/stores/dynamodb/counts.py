"""How many jobs a queue has in each status: counted beside the writes, so an estimate.

Changes are added up in memory and written about once a second, beside the work, into one of several partitions, so that
none is written by all. A process that is killed takes up to a second of changes with it; `mainspring doctor --repair`
counts anew.
Finished jobs are counted under the day on which they expire: that day's count goes with them, without another write.
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
LIVE_DAY = "live"  # for what has no day of expiry

Tally = dict[tuple[str, str], Counter[str]]  # (queue, day) -> how many more of each status


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
        """What is to be written now; put it back with `restore` if that fails."""
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
    """Per queue; without the days before `today`, whose jobs are gone."""
    total: defaultdict[str, Counter[Status]] = defaultdict(Counter)
    for row in rows:
        queue, day = str(row["SK"]).rsplit("#", 1)
        if today is not None and day != LIVE_DAY and day < today:
            continue
        for status in Status:
            number = row.get(status.value, 0)
            total[queue][status] += int(number) if isinstance(number, int | float) else 0
    return {queue: Counter({s: n for s, n in counts.items() if n > 0}) for queue, counts in sorted(total.items())}
