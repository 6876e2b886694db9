"""The metrics of one process: what its own workers, enqueues, requests and store calls did."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mainspring.app import Mainspring
from mainspring.events import (
    JobCancelled,
    JobDeadLettered,
    JobReleased,
    JobRetrying,
    JobSnoozed,
    JobStalled,
    JobSuspended,
    OccasionFired,
    OccasionSkipped,
    RunEvent,
    ScheduleFired,
    ScheduleSkipped,
    WorkerHeartbeat,
)
from mainspring.job import Inserted, NewJob
from mainspring.meter import Via
from mainspring.metrics import catalog
from mainspring.metrics.catalog import Metric
from mainspring.metrics.job_cells import JobCells
from mainspring.metrics.labels import MAX_NAMES, Names, Places
from mainspring.metrics.series import OF_CALLS, Counts, Timings, gauges
from mainspring.metrics.store_timing import time_operations
from mainspring.stores.protocol import Measured

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CALL_OUTCOMES = {True: "good", False: "bad", None: "ignored"}


class ProcessMetrics(Collector):
    """Counts what happens in this process. The application's event bus calls it; it is a `Meter`.

    A forked child starts with the numbers of its parent, but it is another process to the monitoring system.
    """

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._places = Places()
        self._names = defaultdict[str, Names](lambda: Names(MAX_NAMES))  # by label
        self._heartbeat = 0.0
        self._probes: defaultdict[Metric, list[Callable[[], float]]] = defaultdict(list)
        self._make_series()
        self._subscribe()
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.registry.register(self)

    def _make_series(self) -> None:
        self._enqueued, self._deduplicated = Counts(catalog.ENQUEUED), Counts(catalog.DEDUPLICATED)
        self._jobs = JobCells(self._places)
        self.started, self.completed = self._jobs.started, self._jobs.completed  # see `Meter`
        self._finished = Counts(catalog.FINISHED, more=self._jobs.successes)
        self._retried, self._stalled = Counts(catalog.RETRIED), Counts(catalog.STALLED)
        self._deferred = Counts(catalog.DEFERRED)
        self._schedules, self._schedules_skipped = Counts(catalog.SCHEDULES_FIRED), Counts(catalog.SCHEDULES_SKIPPED)
        self._occasions, self._occasions_skipped = Counts(catalog.OCCASIONS_FIRED), Counts(catalog.OCCASIONS_SKIPPED)
        self._calls, self._call_times = Counts(catalog.BREAKER_CALLS), Timings(catalog.BREAKER_SECONDS, OF_CALLS)
        self._deliveries = Counts(catalog.DELIVERIES)
        self._delivery_times = Timings(catalog.DELIVERY_SECONDS, OF_CALLS)
        self._requests = Timings(catalog.HTTP_SECONDS, OF_CALLS)
        store_times, store_errors = Timings(catalog.STORE_SECONDS, OF_CALLS), Counts(catalog.STORE_ERRORS)
        time_operations(self._app.store, store_times, store_errors)
        self._series: Sequence[Counts | Timings | JobCells] = (
            self._enqueued, self._deduplicated, self._jobs, self._finished, self._retried, self._stalled,
            self._deferred, self._schedules, self._schedules_skipped, self._occasions, self._occasions_skipped,
            self._calls, self._call_times, self._deliveries, self._delivery_times, store_times, store_errors,
            self._requests,
        )  # fmt: skip

    # -- on the way of every job: see mainspring.meter ------------------------------------------

    def enqueued(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted], via: Via) -> None:
        if len(jobs) == len(inserted) == 1:  # as most enqueues; the counter below takes longer than the rest
            self._count_enqueued(jobs[0].queue, jobs[0].task, via, inserted[0].created, 1)
            return
        found = Counter([(job.queue, job.task, entry.created) for job, entry in zip(jobs, inserted, strict=False)])
        for (queue, task, created), number in found.items():
            self._count_enqueued(queue, task, via, created, number)

    def _count_enqueued(self, queue: str, task: str, via: Via, created: bool, number: int) -> None:  # noqa: FBT001
        place = self._places[queue, task]
        if created:
            self._enqueued.add((*place, via), number)
        else:
            self._deduplicated.add(place, number)

    # -- less often -------------------------------------------------------------------------------

    def called(self, breaker: str, seconds: float, *, well: bool | None) -> None:
        name = self._names["name"][breaker]
        self._calls.add((name, CALL_OUTCOMES[well]))
        self._call_times.add((name,), seconds)

    def delivered(self, channel: str, seconds: float, *, sent: bool) -> None:
        name = self._names["channel"][channel]
        self._deliveries.add((name, "sent" if sent else "failed"))
        self._delivery_times.add((name,), seconds)

    def requested(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.add(
            (self._names["route"][route], method if method in METHODS else "other", str(status)), seconds
        )

    def _subscribe(self) -> None:
        bus = self._app.runtime.bus
        bus.meter = self
        bus.subscribe_directly(JobRetrying, self._on_retry)
        bus.subscribe_directly(JobDeadLettered, self._on_dead_letter)
        bus.subscribe_directly(JobCancelled, lambda event: self._finished.add((*self._place(event), "cancelled")))
        bus.subscribe_directly(JobStalled, lambda event: self._stalled.add(self._place(event)))
        bus.subscribe_directly(JobSnoozed, lambda event: self._deferred.add((*self._place(event), "snoozed")))
        bus.subscribe_directly(JobSuspended, lambda event: self._deferred.add((*self._place(event), "suspended")))
        bus.subscribe_directly(JobReleased, lambda event: self._deferred.add((*self._place(event), "released")))
        bus.subscribe_directly(ScheduleFired, lambda event: self._schedules.add((self._schedule(event),)))
        bus.subscribe_directly(ScheduleSkipped, self._on_skipped)
        bus.subscribe_directly(OccasionFired, lambda event: self._occasions.add((self._kind(event),)))
        bus.subscribe_directly(
            OccasionSkipped, lambda event: self._occasions_skipped.add((self._kind(event), event.reason))
        )
        bus.subscribe_directly(WorkerHeartbeat, self._on_heartbeat)

    def _place(self, event: RunEvent | JobCancelled) -> tuple[str, str]:
        return self._places[event.queue, event.task]

    def _schedule(self, event: ScheduleFired | ScheduleSkipped) -> str:
        return self._names["schedule"][event.schedule]

    def _kind(self, event: OccasionFired | OccasionSkipped) -> str:
        return self._names["kind"][event.kind]

    def _on_retry(self, event: JobRetrying) -> None:
        self._retried.add((*self._place(event), event.reason))
        self._jobs.failed(event.queue, event.task, event.duration)

    def _on_dead_letter(self, event: JobDeadLettered) -> None:
        self._finished.add((*self._place(event), "dead_letter"))
        self._jobs.failed(event.queue, event.task, event.duration)

    def _on_skipped(self, event: ScheduleSkipped) -> None:
        self._schedules_skipped.add((self._schedule(event), event.reason), event.count)

    def _on_heartbeat(self, _event: WorkerHeartbeat) -> None:
        self._heartbeat = time.time()

    # -- what is read when it is asked for --------------------------------------------------------

    def watch(self, metric: Metric, read: Callable[[], float]) -> None:
        """Show what this function returns. The numbers of several functions for one metric are added up."""
        self._probes[metric].append(read)

    def collect(self) -> Iterable[Family]:
        for series in self._series:
            yield from series.families()
        yield gauges(catalog.RUNNING, self._running())
        yield gauges(catalog.HEARTBEAT, {(): self._heartbeat} if self._heartbeat else {})
        yield gauges(catalog.STORE_UP, {(): float(self._app.runtime.contact.lost_at is None)})
        yield from self._of_driver()
        for metric in (catalog.SSE_CLIENTS, catalog.FEED_LAG):
            yield gauges(metric, {(): sum(read() for read in self._probes[metric])} if metric in self._probes else {})
        yield gauges(catalog.BUILD, {(version("mainspring"),): 1.0})

    def _running(self) -> dict[tuple[str, ...], float]:
        """Return the running jobs by queue. A queue whose jobs have all ended stays, with 0."""
        found = Counter(dict.fromkeys(self._places.queues, 0))
        for runs in list(self._app.runtime.live_runs.values()):
            for queue, number in runs.queues().items():
                found[self._places.queue(queue)] += number
        return {(queue,): float(number) for queue, number in found.items()}

    def _of_driver(self) -> Iterable[Family]:
        store = self._app.store
        measures = store.measures() if isinstance(store, Measured) else {}
        connections: dict[tuple[str, ...], float] = {}
        if "connections" in measures:
            active = measures["connections_in_use"]
            connections = {("active",): active, ("idle",): measures["connections"] - active}
            connections["limit",] = measures["connections_limit"]
        yield gauges(catalog.STORE_CONNECTIONS, connections)
        yield gauges(catalog.STORE_MEASURE, {(name,): float(number) for name, number in measures.items()})
