"""The application: it holds one store, the tasks and the event subscribers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from mainspring.batch_task import BatchDecorator, BatchTask
from mainspring.batched import Batch
from mainspring.clock import Clock, Length, check_moment, to_datetime, to_millis
from mainspring.errors import ConfigurationError, SystemHalted, UnknownTask
from mainspring.events import Bus, Event, Halted, JobCreated, JobDeduplicated, Resumed, Subscriber
from mainspring.features.batches import api as batches
from mainspring.features.batches.api import Batches, BatchGuard, BatchHandle
from mainspring.features.breakers.api import BreakerGuard, Breakers
from mainspring.features.debounce.feature import NewestOnly
from mainspring.features.delivery.feature import AnyWindow, DeliveryGuard
from mainspring.features.dependencies import feature as dependencies
from mainspring.features.dependencies.feature import Dependencies
from mainspring.features.durable import signals
from mainspring.features.durable.cancel_children import ParentGuard
from mainspring.features.durable.signals import Signal, SignalTimer
from mainspring.features.expiry.feature import Expiry
from mainspring.features.limits import Fair, Limit, Limits, Rate
from mainspring.features.limits.timer import LimitTimer
from mainspring.guards import Guards
from mainspring.halting import CONFIRM_WITHIN, HaltResult, explained, seconds_of, wait_for_workers, write_halt
from mainspring.handle import JobHandle
from mainspring.health import LATE, TIMEOUT, Contact, Health, examine
from mainspring.humanize import show_moment
from mainspring.job import Inserted, Job, NewJob, Priority, PriorityName, check_prepared, check_queue
from mainspring.jobs import Jobs, whoami
from mainspring.log import get_log
from mainspring.middleware import AroundEnqueue, AroundRun, Middleware
from mainspring.portal import Portal
from mainspring.retry import Retry
from mainspring.stores.connect import store_of
from mainspring.stores.protocol import AuditEntry, By, Halt, Immediate, Stats, Store, WorkerInfo
from mainspring.task import Ack, Defaults, Isolation, Options, Retention, Task, TaskDecorator, TaskOptions
from mainspring.timers import Timers

if TYPE_CHECKING:
    from mainspring.features.people.api import People
    from mainspring.features.people.occasions import Occasions
    from mainspring.features.schedules.api import Schedules, When
    from mainspring.features.schedules.rules import Policies
    from mainspring.worker import Worker, WorkerOptions

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
AR = TypeVar("AR", bound=AroundRun)
AE = TypeVar("AE", bound=AroundEnqueue)

log = get_log("mainspring")

NOT_FOR_OCCASIONS = frozenset({"batch", "isolation"})


class Mainspring:
    """The application. `app = Mainspring("sqlite:///jobs.db")` is the whole setup; the store is opened at first use."""

    def __init__(
        self,
        store: str | Store = "sqlite:///mainspring.db",
        *,
        retry: Retry | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Name the store and set defaults. A queue (`app.queue`), a task and an enqueue can override them."""
        self.store: Store = store_of(store, clock)
        self.defaults = Defaults(retry=retry, max_attempts=max_attempts, timeout=timeout, retention=retention)
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.bus = Bus()
        self.contact = Contact(self.store.url, self.bus)
        self.jobs = Jobs(self)
        self.guards = Guards()
        self.breakers = Breakers(self)
        for guard in (
            ParentGuard(self), NewestOnly(self), Expiry(self), Dependencies(self), DeliveryGuard(self),
            BreakerGuard(self),
        ):  # fmt: skip
            self.guards.add(guard)
        self.batches = Batches(self)
        self.guards.add(BatchGuard(self))
        self.limits = Limits(self)
        self.middleware = Middleware()
        self.portal = Portal()
        self.before_waiting: Callable[[Job], None] | None = None  # set by the test kit; may refuse to wait for a job
        self._opened: Store | None = None

    def __repr__(self) -> str:
        return f"<Mainspring {self.store.url}, {len(self.tasks)} tasks>"

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.bus.flush()
        self._opened = None
        await self.store.close()
        self.bus.close()
        self.portal.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this API from code without an event loop: `app.run(app.jobs.get(job_id))`."""
        return self.portal.run(work)

    def open_sync(self) -> None:
        """Open the store unless this did so before. Use this before calls that must run in the caller's own thread."""
        if self._opened is not self.store:
            self.run(self.store.open())
            self._opened = self.store

    @cached_property
    def schedules(self) -> Schedules:
        """Return the schedules. They are imported at first use, to keep imports fast for programs without schedules."""
        from mainspring.features.schedules.api import Schedules

        return Schedules(self)

    @cached_property
    def timers(self) -> Timers:
        """Return the timers: what workers do when documents come due."""
        from mainspring.features.schedules.timer import ScheduleTimer

        timers = Timers(self)
        timers.add(LimitTimer(self))  # also without limits: jobs may still wait for limits that were removed
        timers.add(ScheduleTimer(self))
        timers.add(SignalTimer(self))
        return timers

    @cached_property
    def people(self) -> People:
        """Return the people. They are imported at first use, to keep imports fast for programs without people."""
        from mainspring.features.people.api import People

        return People(self)

    @cached_property
    def occasions(self) -> Occasions:
        from mainspring.features.people.occasions import Occasions

        return Occasions(self)

    def now(self) -> datetime:
        return to_datetime(self.store.clock.now())

    # -- tasks --------------------------------------------------------------------------------

    @overload
    def task(self, *, batch: Batch, **options: Unpack[TaskOptions]) -> BatchDecorator: ...
    @overload
    def task(self, *, batch: None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(
        self,
        *bare: object,
        name: str | None = None,
        queue: str = "default",
        priority: PriorityName | Priority | None = None,
        retry: Retry | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        isolation: Isolation = "auto",
        ack: Ack = "batched",
        retention: Retention | None = None,
        tags: Iterable[str] | None = None,
        expires: Length | None = None,
        batch: Batch | None = None,
        version: int = 1,
        steps: Sequence[str] = (),
        breaker: str | None = None,
        deliver: AnyWindow | None = None,
        limits: Iterable[Limit | Rate] | Limit | Rate = (),
        fair: Fair | None = None,
    ) -> Any:
        """Make a function a task. The store knows it by the function's name or by `name`, never by an import path.

        Coroutines run on the worker's event loop, plain functions in its threads. With isolation="process" each job
        runs in its own process; only then can a timeout really stop the work. With `batch` the function takes a list,
        and each job is one item of it. `version` keeps an older function, for jobs under way, beside a newer one.
        `steps` declares the steps in advance, so that readers see what is to come. See docs/durable.md.
        """
        if bare:
            msg = "write @app.task() with parentheses; its options go between them"
            raise ConfigurationError(msg)
        options = Options(
            queue=queue, priority=priority, retry=retry, max_attempts=max_attempts, timeout=timeout,
            isolation=isolation, retention=retention, tags=tags, expires=expires, breaker=breaker,
            deliver=deliver,
        )  # fmt: skip
        names = sys._getframe(1).f_locals  # noqa: SLF001 - annotations may name what is local to the caller
        limited = (limits,) if isinstance(limits, (Limit, Rate)) else tuple(limits)

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            refuse_unfit(function, name)
            make: Callable[..., Task[..., Any, Any]] = Task if batch is None else partial(BatchTask, batch=batch)
            called = versioned(name or function.__name__, version)
            task = make(self, function, called, options=options, ack=ack, names=names, steps=steps)
            if limited:
                self.limits.of_task(task.name, limited)
            if fair is not None:
                self.limits.of_fair_task(task.name, fair, queue)
            return self._register(task, exactly=version > 1)

        return decorate

    def queue(
        self,
        name: str,
        *,
        priority: PriorityName | Priority | None = None,
        retry: Retry | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        retention: Retention | None = None,
    ) -> None:
        """Set defaults for the jobs of one queue: `app.queue("renders", timeout=600, retry=Retry.fixed(30))`.

        They override the defaults of `Mainspring(…)`. A task and `using(…)` override them. Call this before you
        declare the queue's tasks, best right after `Mainspring(…)`.
        """
        check_queue(name)
        given = Options(priority=priority, retry=retry, max_attempts=max_attempts, timeout=timeout, retention=retention)
        declared = [task.name for task in self.tasks.values() if (task.options.queue or "default") == name]
        self.defaults.set_queue(name, given, declared)

    def limit_queue(self, queue: str, *limits: Limit | Rate) -> None:
        """Limit all jobs of a queue together: `app.limit_queue("mail", Limit(20), Rate(100, per=1))`."""
        self.limits.of_queue(queue, limits)

    def every(
        self,
        when: When,
        *,
        tz: str | None = None,
        id: str | None = None,
        args: Mapping[str, Any] | None = None,
        **policies: Unpack[Policies],
    ) -> TaskDecorator:
        """Run a task at these times: `@app.every("15m")`, `@app.every("*/5 * * * *", tz="Europe/London")`.

        `when` is an interval (text or a timedelta), a cron expression, a rule, a `Schedule`, or the text that a
        schedule prints for itself (`at 09:00 Monday to Friday`).

        Use it on a plain function, which then becomes a task, or above `@app.task(...)` to give the task options.
        `policies` are those of `Schedule`: gap, fold, misfire, overlap, jitter, start, end. Workers write the schedule
        to the store when they start.
        """
        if "zone" in policies:
            msg = "@app.every calls the zone tz: write tz=…"
            raise ConfigurationError(msg)
        from mainspring.features.schedules.api import Declared, as_schedule, owner_of

        schedule = as_schedule(when, zone=tz, **policies)

        def decorate(function: Any) -> Task[..., Any, Any]:
            task: Task[..., Any, Any] = function if isinstance(function, Task) else self.task()(function)
            job = task.template(args or {})
            self.schedules.declare(Declared(id or task.name, schedule, job, owner_of(task.function)))
            return task

        return decorate  # type: ignore[return-value]

    def around_run(self, function: AR) -> AR:
        """Wrap every run of a handler in a generator function, `def` or `async def`, that yields once.

        It gets a `RunCall`. The first one registered is the outermost; see docs/middleware.md.
        """
        self.middleware.add_run(function)
        return function

    def around_enqueue(self, function: AE) -> AE:
        """Wrap every enqueue in a plain generator function that yields once. It may set `call.headers` before that."""
        self.middleware.add_enqueue(function)
        return function

    def occasion(self, kind: str, **options: Unpack[TaskOptions]) -> Callable[[F], F]:
        """Call a function when people have this occasion: `@app.occasion("birthday")`.

        The annotations of its arguments say what it gets: `person: Person`, `occasion: Occasion`, `ctx: Context`. The
        function itself stays unchanged. A task of the same name runs it; `options` are those of `task`.
        """
        if not isinstance(kind, str):
            msg = 'name the kind of occasion that is handled: @app.occasion("birthday")'
            raise ConfigurationError(msg)
        if unfit := NOT_FOR_OCCASIONS & options.keys():
            msg = f"@app.occasion takes no {', '.join(sorted(unfit))}: its handler runs in this process, for one person"
            raise ConfigurationError(msg)
        names = sys._getframe(1).f_locals  # noqa: SLF001 - annotations may name what is local to the caller

        def decorate(function: F) -> F:
            named: TaskOptions = {**options, "name": options.get("name") or function.__name__}
            self.occasions.handle(kind, function, names, self.task(**named))
            return function

        return decorate

    def _register(self, task: Task[..., Any, Any], *, exactly: bool = False) -> Task[..., Any, Any]:
        known = self.tasks.get(task.name)
        if known is not None and (place_of(known) != place_of(task) or (exactly and line_of(known) != line_of(task))):
            msg = f"two tasks are named {task.name!r}: give one of them another with @app.task(name=…) or version=…"
            raise ConfigurationError(msg)
        self.tasks[task.name] = task
        return task

    def task_named(self, name: str) -> Task[..., Any, Any] | None:
        """Return the task for a worker: a registered one, or the internal task of the job that waits for a batch."""
        return self.batches.task if name == batches.TASK else self.tasks.get(name)

    def find_task(self, name: str) -> Task[..., Any, Any]:
        try:
            return self.tasks[name]
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            msg = f"no task is named {name!r} here; known are: {known}"
            raise UnknownTask(msg) from None

    # -- jobs ---------------------------------------------------------------------------------

    async def enqueue_all(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Inserted]:
        """Enqueue prepared jobs of any tasks: `app.enqueue_all([a.prepare(x=1), b.prepare()])`.

        All jobs are checked first; if one is invalid, none is enqueued. SQLite and PostgreSQL write them in one
        transaction: all or none. On DynamoDB, a failure in the middle can leave some of the jobs enqueued.
        """
        check_prepared("app.enqueue_all", jobs)
        if connection is None:  # in the caller's transaction, the jobs they depend on may not be visible yet
            await dependencies.refuse_unknown(self, jobs)
        return await self.insert(list(jobs), connection)

    async def batch(
        self,
        jobs: Sequence[NewJob],
        *,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> BatchHandle:
        """Enqueue prepared jobs that belong together, and the jobs that follow once all of them have finished.

        `on_success` runs if all completed, `on_failure` if at least one did not, `on_finished` in either case. These
        jobs find the batch's id and counts in `ctx.batch`.
        """
        follow_ups = {"on_success": on_success, "on_failure": on_failure, "on_finished": on_finished}
        given = [*jobs, *(job for job in follow_ups.values() if job is not None)]
        check_prepared("app.batch", given)
        await dependencies.refuse_unknown(self, given)
        return await self.batches.put(jobs, follow_ups)

    async def chain(self, *jobs: NewJob) -> list[JobHandle[Any]]:
        """Enqueue prepared jobs to run one after the other. If one does not complete, the rest are cancelled."""
        check_prepared("app.chain", jobs)
        await dependencies.refuse_unknown(self, jobs)
        return await batches.put_chain(self, jobs)

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle of any job by its id: `await app.job(job_id).result()`. This does not read the store.

        `task.handle(job_id)` does the same, and knows the type of the task's result.
        """
        return JobHandle(job_id, False, self, None)  # noqa: FBT003 - not created by this call

    async def insert(self, jobs: list[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is None and self.limits.concerns_insert(jobs):
            inserted = await self.limits.insert(jobs)
        else:
            inserted = await self.store.insert(jobs, connection)
        if connection is None:
            self.announce(jobs, inserted)
        return inserted

    def insert_sync(self, jobs: list[NewJob]) -> list[Inserted]:
        """Insert in the calling thread if the store supports it and nothing subscribes to events about new jobs.

        Otherwise run `insert` on the portal's event loop and wait for it.
        """
        if not (self._hears_of_new_jobs() or self.limits.concerns_insert(jobs) or self.portal.here()):
            self.open_sync()
            if isinstance(self.store, Immediate) and (inserted := self.store.insert_now(jobs)) is not None:
                return inserted
        return self.run(self.insert(jobs))

    def _hears_of_new_jobs(self) -> bool:
        return self.bus.wants(JobCreated) or self.bus.wants(JobDeduplicated)

    def announce(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> None:
        """Emit JobCreated or JobDeduplicated for jobs that the store has taken."""
        if not self._hears_of_new_jobs():
            return
        for job, entry in zip(jobs, inserted, strict=True):
            if entry.created:
                self.bus.emit(JobCreated(job_id=entry.id, task=job.task, queue=job.queue, run_at=self._due(job)))
            else:
                key = job.dedupe_key or ""
                self.bus.emit(JobDeduplicated(job_id=entry.id, task=job.task, queue=job.queue, dedupe_key=key))

    def _due(self, job: NewJob) -> datetime | None:
        """Return when the job is due; None means at once."""
        if job.run_at is not None:
            return to_datetime(job.run_at)
        return to_datetime(self.store.clock.now() + job.delay) if job.delay else None

    # -- signals --------------------------------------------------------------------------------

    async def signal(
        self, key: str, payload: Any = None, *, keep: Length = signals.SIGNAL_RETENTION, id: str | None = None
    ) -> Signal:
        """Wake all jobs that wait for this key (`ctx.wait_for`), now or later while the signal is kept (`keep`).

        To make a send safe to repeat (for example from a webhook), pass an `id`. Signals with the same id are one
        signal, and the first one counts.
        """
        return await signals.send(self.store, key, payload, keep, id)

    def signal_sync(
        self, key: str, payload: Any = None, *, keep: Length = signals.SIGNAL_RETENTION, id: str | None = None
    ) -> Signal:
        return self.run(self.signal(key, payload, keep=keep, id=id))

    # -- the whole system ---------------------------------------------------------------------

    async def halt(
        self,
        reason: str = "",
        *,
        accept: bool = True,
        until: datetime | None = None,
        actor: str | None = None,
        wait: Length | None = CONFIRM_WITHIN,
    ) -> HaltResult:
        """Stop all workers from starting jobs. New jobs are stored for later, or refused with accept=False.

        Return as soon as all live workers have confirmed, at the latest after `wait`: a length of time, 0 to return at
        once, None for no limit. The result names the workers that have not confirmed.
        """
        return await self._halt(Halt(actor or whoami(), reason, self.now(), until, None, accept), wait)

    async def pause(
        self,
        queue: str,
        reason: str = "",
        *,
        until: datetime | None = None,
        actor: str | None = None,
        wait: Length | None = CONFIRM_WITHIN,
    ) -> HaltResult:
        """Stop all workers from starting jobs of this queue, until `until` or `resume`. Wait and return like `halt`."""
        return await self._halt(Halt(actor or whoami(), reason, self.now(), until, check_queue(queue)), wait)

    async def _halt(self, halt: Halt, wait: Length | None) -> HaltResult:
        seconds = seconds_of(wait)
        if halt.until is not None and to_millis(check_moment(halt.until, "until")) <= self.store.clock.now():
            msg = f"until is in the past ({show_moment(halt.until)}); give a later time, or leave it out"
            raise ConfigurationError(msg)
        if halt.queue is None and (copy := await self._copy_halt()) is not None:
            msg = f"{self.store.url} is already halted, because it is {copy.reason}; halt it once that is over"
            raise SystemHalted(msg)
        halted = await write_halt(self.store, halt, seconds)
        late: list[WorkerInfo] = []
        try:
            late = await wait_for_workers(self.store, halted, seconds)
        finally:  # the halt is in force even if the wait is cancelled or fails
            self._tell_halted(halted, late)
        return HaltResult(halted, tuple(explained(worker, self.now()) for worker in late))

    def _tell_halted(self, halt: Halt, late: list[WorkerInfo]) -> None:
        names = tuple(worker.id for worker in late)
        if names:
            log.warning("halt_unconfirmed", queue=halt.queue, workers=names)
        self.bus.emit(
            Halted(actor=halt.actor, reason=halt.reason, queue=halt.queue, until=halt.until, unconfirmed=names)
        )

    async def _copy_halt(self) -> Halt | None:
        return next((halt for halt in await self.store.halts() if halt.queue is None and halt.guards_copy), None)

    async def resume(
        self, queue: str | None = None, *, reason: str = "", actor: str | None = None, anyway: bool = False
    ) -> bool:
        """End the halt, or the pause of one queue; return False if there was none.

        A store whose jobs were or are being copied to another store stays halted, because its jobs would run twice.
        Pass `anyway=True` to resume it nevertheless.
        """
        by = By(actor or whoami(), reason)
        if queue is None and not anyway and (copy := await self._copy_halt()) is not None:
            msg = (
                f"{self.store.url} is {copy.reason}, and stays halted: its jobs would run in both stores. To give up "
                f"that copy and run them from here: mainspring resume --anyway, or app.resume(anyway=True)"
            )
            raise SystemHalted(msg)
        resumed = await self.store.resume(by, None if queue is None else check_queue(queue))
        if resumed:
            self.bus.emit(Resumed(actor=by.actor, queue=queue))
        return resumed

    async def halts(self) -> list[Halt]:
        return await self.store.halts()

    async def stats(self) -> Stats:
        return await self.store.stats()

    async def health(self, *, late: timedelta = LATE, timeout: float = TIMEOUT) -> Health:
        """Return whether all is well. Never raise; report a store that does not answer within `timeout` as down."""
        return await examine(self.store, self.contact, late=late, timeout=timeout)

    def health_sync(self, *, late: timedelta = LATE, timeout: float = TIMEOUT) -> Health:
        return self.run(self.health(late=late, timeout=timeout))

    async def audit(self, *, limit: int = 100) -> list[AuditEntry]:
        return await self.store.audit(limit=limit)

    # -- events -------------------------------------------------------------------------------

    def on(self, *kinds: type[E]) -> Callable[[Subscriber[E]], Subscriber[E]]:
        """Call the decorated function with each event of these kinds: `@app.on(JobDeadLettered)`."""

        def subscribe(subscriber: Subscriber[E]) -> Subscriber[E]:
            for kind in kinds:
                self.bus.subscribe(kind, subscriber)
            return subscriber

        return subscribe

    # -- working ------------------------------------------------------------------------------

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Make a worker for this application: `app.worker(queues=["mail"]).run()`, or `async with app.worker():`."""
        from mainspring.worker import Worker

        return Worker(self, **options)


def refuse_unfit(function: Callable[..., Any], name: str | None) -> None:
    """Raise ConfigurationError for a function that cannot be a task."""
    if not inspect.isroutine(function):  # a partial or another object has no name and no annotations
        msg = f"a task is a function or a method, not {function!r}; write a function that calls it"
        raise ConfigurationError(msg)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = f"{function.__qualname__} yields, but a task returns its result: have it return a list"
        raise ConfigurationError(msg)
    if name is None and function.__name__ == "<lambda>":
        msg = "a lambda has no name by which stored jobs could find it; write a function, or give it one: name=…"
        raise ConfigurationError(msg)


def place_of(task: Task[..., Any, Any]) -> tuple[str, str]:
    """Return where the task's function is defined, so that a reloaded module may define its tasks again."""
    return task.function.__module__, task.function.__qualname__


def line_of(task: Task[..., Any, Any]) -> int:
    """Return the line of the task's function, to tell apart versions that have the same name in one module."""
    code = getattr(inspect.unwrap(task.function), "__code__", None)
    return code.co_firstlineno if code is not None else 0


def versioned(name: str, version: object) -> str:
    if not isinstance(version, int) or version < 1:
        msg = f"version must be a whole number of at least 1, not {version!r}"
        raise ConfigurationError(msg)
    return name if version == 1 else f"{name}@{version}"
