"""What is counted on the way of every job, in one cell for each pair of queue and task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from threading import Lock

from prometheus_client.metrics_core import Metric as Family

from mainspring.clock import Millis
from mainspring.job import Claim
from mainspring.metrics import catalog
from mainspring.metrics.labels import Places
from mainspring.metrics.series import OF_JOBS, Labels, counters, histograms

BOUNDS: tuple[Millis, ...] = tuple(round(bound * 1000) for bound in OF_JOBS)
Times = list[int]
"""A sum of milliseconds, and then how many were in each bucket."""


def no_times() -> Times:
    return [0] * (len(BOUNDS) + 2)


class Cell:
    """The numbers of one queue and task. Several pairs share a cell if they are shown under the same names."""

    __slots__ = ("completed", "durations", "started", "waits")

    def __init__(self, waits: Times) -> None:
        self.started = 0
        self.completed = 0
        self.durations = no_times()
        self.waits = waits  # those of the queue


class JobCells:
    """Starts, successes, waits and durations of jobs. An update takes a microsecond: one lookup and one lock."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lock = Lock()
        self._of_names: dict[tuple[str, str], Cell] = {}  # by queue and task
        self._shown: dict[tuple[str, str], Cell] = {}  # by the values of the labels
        self._waits: dict[str, Times] = {}  # by the label of the queue

    def started(self, claim: Claim, lateness: Millis) -> None:
        cell = self._of_names.get((claim.queue, claim.task)) or self._cell(claim.queue, claim.task)
        lateness = lateness if lateness > 0 else 0  # noqa: FURB136 - max() takes longer. The clocks may differ
        place = bisect_left(BOUNDS, lateness) + 1
        with self._lock:
            cell.started += 1
            waits = cell.waits
            waits[0] += lateness
            waits[place] += 1

    def completed(self, claim: Claim, duration: Millis) -> None:
        cell = self._of_names.get((claim.queue, claim.task)) or self._cell(claim.queue, claim.task)
        duration = duration if duration > 0 else 0  # noqa: FURB136
        place = bisect_left(BOUNDS, duration) + 1
        with self._lock:
            cell.completed += 1
            durations = cell.durations
            durations[0] += duration
            durations[place] += 1

    def failed(self, queue: str, task: str, seconds: float) -> None:
        """Count how long a run took that failed."""
        cell, duration = self._cell(queue, task), max(0, round(seconds * 1000))
        with self._lock:
            cell.durations[0] += duration
            cell.durations[bisect_left(BOUNDS, duration) + 1] += 1

    def _cell(self, queue: str, task: str) -> Cell:
        """Return the cell of a queue and task. Pairs beyond the cap are looked up each time."""
        shown = self._places[queue, task]
        with self._lock:
            cell = self._shown.get(shown)
            if cell is None:
                cell = self._shown[shown] = Cell(self._waits.setdefault(shown[0], no_times()))
            if shown == (queue, task):
                self._of_names[queue, task] = cell
            return cell

    # -- what they are shown as -------------------------------------------------------------------

    def families(self) -> Iterable[Family]:
        with self._lock:
            started: dict[Labels, float] = {labels: cell.started for labels, cell in self._shown.items()}
            durations = {labels: list(cell.durations) for labels, cell in self._shown.items()}
            waits = {(queue,): list(times) for queue, times in self._waits.items()}
        yield counters(catalog.STARTED, started)
        yield histograms(catalog.DURATION, OF_JOBS, {labels: in_seconds(times) for labels, times in durations.items()})
        yield histograms(catalog.WAIT, OF_JOBS, {labels: in_seconds(times) for labels, times in waits.items()})

    def successes(self) -> dict[Labels, float]:
        with self._lock:
            return {(*labels, "completed"): cell.completed for labels, cell in self._shown.items()}


def in_seconds(times: Times) -> tuple[float, list[int]]:
    return times[0] / 1000, times[1:]
