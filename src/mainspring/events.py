"""Typed events about what happened. They fire only after the store has confirmed it.

| event              | fires when                                                          |
|--------------------|---------------------------------------------------------------------|
| JobCreated         | a job was inserted (not for inserts in a caller's own transaction,  |
|                    | nor for follow-ups with a dedupe key)                               |
| JobDeduplicated    | an enqueue found a job that already holds its dedupe key            |
| JobStarted         | a worker starts to run a job                                        |
| JobProgressed      | progress was written                                                |
| JobCompleted       | a handler returned and its job is finished                          |
| JobRetrying        | a run failed (`reason` error, timeout or crash) and will be retried |
| JobStalled         | a job overran its timeout and grace, and was taken from its worker  |
| JobDeadLettered    | a job gave up                                                       |
| JobCancelled       | a job ended as cancelled                                            |
| JobSnoozed         | a handler raised Snooze, or the job waits for its delivery hours    |
| JobSuspended       | a durable function sleeps or waits; or a limit, a circuit breaker,  |
|                    | a dependency or a batch holds the job back before it starts         |
| JobReleased        | a worker handed a job back unfinished                               |
| ScheduleFired      | a schedule fired and its job was created                            |
| ScheduleSkipped    | occurrences were not fired: `reason` coalesced, overlap, paused, …  |
| OccasionFired      | a person's occasion is due and its job was created                  |
| OccasionSkipped    | an occasion did not fire: `reason` too_late, repeated               |
| WorkerStarted      | a worker has started                                                |
| WorkerStopped      | a worker has stopped                                                |
| WorkerHeartbeat    | a worker has sent its heartbeat                                     |
| StoreLost          | the store did not answer a worker or a health check                 |
| StoreBack          | the store answers again                                             |
| StoreThrottled     | the store's service throttles the calls of a worker's process       |
| ThrottlingOver     | the service has refused no call for a while                         |
| ClockHeld          | the clock jumped; time goes on as before until it has settled       |
| ClockSettled       | the jump was accepted, or the clock came back                       |
| BreakerOpened      | a circuit breaker opened: too many errors, a failed probe, by hand  |
| BreakerHalfOpened  | a circuit breaker lets probes through                               |
| BreakerClosed      | a circuit breaker is closed again                                   |
| TaskUnknown        | jobs are due whose task no live worker of their queue knows         |
| SubscriberReset    | a durable subscriber missed changes: the feed has them no longer    |
| JobsRecovered      | a recovery retried a task's dead letters, or left more of them      |
| Halted, Resumed    | the system, or with `queue` one queue, was halted or resumed        |

Subscribers do not hold up the work. Coroutines run on the event loop that emitted the event. Plain functions run in
one thread, in order. A subscriber that fails is logged and affects nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from mainspring.errors import Failure
from mainspring.job import RetryReason
from mainspring.log import get_log
from mainspring.meter import Meter

log = get_log("mainspring.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    job_id: str
    task: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCreated(JobEvent):
    run_at: datetime | None = None  # None: due at once


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeduplicated(JobEvent):
    """`job_id` is the id of the job that already holds the dedupe key."""

    dedupe_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(JobEvent):
    """An event about one run of a job by one worker."""

    attempt: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(RunEvent):
    lateness: float  # seconds between when the job was due and its start


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed(RunEvent):
    fraction: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(RunEvent):
    duration: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetrying(RunEvent):
    reason: RetryReason
    max_attempts: int
    delay: float  # seconds
    duration: float  # seconds; of a run that was taken over, until then
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStalled(RunEvent):
    started_at: datetime
    timeout_at: datetime | None  # when the run reached its timeout
    duration: float  # seconds until it was taken over
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeadLettered(RunEvent):
    duration: float  # seconds of the last run
    failure: Failure | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(JobEvent):
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnoozed(RunEvent):
    delay: float  # seconds
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSuspended(RunEvent):
    """The job has left its worker. It does not run before `until`, or before what it waits for happens."""

    until: datetime | None = None  # None: no time is set
    waits_for: str | None = None  # "signal:<key>", "job:<id>", or the key of the limit or breaker that holds it back
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(RunEvent):
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(Event):
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired(Event):
    schedule: str
    job_id: str
    nominal: str  # the local time in its rule
    lateness: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSkipped(Event):
    schedule: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OccasionFired(Event):
    person: str
    kind: str
    on: date  # the local date
    job_id: str
    lateness: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OccasionSkipped(Event):
    person: str
    kind: str
    on: date
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(WorkerEvent):
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(WorkerEvent):
    released: int = 0  # jobs handed back unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat(WorkerEvent):
    running: int
    halted: bool = False
    stuck: int = 0  # slots whose job was told to stop but does not end


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost(Event):
    store: str  # its URL, without secrets
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    store: str
    gone_for: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreThrottled(Event):
    """Nothing is lost: the store retries the calls, so they take longer."""

    store: str
    measures: Mapping[str, float]  # what this process has counted so far


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlingOver(Event):
    store: str
    measures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockHeld(Event):
    by: float  # seconds; negative: the clock went back


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSettled(Event):
    by: float  # seconds by which the jobs' time has changed; 0: the clock came back


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    breaker: str
    reason: str
    until: datetime | None  # from then on it lets probes through; None: it stays open until it is closed by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerHalfOpened(Event):
    breaker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    breaker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnknown(Event):
    """A worker that meets such jobs emits this once per task and queue, until a worker knows the task."""

    task: str
    queue: str
    due: int  # jobs
    oldest_due: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberReset(Event):
    """A durable subscriber missed changes: the feed no longer has what came after its place."""

    subscriber: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRecovered(Event):
    task: str
    recovered: int
    exhausted: int  # left as dead letters, because they were recovered `max_times` times


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted(Event):
    actor: str
    reason: str
    queue: str | None = None
    until: datetime | None = None
    unconfirmed: tuple[str, ...] = ()  # workers that have not confirmed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    actor: str
    queue: str | None = None


E = TypeVar("E", bound=Event)
Subscriber = Callable[[E], Awaitable[None] | None]


class Bus:
    """The subscribers by kind of event. Check `wants` before making an event, to save its cost if nothing listens."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[type[Event], list[Subscriber[Any]]] = defaultdict(list)
        self._direct: defaultdict[type[Event], list[Callable[[Any], None]]] = defaultdict(list)
        self.meter: Meter | None = None  # counts what is too frequent for events
        self._wanted: dict[type[Event], bool] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._pid = 0  # the process that has the thread, which does not survive a fork
        self._tasks: set[asyncio.Task[None]] = set()

    def subscribe(self, kind: type[E], subscriber: Subscriber[E]) -> None:
        """Call a subscriber with each event of this class and its subclasses; `Event` means all events."""
        self._subscribers[kind].append(subscriber)
        self._wanted.clear()

    def subscribe_directly(self, kind: type[E], function: Callable[[E], None]) -> None:
        """Call a function with each event at once, in the thread that emits it.

        This is for metrics. The function holds up the work: it must be quick and must not block.
        """
        self._direct[kind].append(function)
        self._wanted.clear()

    def wants(self, kind: type[Event]) -> bool:
        wanted = self._wanted.get(kind)
        if wanted is None:
            heard = self._subscribers.keys() | self._direct.keys()
            wanted = self._wanted[kind] = any(base in heard for base in kind.__mro__)
        return wanted

    def emit(self, event: Event) -> None:
        for kind in type(event).__mro__:
            for function in self._direct.get(kind, ()):
                _call_directly(function, event)
            for subscriber in self._subscribers.get(kind, ()):
                self._call(subscriber, event)

    async def flush(self) -> None:
        """Wait until the subscribers on this loop and in the thread have handled everything emitted so far."""
        if inside.get():  # a subscriber would wait for itself
            return
        loop = asyncio.get_running_loop()
        while mine := [task for task in list(self._tasks) if task.get_loop() is loop and not task.done()]:
            await asyncio.gather(*mine, return_exceptions=True)
        if self._thread is not None and self._pid == os.getpid():
            await asyncio.wrap_future(self._thread.submit(lambda: None))

    def close(self) -> None:
        if self._thread is not None and self._pid == os.getpid():
            self._thread.shutdown()
        self._thread = None

    def _call(self, subscriber: Subscriber[Any], event: Event) -> None:
        if _is_async(subscriber):
            with contextlib.suppress(RuntimeError):  # no event loop here; synchronous callers run on the portal's loop
                task = asyncio.get_running_loop().create_task(_call_async(subscriber, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        if self._thread is None or self._pid != os.getpid():
            self._thread, self._pid = ThreadPoolExecutor(1, thread_name_prefix="mainspring-events"), os.getpid()
        self._thread.submit(_call_plain, subscriber, event)


inside: ContextVar[bool] = ContextVar("mainspring_inside_subscriber", default=False)


def _is_async(subscriber: Subscriber[Any]) -> bool:
    """Return whether it is a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(type(subscriber).__call__)


async def _call_async(subscriber: Subscriber[Any], event: Event) -> None:
    inside.set(True)  # this task has a context of its own
    try:
        result = subscriber(event)
        if result is not None:
            await result
    except Exception:  # noqa: BLE001 - a failing subscriber must not affect the work
        _report(subscriber, event)


def _call_plain(subscriber: Subscriber[Any], event: Event) -> None:
    inside.set(True)  # the thread has a context of its own, too
    try:
        subscriber(event)
    except Exception:  # noqa: BLE001
        _report(subscriber, event)


def _call_directly(function: Callable[[Any], None], event: Event) -> None:
    try:
        function(event)
    except Exception:  # noqa: BLE001
        _report(function, event)


def _report(subscriber: Subscriber[Any], event: Event) -> None:
    name = getattr(subscriber, "__qualname__", repr(subscriber))
    log.error("subscriber_failed", subscriber=name, event_type=type(event).__name__, exc_info=True)  # noqa: LOG014 - called in handlers
