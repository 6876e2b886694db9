"""The numbers of metrics, kept in dictionaries. The registry of prometheus_client collects from these series.

Its own classes need an object for each combination of labels, and a way to cap them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from threading import Lock

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from mainspring.metrics.catalog import Metric

Labels = tuple[str, ...]

OF_JOBS = (0.01, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)
"""Where the buckets of waits and durations end, in seconds: the same as those of the numbers over time."""

OF_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Where the buckets of calls end: of the store, of other systems, and of requests."""


class Counts:
    """A counter, with one number for each combination of labels."""

    def __init__(self, metric: Metric, more: Callable[[], Mapping[Labels, float]] = dict) -> None:
        """`more` returns numbers of the same metric that are counted elsewhere, with other labels."""
        self._metric = metric
        self._more = more
        self._lock = Lock()
        self._numbers: dict[Labels, float] = {}

    def add(self, labels: Labels, number: float = 1) -> None:
        with self._lock:
            self._numbers[labels] = self._numbers.get(labels, 0) + number

    def families(self) -> Iterable[Family]:
        with self._lock:
            numbers = dict(self._numbers)
        yield counters(self._metric, {**self._more(), **numbers})


class Timings:
    """A histogram, with one set of buckets for each combination of labels."""

    def __init__(self, metric: Metric, bounds: Sequence[float]) -> None:
        self._metric = metric
        self._bounds = bounds
        self._lock = Lock()
        self._buckets: dict[Labels, list[float]] = {}  # the sum, and how many are in each bucket

    def add(self, labels: Labels, seconds: float) -> None:
        seconds = max(seconds, 0.0)  # the clocks of two machines may differ
        place = bisect_left(self._bounds, seconds) + 1
        with self._lock:
            found = self._buckets.get(labels)
            if found is None:
                found = self._buckets[labels] = [0.0] * (len(self._bounds) + 2)
            found[0] += seconds
            found[place] += 1

    def families(self) -> Iterable[Family]:
        with self._lock:
            buckets = {labels: (found[0], found[1:]) for labels, found in self._buckets.items()}
        yield histograms(self._metric, self._bounds, buckets)


def counters(metric: Metric, numbers: Mapping[Labels, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, number in sorted(numbers.items()):
        family.add_metric(labels, number)
    return family


def gauges(metric: Metric, numbers: Mapping[Labels, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, number in sorted(numbers.items()):
        family.add_metric(labels, number)
    return family


def histograms(
    metric: Metric, bounds: Sequence[float], buckets: Mapping[Labels, tuple[float, Sequence[float]]]
) -> HistogramMetricFamily:
    """Return a histogram from sums and the number in each bucket. The last bucket has no end."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    for labels, (total, numbers) in sorted(buckets.items()):
        family.add_metric(labels, list(zip(ends, accumulate(numbers), strict=True)), total)
    return family
