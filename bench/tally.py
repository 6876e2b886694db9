"""What the handlers of all worker processes count, in files that the measuring process can read at any time.

The handler of every peer does one thing: it calls `mark`. The clock of a drain starts when each worker process has its
first job in hand; so the first call waits until all the others have got that far.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import TYPE_CHECKING

from bench.peer import here

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = "BENCH_WORKERS"  # how many worker processes there are
SAMPLES = "BENCH_SAMPLES"  # how many lags to keep; a job's lag is the time at its start minus its number
COUNT, FIRST, LAST, HEADER = range(4)
WIDTH = 8
MEETING_SECONDS = 60.0


class Tally:
    """A count, the times of the first and last job and, if wanted, the lags of the first so many."""

    def __init__(self, path: Path, samples: int) -> None:
        self.samples = samples
        size = (HEADER + samples) * WIDTH
        with path.open("a+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._cells = memoryview(self._map).cast("q")
        self._lock = threading.Lock()

    def add(self, jobs: int, number: int) -> None:
        cells = self._cells
        with self._lock:
            now = time.time_ns()
            count = cells[COUNT]
            if count < self.samples:
                cells[HEADER + count] = now - number
            cells[LAST] = now
            cells[COUNT] = count + jobs

    def start(self) -> None:
        self._cells[FIRST] = time.time_ns()

    @property
    def count(self) -> int:
        return self._cells[COUNT]

    @property
    def first(self) -> int:
        return self._cells[FIRST]

    @property
    def last(self) -> int:
        return self._cells[LAST]

    def lags(self) -> list[int]:
        return list(self._cells[HEADER : HEADER + min(self.count, self.samples)])


_mine: Tally | None = None
_making = threading.Lock()


def mark(number: int, jobs: int = 1) -> None:
    """Count one job, or a batch of them, as started by this process."""
    (_mine or _join()).add(jobs, number)


def _join() -> Tally:
    global _mine  # noqa: PLW0603 - one per process, made by its first job
    with _making:
        if _mine is None:
            place, _ = here()
            tally = Tally(place / f"tally-{os.getpid()}", int(os.environ.get(SAMPLES, "0")))
            _meet(place, int(os.environ.get(WORKERS, "1")))
            tally.start()
            _mine = tally
    return _mine


def _meet(place: Path, workers: int) -> None:
    deadline = time.monotonic() + MEETING_SECONDS
    while len(list(place.glob("tally-*"))) < workers and time.monotonic() < deadline:
        time.sleep(0.001)
