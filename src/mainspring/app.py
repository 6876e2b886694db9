"""The application: it holds one store, the tasks and the event subscribers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from mainspring.changes import ChangeStream
from mainspring.chunk import ChunkDecorator, ChunkTask
from mainspring.clock import Clock, Length, check_moment, duration, to_millis
from mainspring.context import Context
from mainspring.errors import ConfigurationError, InvalidPayload, SystemHalted
from mainspring.events import Event, Halted, Resumed, Subscriber
from mainspring.features.batches import api as batches
from mainspring.features.batches.api import BatchHandle
from mainspring.features.durable import signals
from mainspring.features.durable.signals import Signal
from mainspring.features.limits import Limit, Rate
from mainspring.features.recovery.report import Recovery, recoveries
from mainspring.halt_check import HaltedOption
from mainspring.halting import CONFIRM_WITHIN, HaltResult, explained, seconds_of, wait_for_workers, write_halt
from mainspring.handle import JobHandle
from mainspring.health import MAX_LATENESS, TIMEOUT, Health, examine, with_outside
from mainspring.humanize import show_moment
from mainspring.job import Inserted, NewJob, check_prepared, check_queue
from mainspring.log import get_log
from mainspring.middleware import AroundEnqueue, AroundRun
from mainspring.numbers import DEFAULT_SINCE, Numbers, StepName, read_numbers
from mainspring.options import (
    OF_TASK_ONLY,
    Chunk,
    DefaultOptions,
    EnqueueOptions,
    QueueOptions,
    TaskOptions,
    checked_for_task,
    queue_of,
)
from mainspring.projects import key_in_run
from mainspring.published.remote import RemoteTask
from mainspring.redaction import Redaction
from mainspring.runtime import Runtime
from mainspring.services import whoami
from mainspring.stores.connect import store_of, with_encryption
from mainspring.stores.documents import By, current_once
from mainspring.stores.feed import EVERY_CHANGE, Change, ChangeFilter
from mainspring.stores.numbers import Grouping
from mainspring.stores.protocol import AuditEntry, AuditFilter, Halt, Stats, Store, WorkerInfo
from mainspring.task import Enqueuer, Task, TaskDecorator

if TYPE_CHECKING:
    from mainspring.encryption import Keys
    from mainspring.features.people.api import People
    from mainspring.features.people.occasions import Occasions
    from mainspring.features.schedules.api import Schedules, When
    from mainspring.features.schedules.rules import Policies
    from mainspring.leases import Leases
    from mainspring.published import PublishedTasks
    from mainspring.worker import Worker, WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)
E2 = TypeVar("E2", bound=Event)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
S = TypeVar("S", bound=Callable[[Change], Any])
AR = TypeVar("AR", bound=AroundRun)
AE = TypeVar("AE", bound=AroundEnqueue)

log = get_log("mainspring")

NOT_FOR_OCCASIONS = frozenset({"chunk", "isolation"})


class Mainspring:
    """The application. `app = Mainspring("sqlite:///jobs.db")` is the whole setup; the store is opened at first use.

    `app.runtime` has the parts of which it is made. Those are for tools and extensions, such as the command line and
    the test kit, and may change in any version; programs do not need them.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///mainspring.db",
        *,
        clock: Clock | None = None,
        halted: HaltedOption | None = None,
        version: str | None = None,
        redact: Redaction | None = None,
        encryption: Keys | None = None,
        **defaults: Unpack[DefaultOptions],
    ) -> None:
        """Name the store and set defaults. A queue (`app.queue`), a task and an enqueue can override them.

        `halted` is a function, or a `HaltCheck`, that says whether another system has halted the jobs. `version` is
        that of your code. Workers record it with each run. Default: the environment variable MAINSPRING_VERSION, or the
        git commit of the working directory. `redact` has the rules of what is hidden from logs, errors and the API,
        see docs/security.md. With `encryption`, payloads and results are encrypted. Default: the keys in the
        environment variable MAINSPRING_ENCRYPTION_KEYS, if it is set.
        """
        given = store_of(store, clock)
        opened = with_encryption(given, encryption)
        self.runtime = runtime = Runtime(opened, defaults, halted, version)
        services = runtime.services
        services.redaction = redact or services.redaction
        if opened is not given:  # texts about jobs are not encrypted, so they must not repeat what is
            services.redaction = replace(services.redaction, all_values=True)
        self.tasks = runtime.tasks
        self.jobs = runtime.jobs
        self.breakers = runtime.breakers
        self.batches = runtime.batches
        self.limits = runtime.limits
        self.failures = runtime.failures
        self.bulk = runtime.bulk
        self.subscribers = runtime.subscribers
        self.settings = runtime.settings

    def __repr__(self) -> str:
        return f"<Mainspring {self.store.url}, {len(self.tasks)} tasks>"

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.runtime.close()

    @property
    def store(self) -> Store:
        return self.runtime.store

    @property
    def redaction(self) -> Redaction:
        """Return the rules of what is hidden: `app.redaction(value)` returns a value without secrets."""
        return self.runtime.services.redaction

    @property
    def schedules(self) -> Schedules:
        return self.runtime.schedules

    @property
    def published(self) -> PublishedTasks:
        """Return what workers have published of their tasks: `app.published.list()`. `app.tasks` are this program's."""
        return self.runtime.published

    @property
    def people(self) -> People:
        return self.runtime.people

    @property
    def occasions(self) -> Occasions:
        return self.runtime.occasions

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this API from code without an event loop: `app.run(app.jobs.get(job_id))`."""
        return self.runtime.services.run(work)

    def now(self) -> datetime:
        return self.runtime.services.now()

    # -- tasks --------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R, Awaitable[R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R, Awaitable[R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, *, chunk: Chunk, **options: Unpack[TaskOptions]) -> ChunkDecorator: ...
    @overload
    def task(self, *, chunk: None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, *plain: Callable[..., Any], chunk: Chunk | None = None, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task. The store knows it by the function's name or by `name`, never by an import path.

        Coroutines run on the worker's event loop, plain functions in its threads. With isolation="process" each job
        runs in its own process; only then can a timeout really stop the work. With `chunk` the function takes a list,
        and each job is one item of it. `version` keeps an older function, for jobs under way, beside a newer one.
        `steps` declares the steps in advance, so that readers see what is to come. See docs/durable.md.
        """
        of_jobs = checked_for_task({name: value for name, value in options.items() if name not in OF_TASK_ONLY})
        names = sys._getframe(1).f_locals  # noqa: SLF001 - annotations may name what is local to the caller

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            return self._make_task(function, names, of_jobs, options, chunk)

        return decorate(*plain) if plain else decorate

    def _make_task(
        self,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        options: EnqueueOptions,
        given: TaskOptions,
        chunk: Chunk | None,
    ) -> Task[..., Any, Any]:
        refuse_unfit(function, given.get("name"))
        make: Callable[..., Task[..., Any, Any]] = Task if chunk is None else partial(ChunkTask, chunk=chunk)
        version = given.get("version", 1)
        called = versioned(given.get("name") or function.__name__, version)
        task = make(self.runtime.shared, function, called, options=options, given=given, names=names)
        limits = given.get("limits", ())
        if limited := (limits,) if isinstance(limits, (Limit, Rate)) else tuple(limits):
            self.runtime.declared_limits.of_task(task.name, limited)
        if (fair := given.get("fair")) is not None:
            self.runtime.declared_limits.of_fair_task(task.name, fair, queue_of(options))
        registered = self._register(task, exactly=version > 1)
        if (recover := given.get("recover")) is not None:
            self.runtime.recovery.declare(task.name, recover)
        return registered

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Set defaults for the jobs of one queue: `app.queue("renders", timeout=600, retry=Retry.fixed(30))`.

        They override the defaults of `Mainspring(…)`. A task and `using(…)` override them. Call this before you
        declare the queue's tasks, best right after `Mainspring(…)`.
        """
        check_queue(name)
        declared = [task.name for task in self.tasks.values() if queue_of(task.options) == name]
        self.runtime.defaults.set_queue(name, options, declared)

    def limit_queue(self, queue: str, *limits: Limit | Rate) -> None:
        """Limit all jobs of a queue together: `app.limit_queue("mail", Limit(20), Rate(100, per=1))`."""
        self.runtime.declared_limits.of_queue(queue, limits)

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
        from mainspring.features.schedules.api import Declared, as_schedule, owner_of

        schedule = as_schedule(when, tz=tz, **policies)

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
        self.runtime.middleware.add_run(function)
        return function

    def around_enqueue(self, function: AE) -> AE:
        """Wrap every enqueue in a plain generator function that yields once. It may set `call.headers` before that."""
        self.runtime.middleware.add_enqueue(function)
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
            self.runtime.people_feature.handle(kind, function, names, self.task(**named))
            return function

        return decorate

    def _register(self, task: Task[..., Any, Any], *, exactly: bool = False) -> Task[..., Any, Any]:
        if task.name in self.runtime.internal_tasks:
            msg = f"a task cannot be named {task.name!r}: a task of Mainspring's own has that name"
            raise ConfigurationError(msg)
        known = self.tasks.get(task.name)
        if known is not None and (place_of(known) != place_of(task) or (exactly and line_of(known) != line_of(task))):
            msg = f"two tasks are named {task.name!r}: give one of them another with @app.task(name=…) or version=…"
            raise ConfigurationError(msg)
        self.tasks[task.name] = task
        return task

    # -- jobs ---------------------------------------------------------------------------------

    async def enqueue(
        self, name: str, payload: Any = None, /, *, allow_unknown: bool = False, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        """Enqueue a job by its task's name: `app.enqueue("render", {"scene": 7}, priority="high")`.

        This program need not have the task. If it has, the task checks the payload and gives its options. If not, the
        description does that which workers have published in the store. The payload has the form in which `job.payload`
        shows it; leave it out for a task without arguments. `options` are those of `task.using(…)`.

        An unknown name raises UnknownTask. With `allow_unknown`, such a job is enqueued without a check.
        """
        return await self._by_name(name, allow_unknown, options, lambda task: task.enqueue_data(given(payload)))

    def enqueue_sync(
        self, name: str, payload: Any = None, /, *, allow_unknown: bool = False, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        return self._by_name_sync(name, allow_unknown, options, lambda task: task.enqueue_data_sync(given(payload)))

    async def enqueue_many(
        self, name: str, payloads: Iterable[Any], /, *, allow_unknown: bool = False, **options: Unpack[EnqueueOptions]
    ) -> list[JobHandle[Any]]:
        """Enqueue one job for each of the payloads, by their task's name; see `enqueue` and `Task.enqueue_many`."""
        some = list(payloads)
        return await self._by_name(name, allow_unknown, options, lambda task: task.enqueue_data_many(some))

    def enqueue_many_sync(
        self, name: str, payloads: Iterable[Any], /, *, allow_unknown: bool = False, **options: Unpack[EnqueueOptions]
    ) -> list[JobHandle[Any]]:
        some = list(payloads)
        return self._by_name_sync(name, allow_unknown, options, lambda task: task.enqueue_data_many_sync(some))

    async def prepare(
        self, name: str, payload: Any = None, /, *, allow_unknown: bool = False, **options: Unpack[EnqueueOptions]
    ) -> NewJob:
        """Return a job for `enqueue_all`, `batch` or `chain`, by its task's name; see `enqueue`."""

        async def prepared(task: Enqueuer[..., Any]) -> NewJob:
            return task.prepare_data(given(payload))

        return await self._by_name(name, allow_unknown, options, prepared)

    async def _by_name(
        self,
        name: str,
        allow_unknown: bool,  # noqa: FBT001 - given on by its callers
        options: EnqueueOptions,
        enqueue: Callable[[Enqueuer[..., Any]], Awaitable[T]],
    ) -> T:
        """Enqueue with the task of this name. If its description was read a while ago and refuses, read it again."""
        task = await self.find_task(name, allow_unknown=allow_unknown)
        try:
            return await enqueue(task.using(**options))
        except InvalidPayload:
            if isinstance(task, Task) or (newer := await self.published.refreshed(task)) is task:
                raise
        return await enqueue(newer.using(**options))

    async def find_task(self, name: str, *, allow_unknown: bool = False) -> Task[..., Any, Any] | RemoteTask:
        """Return the task of this name: that of this program, or else what workers have published of it."""
        own = self._own_task(name)
        return await self.published.task(name, allow_unknown=allow_unknown) if own is None else own

    def _by_name_sync(
        self,
        name: str,
        allow_unknown: bool,  # noqa: FBT001 - given on by its callers
        options: EnqueueOptions,
        enqueue: Callable[[Enqueuer[..., Any]], T],
    ) -> T:
        """Do what `_by_name` does, in the caller's thread: its connection and its middleware may belong there."""
        if (own := self._own_task(name)) is not None:
            return enqueue(own.using(**options))
        task = self.run(self.published.task(name, allow_unknown=allow_unknown))
        try:
            return enqueue(task.using(**options))
        except InvalidPayload:
            if (newer := self.run(self.published.refreshed(task))) is task:
                raise
        return enqueue(newer.using(**options))

    def _own_task(self, name: str) -> Task[..., Any, Any] | None:
        if name in self.runtime.internal_tasks:
            msg = f"a job of {name!r} cannot be enqueued by name: it is a task of Mainspring's own"
            raise ConfigurationError(msg)
        return self.tasks.get(name)

    async def enqueue_all(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[JobHandle[Any]]:
        """Enqueue prepared jobs of any tasks: `app.enqueue_all([a.prepare(x=1), b.prepare()])`.

        All jobs are checked first; if one is invalid, none is enqueued. SQLite and PostgreSQL write them in one
        transaction: all or none. On DynamoDB, a failure in the middle can leave some of the jobs enqueued.
        """
        check_prepared("app.enqueue_all", jobs)
        return self._handles(jobs, await self.runtime.pipeline.insert(list(jobs), connection))

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
        await self.runtime.dependencies.check(given)
        return await self.batches.put(jobs, follow_ups)

    async def chain(self, *jobs: NewJob) -> list[JobHandle[Any]]:
        """Enqueue prepared jobs to run one after the other. If one does not complete, the rest are cancelled."""
        check_prepared("app.chain", jobs)
        linked = batches.linked(jobs)
        return self._handles(linked, await self.runtime.pipeline.insert(linked))

    def _handles(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> list[JobHandle[Any]]:
        return [
            JobHandle(entry.id, entry.created, self.jobs, self.tasks.get(job.task))
            for entry, job in zip(inserted, jobs, strict=True)
        ]

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle of any job by its id: `await app.job(job_id).result()`. This does not read the store.

        `task.handle(job_id)` does the same, and knows the type of the task's result.
        """
        return JobHandle(job_id, False, self.jobs, None)  # noqa: FBT003 - not created by this call

    # -- signals --------------------------------------------------------------------------------

    async def signal(
        self, key: str, payload: Any = None, *, keep: Length = signals.SIGNAL_RETENTION, id: str | None = None
    ) -> Signal:
        """Wake all jobs that wait for this key (`ctx.wait_for`), now or later while the signal is kept (`keep`).

        To make a send safe to repeat (for example from a webhook), pass an `id`. Signals with the same id are one
        signal, and the first one counts. What a job of a project sends reaches jobs of the same project only.
        """
        return await signals.send(self.store, key_in_run(key), payload, keep, id)

    # -- the whole system ---------------------------------------------------------------------

    async def halt(
        self,
        reason: str = "",
        *,
        reject_new: bool = False,
        until: datetime | None = None,
        actor: str | None = None,
        wait: Length | None = CONFIRM_WITHIN,
    ) -> HaltResult:
        """Stop all workers from starting jobs. New jobs are stored for later, or rejected with `reject_new`.

        Return as soon as all live workers have confirmed, at the latest after `wait`: a length of time, 0 to return at
        once, None for no limit. The result names the workers that have not confirmed.
        """
        halt = Halt(actor or whoami(), reason, self.now(), until, None, not reject_new, once=current_once(halt=""))
        return await self._halt(halt, wait)

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
        halt = Halt(actor or whoami(), reason, self.now(), until, check_queue(queue), once=current_once(halt=queue))
        return await self._halt(halt, wait)

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
        self.runtime.bus.emit(
            Halted(actor=halt.actor, reason=halt.reason, queue=halt.queue, until=halt.until, unconfirmed=names)
        )

    async def _copy_halt(self) -> Halt | None:
        return next((halt for halt in await self.store.halts() if halt.queue is None and halt.protects_copy), None)

    async def resume(
        self, queue: str | None = None, *, reason: str = "", actor: str | None = None, force: bool = False
    ) -> bool:
        """End the halt, or the pause of one queue; return False if there was none.

        A store whose jobs were or are being copied to another store stays halted, because its jobs would run twice.
        Pass `force=True` to resume it nevertheless.
        """
        by = By(actor or whoami(), reason)
        if queue is None and not force and (copy := await self._copy_halt()) is not None:
            msg = (
                f"{self.store.url} is {copy.reason}, and stays halted: its jobs would run in both stores. To give up "
                f"that copy and run them from here: mainspring resume --force, or app.resume(force=True)"
            )
            raise SystemHalted(msg)
        resumed = await self.store.resume(by, None if queue is None else check_queue(queue))
        if resumed:
            self.runtime.bus.emit(Resumed(actor=by.actor, queue=queue))
        return resumed

    async def halts(self) -> list[Halt]:
        """Return the halts in force, with that of the function given as `halted`."""
        return await self.runtime.services.halts()

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        """Return how the system is now: its queues, workers and halts. `within` names queues, or patterns of them."""
        return await self.runtime.services.stats(within)

    async def numbers(
        self,
        *,
        since: datetime | Length = DEFAULT_SINCE,
        until: datetime | None = None,
        step: StepName = "hour",
        queue: str | None = None,
        task: str | None = None,
        by: Grouping | None = None,
        zone: str = "UTC",
        within: Sequence[str] = (),
    ) -> Numbers:
        """Return what happened to jobs over time: how many were enqueued, completed, failed, and how long they took.

        `since` is a time, or a length of time before now. Minutes are kept for 48 hours, hours for 30 days and days
        for 2 years. `zone` decides where days begin. With `by`, `Numbers.groups` has each queue or task. `within` names
        queues, or patterns of them such as `p/acme/*`: only these are counted.
        """
        return await read_numbers(
            self.store, since=since, until=until, step=step, queue=queue, task=task, by=by, zone=zone,
            within=tuple(within),
        )  # fmt: skip

    async def recoveries(self) -> list[Recovery]:
        """Return what the recoveries of tasks have done, also of tasks that only other programs know."""
        return await recoveries(self.runtime.services)

    async def health(self, *, max_lateness: Length = MAX_LATENESS, timeout: Length = TIMEOUT) -> Health:
        """Return whether all is well. Report a store that does not answer within `timeout` as down; do not raise."""
        late, seconds = timedelta(milliseconds=duration(max_lateness)), duration(timeout) / 1000
        health = await examine(self.store, self.runtime.contact, max_lateness=late, timeout=seconds)
        outside = self.runtime.services.outside_halt
        return health if outside is None else with_outside(health, await outside.verdict(), strict=outside.check.strict)

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        job: str | None = None,
        operation: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> list[AuditEntry]:
        """Return changes by hand, newest first. To go on, pass the `cursor` of the last entry that you have read."""
        where = AuditFilter(actor, action, since, until, job, operation)
        return await self.store.audit(where, limit=limit, cursor=cursor)

    # -- events -------------------------------------------------------------------------------

    @overload
    def on(self, kind: type[E], /) -> Callable[[Subscriber[E]], Subscriber[E]]: ...
    @overload
    def on(self, kind: type[E], other: type[E2], /) -> Callable[[Subscriber[E | E2]], Subscriber[E | E2]]: ...
    @overload
    def on(self, *kinds: type[E]) -> Callable[[Subscriber[E]], Subscriber[E]]: ...
    def on(self, *kinds: type[Any]) -> Callable[[Subscriber[Any]], Subscriber[Any]]:
        """Call the decorated function with each event of these kinds: `@app.on(JobDeadLettered)`."""

        def subscribe(subscriber: Subscriber[Any]) -> Subscriber[Any]:
            for kind in kinds:
                self.runtime.bus.subscribe(kind, subscriber)
            return subscriber

        return subscribe

    # -- working ------------------------------------------------------------------------------

    def changes(self, *, after: str | None = None, where: ChangeFilter = EVERY_CHANGE) -> ChangeStream:
        """Return the changes of jobs, halts, workers and documents as they happen, in this and all other processes.

        `async for change in app.changes(where=ChangeFilter(kinds=("dead_lettered",))): …`, or `for` in code without an
        event loop. `after` is the cursor of a change, or of a stream, after which to go on; by default the stream
        begins now. Raises ChangesLost if the feed no longer has what came after that cursor.
        """
        return ChangeStream(self.runtime.services, after, where)

    def subscriber(self, name: str, *, where: ChangeFilter = EVERY_CHANGE) -> Callable[[S], S]:
        """Call the function for each change, once across all processes; the application's workers do so.

        The store keeps the place of the subscriber under its name. A new subscriber begins now. A change whose function
        fails is tried again until it succeeds, and later changes wait for it. If a process dies in between, the
        function may be called again with the same `Change.id`: pass it on as an idempotency key.
        """

        def decorate(function: S) -> S:
            self.runtime.subscribers.add(name, where, function)
            return function

        return decorate

    @cached_property
    def leases(self) -> Leases:
        """Work on jobs by your own means: claim them, report about them and end them outside of a handler."""
        from mainspring.leases import Leases

        return Leases(self.runtime)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Make a worker for this application: `app.worker(queues=["mail"]).run()`, or `async with app.worker():`."""
        from mainspring.worker import Worker

        return Worker(self, **options)


def given(payload: Any) -> Any:
    """Return the payload of an enqueue by name: an empty object for a task without arguments."""
    return {} if payload is None else payload


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
