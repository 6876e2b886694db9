"""A small health report for a probe, a dashboard or a person, the same on every store.

| state    | means                                                                                        |
|----------|----------------------------------------------------------------------------------------------|
| ok       | the store answers, and workers take the jobs that are due                                    |
| degraded | the store answers, but there is a problem: jobs wait too long; no worker takes them or knows |
|          | their tasks; no worker takes over from dead ones; workers lack the key to decrypt jobs, or   |
|          | are not notified of new ones; slots of workers are stuck; a worker in this process cannot    |
|          | reach the store; another process keeps the store locked; the service throttles it; or the    |
|          | clock jumped and has not settled                                                             |
| down     | the store does not answer; `lost_at` and `error` say since when and why                      |
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from mainspring.clock import SETTLE_SECONDS, Clock, SteadyClock, to_datetime
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.events import Bus, StoreBack, StoreLost, StoreThrottled, ThrottlingOver
from mainspring.halt_check import Verdict
from mainspring.queue_patterns import is_among
from mainspring.stores.protocol import DueTask, Locking, Stats, Store, WorkerInfo, shown_due
from mainspring.stores.unreadable import UnreadableJobs, unreadable_jobs

T = TypeVar("T")

MAX_LATENESS = timedelta(minutes=5)
TIMEOUT = 5.0  # seconds
PROBE = "health"  # the name under which `Contact` knows the health check


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    at: datetime
    store: str  # its URL, without secrets
    problems: tuple[str, ...] = ()  # one sentence each
    reachable: bool = True  # the store answered this check
    lost_at: datetime | None = None  # since when the store has not answered this process; None: it answers
    error: str = ""  # the last error, if the store does not answer
    workers: int | None = None  # number of live workers, on all machines; None: not known
    polling: tuple[str, ...] = ()  # workers that are not notified of new jobs and poll for them instead
    stuck: Mapping[str, int] = field(default_factory=dict)  # worker -> slots whose job was told to stop but goes on
    unattended: tuple[str, ...] = ()  # queues with due jobs that no live worker takes
    unknown_tasks: tuple[DueTask, ...] = ()  # due jobs whose task no live worker of their queue knows
    unreadable: tuple[UnreadableJobs, ...] = ()  # jobs that live workers have met in the last minute but cannot decrypt
    oldest_due: datetime | None = None  # when the oldest job that could run now was due; None: there is none
    oldest_in: str = ""  # the queue of that job
    stalled: int = 0  # jobs that run longer than their timeout and grace
    oldest_dead: Mapping[str, datetime] = field(default_factory=dict)  # queue -> when its oldest dead letter failed
    halted: bool = False  # the whole system is halted; that is deliberate, so it is not a problem
    halt_reason: str = ""  # why another system has halted the jobs, see `Mainspring(halted=…)`
    measures: Mapping[str, float] = field(default_factory=dict)  # what the store counts for this process, if it does


class Contact:
    """Whether the store answers, as seen by its callers in this process: workers and health checks.

    The store is lost when a caller gets no answer, and back when all callers that got none have got one. Threads with
    an event loop may call the methods; that loop runs the coroutines that subscribed to the events.
    """

    def __init__(self, store: str, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._lock = threading.Lock()
        self._failing: set[str] = set()  # callers that got no answer
        self._lost = 0.0  # when that began, by the monotonic clock
        self._throttled = False
        self.lost_at: datetime | None = None
        self.error = ""
        self.clock = ""  # what a worker of this process has found wrong with the clock

    def failed(self, caller: str, error: Exception) -> None:
        with self._lock:
            is_new = not self._failing
            self._failing.add(caller)
            self.error = f"{type(error).__name__}: {error}"
            if is_new:
                self.lost_at, self._lost = datetime.now(UTC), time.monotonic()
        if is_new:
            self._bus.emit(StoreLost(store=self._store, error=self.error))

    def answered(self, caller: str) -> None:
        if caller not in self._failing:  # nearly always
            return
        with self._lock:
            self._failing.discard(caller)
            is_back = not self._failing
            gone_for = round(time.monotonic() - self._lost, 3)
            if is_back:
                self.lost_at = None
        if is_back:
            self._bus.emit(StoreBack(store=self._store, gone_for=gone_for))

    def measured(self, measures: Mapping[str, float]) -> None:
        """Emit an event if throttling began or ended, by what the store has counted. Workers call this regularly."""
        throttled = is_throttled(measures)
        with self._lock:
            is_new = throttled != self._throttled
            self._throttled = throttled
        if is_new:
            kind = StoreThrottled if throttled else ThrottlingOver
            self._bus.emit(kind(store=self._store, measures=measures))

    def forget(self, caller: str) -> None:
        """Drop a caller that makes no more calls, without claiming that the store is back."""
        with self._lock:
            self._failing.discard(caller)
            if not self._failing:
                self.lost_at = None


def is_throttled(measures: Mapping[str, float]) -> bool:
    return measures.get("throttling", 0) > 0


async def examine(
    store: Store, contact: Contact, *, max_lateness: timedelta = MAX_LATENESS, timeout: float = TIMEOUT
) -> Health:
    try:
        stats, reports = await within(timeout, read_store(store))
    except Exception as error:  # noqa: BLE001 - any error means that the store is down
        contact.failed(PROBE, error)
        now, problem = datetime.now(UTC), f"the store does not answer: {error}"
        lost_at, why = contact.lost_at or now, contact.error
        return Health(State.DOWN, now, store.url, (problem,), reachable=False, lost_at=lost_at, error=why)
    contact.answered(PROBE)
    health = judge(stats, to_datetime(store.clock.now()), store.url, max_lateness, reports)
    for problem in (clock_problem(store.clock) or contact.clock, await write_problem(store, timeout)):
        if problem:
            health = replace(health, state=State.DEGRADED, problems=(problem, *health.problems))
    if contact.lost_at is None:
        return health
    problems = (f"a worker here gets no answer: {contact.error}", *health.problems)
    return replace(health, state=State.DEGRADED, problems=problems, lost_at=contact.lost_at, error=contact.error)


async def read_store(store: Store) -> tuple[Stats, list[UnreadableJobs]]:
    return await store.stats(), await unreadable_jobs(store)


def with_outside(health: Health, verdict: Verdict, *, strict: bool) -> Health:
    """Add what another system says, see `Mainspring(halted=…)`. Its halt is deliberate, but a failed check is not."""
    if verdict.halted:
        return replace(health, halted=True, halt_reason=verdict.reason)
    if not verdict.error:
        return health
    effect = "no job starts" if strict else "jobs start without it"
    problems = (f"the halt check failed, so {effect}: {verdict.error}", *health.problems)
    state = State.DEGRADED if health.state is State.OK else health.state
    return replace(health, state=state, problems=problems, halted=health.halted or strict, halt_reason=verdict.error)


def clock_problem(clock: Clock) -> str:
    """Return what is wrong with the clock; empty if nothing is."""
    departure = clock.departure if isinstance(clock, SteadyClock) else None
    if departure is None:
        return ""
    where = "ahead" if departure.by > 0 else "back"
    return (
        f"the machine's clock jumped {abs(departure.by) / 1000:.0f} s {where}; jobs go by the old time until the clock "
        f"has kept its new time for {SETTLE_SECONDS:.0f} s"
    )


async def write_problem(store: Store, timeout: float) -> str:
    """Return why nothing can be written; empty if writes work.

    Where one process at a time can write, a process that is stopped while it writes blocks all others.
    """
    if not isinstance(store, Locking):
        return ""
    try:
        await within(timeout, store.wait_to_write())
    except StoreUnavailable:
        return (
            f"nothing can be written: another process has kept the store locked for {timeout:g} s. If it was stopped "
            "in the middle of a commit, let it continue or kill it"
        )
    except StoreError as error:
        return f"nothing can be written: {error}"
    return ""


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work, or raise StoreUnavailable when the time is over.

    The work is cancelled, but not awaited: if the server does not answer, cancelling can take as long as waiting.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if done:
        return task.result()
    msg = f"no answer within {seconds:g} s"
    raise StoreUnavailable(msg)


def judge(
    stats: Stats,
    now: datetime,
    store: str,
    max_lateness: timedelta = MAX_LATENESS,
    reports: Iterable[UnreadableJobs] = (),
) -> Health:
    alive = [worker for worker in stats.workers if worker.alive]
    served = {queue for worker in alive for queue in worker.queues}
    waiting = {queue: oldest for queue, oldest in stats.oldest_due.items() if not is_halted(stats, queue)}
    unattended = tuple(sorted(queue for queue in waiting if not is_among(queue, served)))
    oldest_in = min(waiting, key=lambda queue: waiting[queue], default="")
    polling = tuple(worker.id for worker in alive if worker.polling)
    unknown = tuple(task for task in stats.unknown_tasks if not is_halted(stats, task.queue))
    unreadable = unreadable_now(stats, reports)
    problems = []
    if unattended:
        problems.append(f"jobs are due that no worker takes, in: {', '.join(unattended)}")
    problems += [
        f"no live worker of queue {task.queue} knows task {task.task} ({shown_due(task.due)} due)" for task in unknown
    ]
    problems += describe_unreadable(unreadable)
    problems += describe_missing_worker(stats.workers)
    if oldest_in and now - waiting[oldest_in] > max_lateness:
        seconds = (now - waiting[oldest_in]).total_seconds()
        problems.append(f"the oldest job of queue {oldest_in} has been due for {seconds:.0f} s")
    if is_throttled(stats.measures):
        refused, calls = (int(stats.measures[name]) for name in ("throttled", "calls"))
        problems.append(f"the store's service throttles this process: {refused:,} of {calls:,} calls so far")
    problems += [describe_stuck(worker) for worker in alive if worker.stuck]
    if polling:
        problems.append(f"workers are not notified of new jobs and poll for them: {', '.join(polling)}")
    return Health(
        State.DEGRADED if problems else State.OK,
        now,
        store,
        tuple(problems),
        workers=len(alive),
        polling=polling,
        stuck={worker.id: worker.stuck for worker in alive if worker.stuck},
        unattended=unattended,
        unknown_tasks=unknown,
        unreadable=unreadable,
        oldest_due=waiting.get(oldest_in),
        oldest_in=oldest_in,
        stalled=stats.stalled,
        oldest_dead=stats.oldest_dead,
        halted=any(halt.queue is None for halt in stats.halts),
        measures=stats.measures,
    )


def unreadable_now(stats: Stats, reports: Iterable[UnreadableJobs]) -> tuple[UnreadableJobs, ...]:
    """Return the reports of live workers about queues that are not halted."""
    alive = {worker.id for worker in stats.workers if worker.alive}
    return tuple(jobs for jobs in reports if jobs.worker in alive and not is_halted(stats, jobs.queue))


def describe_unreadable(reports: Iterable[UnreadableJobs]) -> list[str]:
    """Return a sentence for each queue and key."""
    found: dict[tuple[str, str, bool], list[UnreadableJobs]] = {}
    for jobs in reports:
        found.setdefault((jobs.queue, jobs.key, jobs.has_key), []).append(jobs)
    return [describe_key(*about, jobs) for about, jobs in sorted(found.items())]


def describe_key(queue: str, key: str, has_key: bool, reports: Sequence[UnreadableJobs]) -> str:  # noqa: FBT001 - a field
    workers = ", ".join(sorted({jobs.worker for jobs in reports}))
    if has_key:
        return (
            f"job {reports[-1].job_id} of queue {queue} cannot be decrypted with key {key}, which worker {workers} has:"
            " what is stored was changed. Restore it from a backup, or cancel the job"
        )
    return (
        f"jobs of queue {queue} cannot be decrypted without key {key}, which these workers lack: {workers}. Add the key"
        " to their MAINSPRING_ENCRYPTION_KEYS and restart them"
    )


def describe_missing_worker(workers: Iterable[WorkerInfo]) -> list[str]:
    """Return what is left undone because only programs that lease jobs are alive, or no worker at all."""
    workers = list(workers)
    if any(worker.alive and not worker.remote for worker in workers):
        return []
    problems = []
    if dead := sorted(worker.id for worker in workers if not worker.alive):
        problems.append(
            f"no worker takes over the jobs of workers that have died: {', '.join(dead)}. Start one with `mainspring"
            " worker`"
        )
    if any(worker.alive for worker in workers):
        problems.append(
            "only programs that lease jobs are alive, and no worker of Mainspring: schedules do not fire, batches do"
            " not end, and no jobs are taken over from programs that die. Start one with `mainspring worker`"
        )
    return problems


def describe_stuck(worker: WorkerInfo) -> str:
    slots = f"{worker.stuck} of {worker.concurrency} slots of worker {worker.id}"
    if worker.stuck == 1:
        return f"{slots} is stuck: its job was told to stop but does not end"
    return f"{slots} are stuck: their jobs were told to stop but do not end"


def is_halted(stats: Stats, queue: str) -> bool:
    return any(halt.queue in {None, queue} for halt in stats.halts)
