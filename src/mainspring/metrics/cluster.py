"""The metrics of all processes together, read from the store: the same on every process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from prometheus_client.metrics_core import Metric as Family

from mainspring.app import Mainspring
from mainspring.clock import Millis
from mainspring.features.breakers.rules import Phase
from mainspring.health import unreadable_now, within
from mainspring.job import Status
from mainspring.metrics import catalog
from mainspring.metrics.catalog import Metric
from mainspring.metrics.labels import MAX_NAMES, MAX_QUEUES, MAX_TASKS, OTHER, capped, capped_places
from mainspring.metrics.series import OF_JOBS, Labels, counters, gauges, histograms
from mainspring.numbers import Histogram, Numbers, Tally
from mainspring.stores.numbers import OTHER as OTHER_PLACES
from mainspring.stores.protocol import Stats
from mainspring.stores.unreadable import UnreadableJobs, unreadable_jobs

READ_TIMEOUT = 10.0  # seconds, as long as Prometheus waits by default
OPEN_GROUPS = 500  # failure groups whose dead letters are counted
SCHEDULES = "schedules"  # the collection of schedules in the store
STATES = {Phase.CLOSED: 0.0, Phase.HALF_OPEN: 1.0, Phase.OPEN: 2.0}
EVENTS = ("enqueued", "started", "completed", "retried", "dead", "cancelled", "stalled")


async def read_cluster(app: Mainspring) -> list[Family]:
    """Read the store. Raise StoreUnavailable if it does not answer in time."""
    return await within(READ_TIMEOUT, read_families(app))


async def read_families(app: Mainspring) -> list[Family]:
    stats, now = await app.stats(), app.now()
    found = list(of_stats(stats, now))
    found.append(of_unreadable(stats, await unreadable_jobs(app.store)))
    found.append(await unresolved(app))
    found.append(await lateness(app))
    states = {status.name: STATES[status.phase] for status in await app.breakers.list()}
    found.append(one_label(catalog.BREAKER_STATE, capped(states, MAX_NAMES, max)))
    found += await of_today(app, now)
    return found


# -- now ------------------------------------------------------------------------------------------


def of_stats(stats: Stats, now: datetime) -> Iterable[Family]:
    yield gauges(catalog.QUEUE_JOBS, dict(jobs_of(stats)))
    queues = {counts.queue: 0 for counts in stats.queues}
    yield of_queues(catalog.QUEUE_DUE, {**queues, **stats.due})
    yield ages(catalog.QUEUE_AGE, queues, stats.oldest_due, now)
    yield ages(catalog.DEAD_AGE, queues, stats.oldest_dead, now)
    paused = {halt.queue: 1 for halt in stats.halts if halt.queue is not None}
    yield one_label(catalog.QUEUE_PAUSED, capped({**queues, **paused}, MAX_QUEUES, max))
    yield gauges(catalog.HALTED, {(): float(any(halt.queue is None for halt in stats.halts))})
    yield gauges(catalog.JOBS_STALLED, {(): float(stats.stalled)})
    yield of_unknown(stats)
    yield from of_workers(stats)


def jobs_of(stats: Stats) -> Iterable[tuple[Labels, float]]:
    for status in Status:
        numbers = capped({counts.queue: counts[status] for counts in stats.queues}, MAX_QUEUES)
        for queue, number in numbers.items():
            yield (queue, status.value), float(number)


def of_queues(metric: Metric, numbers: Mapping[str, int]) -> Family:
    return one_label(metric, capped(numbers, MAX_QUEUES))


def ages(metric: Metric, queues: Mapping[str, int], since: Mapping[str, datetime], now: datetime) -> Family:
    found = {queue: max(0.0, (now - moment).total_seconds()) for queue, moment in since.items()}
    return one_label(metric, capped({**dict.fromkeys(queues, 0.0), **found}, MAX_QUEUES, max))


def of_unknown(stats: Stats) -> Family:
    numbers: Counter[str] = Counter()
    for line in stats.unknown_tasks:
        numbers[line.task] += line.due
    return one_label(catalog.UNKNOWN_JOBS, capped(numbers, MAX_TASKS))


def of_unreadable(stats: Stats, reports: Iterable[UnreadableJobs]) -> Family:
    queues = {counts.queue: 0 for counts in stats.queues}
    workers = {(jobs.queue, jobs.worker) for jobs in unreadable_now(stats, reports)}  # it may lack several keys
    return of_queues(catalog.UNREADABLE_WORKERS, {**queues, **Counter(queue for queue, _ in workers)})


def of_workers(stats: Stats) -> Iterable[Family]:
    alive = [worker for worker in stats.workers if worker.alive]
    remote = sum(worker.remote for worker in alive)
    yield one_label(catalog.WORKERS, {"local": len(alive) - remote, "remote": remote})
    slots = sum(worker.concurrency for worker in alive if not worker.remote)
    yield one_label(catalog.SLOTS, {"all": slots, "stuck": stats.stuck})


async def unresolved(app: Mainspring) -> Family:
    numbers: Counter[tuple[str, str]] = Counter()
    for group in (await app.failures.list(state="open", limit=OPEN_GROUPS)).groups:
        for queue, number in group.dead_in.items():
            numbers[queue, group.task] += number
    return gauges(catalog.DEAD_UNRESOLVED, capped_places(numbers))


async def lateness(app: Mainspring) -> Family:
    due = await app.store.due(SCHEDULES, limit=1)
    late: Millis = max((due.now - (document.due_at or due.now) for document in due.documents), default=0)
    return gauges(catalog.LATENESS, {(): max(0, late) / 1000})


# -- today ----------------------------------------------------------------------------------------


async def of_today(app: Mainspring, now: datetime) -> list[Family]:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if now == midnight:  # nothing has happened yet
        return []
    by_queue = groups_of(await app.numbers(since=midnight, until=now, step="day", by="queue"))
    by_task = groups_of(await app.numbers(since=midnight, until=now, step="day", by="task"))
    waits = {queue: tally.wait for queue, tally in by_queue.items()}
    durations = {task: tally.duration for task, tally in by_task.items()}
    return [
        events_of(catalog.TODAY_JOBS, by_queue, MAX_QUEUES),
        events_of(catalog.TODAY_TASK_JOBS, by_task, MAX_TASKS),
        times_of(catalog.TODAY_WAIT, waits, MAX_QUEUES),
        times_of(catalog.TODAY_DURATION, durations, MAX_TASKS),
    ]


def groups_of(numbers: Numbers) -> dict[str, Tally]:
    return {OTHER if name == OTHER_PLACES else name: part.total for name, part in numbers.groups.items()}


def events_of(metric: Metric, tallies: Mapping[str, Tally], cap: int) -> Family:
    found: dict[Labels, float] = {}
    for event in EVENTS:
        numbers = {name: int(getattr(tally, event)) for name, tally in tallies.items()}
        found |= {(name, event): float(number) for name, number in capped(numbers, cap).items()}
    return counters(metric, found)


def times_of(metric: Metric, times: Mapping[str, Histogram], cap: int) -> Family:
    sums = capped({name: each.total for name, each in times.items()}, cap)
    columns = [
        capped({name: each.buckets[place] for name, each in times.items()}, cap) for place in range(len(OF_JOBS) + 1)
    ]
    return histograms(
        metric, OF_JOBS, {(name,): (total, [column[name] for column in columns]) for name, total in sums.items()}
    )


def one_label(metric: Metric, numbers: Mapping[str, float]) -> Family:
    return gauges(metric, {(name,): float(number) for name, number in numbers.items()})
