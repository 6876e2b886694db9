"""Is all well? A small report for a probe, a dashboard or a person, the same on every store.

| state    | means                                                                                        |
|----------|----------------------------------------------------------------------------------------------|
| ok       | the store answers, and what is due is taken                                                  |
| degraded | it answers, but jobs wait too long, no worker takes them or knows their tasks, workers       |
|          | cannot hear of new ones, slots of workers are stuck, one in this process does not get        |
|          | through to it, another process keeps it locked, the service throttles it, or the clock       |
|          | jumped and has not settled yet                                                               |
| down     | it does not answer; `lost_at` and `error` say since when and why                             |
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from mainspring.clock import SETTLE, Clock, SteadyClock, to_datetime
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.events import Bus, StoreBack, StoreLost, StoreThrottled, ThrottlingOver
from mainspring.stores.protocol import EVERY_QUEUE, DueTask, Locking, Stats, Store, WorkerInfo, shown_due

T = TypeVar("T")

LATE = timedelta(minutes=5)
TIMEOUT = 5.0  # seconds
PROBE = "health"  # who asks


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    at: datetime
    store: str  # its URL, without secrets
    problems: tuple[str, ...] = ()  # what is not as it should be, a sentence each
    reachable: bool = True  # it answered just now
    lost_at: datetime | None = None  # since when this process, or a worker in it, has had no answer; None: it has
    error: str = ""  # the last, if so
    workers: int | None = None  # alive, anywhere; None: nobody knows
    polling: tuple[str, ...] = ()  # workers that cannot hear of new jobs and look now and then
    stuck: Mapping[str, int] = field(default_factory=dict)  # worker -> slots whose job was told to stop and goes on
    unattended: tuple[str, ...] = ()  # queues with due jobs that no living worker takes
    unknown_tasks: tuple[DueTask, ...] = ()  # due jobs whose task no live worker of their queue knows
    oldest_due: datetime | None = None  # of the jobs that could run now; None: nothing waits
    oldest_in: str = ""  # its queue
    halted: bool = False  # the whole system; that is somebody's wish, and no problem
    measures: Mapping[str, float] = field(default_factory=dict)  # of this process, where its store counts them


class Contact:
    """Whether the store answers, as far as this process has noticed: workers by working, others by asking.

    It is lost when somebody gets no answer, and back when all who got none have one. May be told from any thread that
    has an event loop, on which coroutines that subscribed to the events are run.
    """

    def __init__(self, store: str, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._lock = threading.Lock()
        self._failing: set[str] = set()  # who
        self._lost = 0.0  # by the monotonic clock
        self._throttled = False
        self.lost_at: datetime | None = None
        self.error = ""
        self.clock = ""  # what a worker of this process has found wrong with the clock

    def failed(self, who: str, error: Exception) -> None:
        with self._lock:
            is_new = not self._failing
            self._failing.add(who)
            self.error = f"{type(error).__name__}: {error}"
            if is_new:
                self.lost_at, self._lost = datetime.now(UTC), time.monotonic()
        if is_new:
            self._bus.emit(StoreLost(store=self._store, error=self.error))

    def answered(self, who: str) -> None:
        if who not in self._failing:  # nearly always
            return
        with self._lock:
            self._failing.discard(who)
            is_back = not self._failing
            gone_for = round(time.monotonic() - self._lost, 3)
            if is_back:
                self.lost_at = None
        if is_back:
            self._bus.emit(StoreBack(store=self._store, gone_for=gone_for))

    def measured(self, measures: Mapping[str, float]) -> None:
        """What this process has met with so far, as workers ask for it now and then."""
        throttled = is_throttled(measures)
        with self._lock:
            is_new = throttled != self._throttled
            self._throttled = throttled
        if is_new:
            kind = StoreThrottled if throttled else ThrottlingOver
            self._bus.emit(kind(store=self._store, measures=measures))

    def forget(self, who: str) -> None:
        """Of somebody who asks no more: whether the store is back he cannot say."""
        with self._lock:
            self._failing.discard(who)
            if not self._failing:
                self.lost_at = None


def is_throttled(measures: Mapping[str, float]) -> bool:
    return measures.get("throttling", 0) > 0


async def examine(store: Store, contact: Contact, *, late: timedelta = LATE, timeout: float = TIMEOUT) -> Health:
    try:
        stats = await within(timeout, store.stats())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        contact.failed(PROBE, error)
        now, problem = datetime.now(UTC), f"the store does not answer: {error}"
        lost_at, why = contact.lost_at or now, contact.error
        return Health(State.DOWN, now, store.url, (problem,), reachable=False, lost_at=lost_at, error=why)
    contact.answered(PROBE)
    health = judge(stats, to_datetime(store.clock.now()), store.url, late)
    for problem in (clock_problem(store.clock) or contact.clock, await write_problem(store, timeout)):
        if problem:
            health = replace(health, state=State.DEGRADED, problems=(problem, *health.problems))
    if contact.lost_at is None:
        return health
    problems = (f"a worker here gets no answer: {contact.error}", *health.problems)
    return replace(health, state=State.DEGRADED, problems=problems, lost_at=contact.lost_at, error=contact.error)


def clock_problem(clock: Clock) -> str:
    """Empty: none."""
    departure = clock.departure if isinstance(clock, SteadyClock) else None
    if departure is None:
        return ""
    where = "ahead" if departure.by > 0 else "back"
    return (
        f"the machine's clock jumped {abs(departure.by) / 1000:.0f} s {where}; jobs go by the old time until the clock "
        f"has kept its new time for {SETTLE:.0f} s"
    )


async def write_problem(store: Store, timeout: float) -> str:
    """Empty: none. Where one process at a time can write, one that is stopped then holds up all others."""
    if not isinstance(store, Locking):
        return ""
    try:
        await within(timeout, store.wait_to_write())
    except StoreUnavailable:
        return (
            f"nothing can be written: another process has kept the store locked for {timeout:g} s. If it was stopped "
            "in the middle of a commit, let it go on or kill it"
        )
    except StoreError as error:
        return f"nothing can be written: {error}"
    return ""


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """To be cancelled may take work on a server that does not answer as long as to wait for it: we do neither."""
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


def judge(stats: Stats, now: datetime, store: str, late: timedelta = LATE) -> Health:
    alive = [worker for worker in stats.workers if worker.alive]
    served = {queue for worker in alive for queue in worker.queues}
    waiting = {queue: oldest for queue, oldest in stats.oldest_due.items() if not is_halted(stats, queue)}
    unattended = tuple(sorted(queue for queue in waiting if EVERY_QUEUE not in served and queue not in served))
    oldest_in = min(waiting, key=lambda queue: waiting[queue], default="")
    polling = tuple(worker.id for worker in alive if worker.polling)
    unknown = tuple(one for one in stats.unknown_tasks if not is_halted(stats, one.queue))
    problems = []
    if unattended:
        problems.append(f"jobs are due that no worker takes, in: {', '.join(unattended)}")
    problems += [
        f"no live worker of queue {one.queue} knows task {one.task} ({shown_due(one.due)} due)" for one in unknown
    ]
    if oldest_in and now - waiting[oldest_in] > late:
        seconds = (now - waiting[oldest_in]).total_seconds()
        problems.append(f"the oldest job of queue {oldest_in} is due for {seconds:.0f} s")
    if is_throttled(stats.measures):
        refused, calls = (int(stats.measures[name]) for name in ("throttled", "calls"))
        problems.append(f"the store's service throttles this process: {refused:,} of {calls:,} calls so far")
    problems += [describe_stuck(worker) for worker in alive if worker.stuck]
    if polling:
        problems.append(f"workers cannot hear of new jobs and look now and then: {', '.join(polling)}")
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
        oldest_due=waiting.get(oldest_in),
        oldest_in=oldest_in,
        halted=any(halt.queue is None for halt in stats.halts),
        measures=stats.measures,
    )


def describe_stuck(worker: WorkerInfo) -> str:
    slots = f"{worker.stuck} of {worker.concurrency} slots of worker {worker.id}"
    if worker.stuck == 1:
        return f"{slots} is stuck: its job was told to stop and does not end"
    return f"{slots} are stuck: their jobs were told to stop and do not end"


def is_halted(stats: Stats, queue: str) -> bool:
    return any(halt.queue in {None, queue} for halt in stats.halts)
