"""A task: a plain function that can also be enqueued."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from mainspring.batched import Batch
from mainspring.clock import Length, Millis, check_moment, delay_of, duration, shown, to_millis
from mainspring.context import Context
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.features.breakers import api as breakers
from mainspring.features.debounce import feature as newest
from mainspring.features.debounce.feature import Debounce, Throttle
from mainspring.features.delivery import feature as delivery
from mainspring.features.delivery.feature import AnyWindow, PersonWindow, Window
from mainspring.features.dependencies import feature as dependencies
from mainspring.features.dependencies.feature import After, HasId, OnFailed
from mainspring.features.durable.journal import check_name
from mainspring.features.expiry import feature as expiry
from mainspring.features.limits.options import Fair, Limit, Rate
from mainspring.handle import JobHandle
from mainspring.ids import new_id
from mainspring.job import FOREVER, KEEP_FOREVER, Claim, FreshJobs, Inserted, NewJob, Priority, PriorityName
from mainspring.middleware import EnqueueCall, check_headers
from mainspring.names import LONGEST_KEY, LONGEST_NAME, problem_of
from mainspring.names import check_name as check_task_name
from mainspring.portal import run_at_once
from mainspring.retry import Retry, problem_of_attempts
from mainspring.stores.protocol import Immediate
from mainspring.stores.rules import refuse_unkeepable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mainspring.app import Mainspring
    from mainspring.payload import Payload

P = ParamSpec("P")
R = TypeVar("R")  # what the job results in
C = TypeVar("C")  # what calling the function returns: R, or an awaitable of it

Isolation = Literal["auto", "process"]
Ack = Literal["batched", "sync"]


Kept = Length | Literal["forever"]
LONGEST_KEPT = timedelta(days=365_000)  # anything longer means for ever: the last date that Python knows is in 9999


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished jobs stay readable: a timedelta, a number of seconds, or "forever"."""

    completed: Kept = timedelta(days=7)  # and cancelled ones
    dead: Kept = timedelta(days=30)

    def __post_init__(self) -> None:
        keep_of(self.completed, "completed")
        keep_of(self.dead, "dead")


def keep_of(length: Kept, what: str) -> Millis:
    """Return the milliseconds for a job's `keep` or `keep_dead`; KEEP_FOREVER from 1,000 years on."""
    if length == "forever":
        return KEEP_FOREVER
    seconds: Any = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, (int, float)):
        msg = f'Retention({what}={length!r}): give a timedelta, a number of seconds, or "forever"'
        raise ConfigurationError(msg)
    if not seconds >= 0:
        msg = f"Retention({what}={length!r}): give a length of 0 or more; 0 removes the job at once"
        raise ConfigurationError(msg)
    return KEEP_FOREVER if seconds >= LONGEST_KEPT.total_seconds() else duration(length)


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is enqueued. None means unset: the task's own value or the default applies."""

    queue: str | None = None
    priority: PriorityName | Priority | None = None
    run_at: datetime | None = None
    delay: Length | None = None
    dedupe_key: str | None = None
    dedupe_for: Literal["active", "forever"] | Length | None = None
    target: tuple[str, str] | None = None
    tags: Iterable[str] | None = None
    max_attempts: int | None = None
    retry: Retry | None = None
    timeout: Length | None = None
    isolation: Isolation | None = None
    retention: Retention | None = None
    connection: Any = None
    throttle: Throttle | None = None
    debounce: Debounce | None = None
    replace: str | None = None
    expires: Length | datetime | None = None
    after: tuple[HasId | str, ...] | None = None
    on_failed: OnFailed | None = None
    breaker: str | None = None
    deliver: AnyWindow | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.tags is not None and not isinstance(self.tags, (str, tuple)):
            object.__setattr__(self, "tags", listed(self.tags))  # an iterator could be read only once
        for problem in problems_of(self):
            raise ConfigurationError(problem)

    def over(self, other: Options) -> Options:
        """Return these options, with the other's values where these are unset."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if "run_at" in given:
            given.setdefault("delay", None)
        elif "delay" in given:
            given.setdefault("run_at", None)
        if "retry" in given:
            given.setdefault("max_attempts", None)  # use the number in the policy, not the task's
        return replace(other, **given)


def listed(tags: Any) -> tuple[Any, ...]:
    if isinstance(tags, Iterable):
        return tuple(tags)
    msg = f"tags must be a list of strings, not {shown(tags)}"
    raise ConfigurationError(msg)


OPTIONS = frozenset(each.name for each in fields(Options))


def problems_of(options: Options) -> Iterator[str]:
    """Yield what is wrong with the options, so that mistakes show at the enqueue and not when the job runs."""
    yield from problems_of_names(options)
    if options.run_at is not None:
        check_moment(options.run_at, "run_at")
    if options.run_at is not None and options.delay is not None:
        yield "give run_at or delay, not both"
    if options.delay is not None:
        delay_of(options.delay)
    if options.dedupe_for is not None and options.dedupe_key is None:
        yield "dedupe_for needs a dedupe_key"
    if isinstance(options.dedupe_for, str) and options.dedupe_for not in {"active", "forever"}:
        yield f'dedupe_for must be "active", "forever" or a length of time, not {options.dedupe_for!r}'
    if options.dedupe_for is not None and not isinstance(options.dedupe_for, str):
        delay_of(options.dedupe_for, "dedupe_for")
    yield from problems_of_running(options)
    yield from problems_of_flow(options)


def problems_of_names(options: Options) -> Iterator[str]:
    """Yield what is wrong with names and keys, by the rules in names.py."""
    named: list[tuple[Any, str, int]] = []
    if options.queue not in {None, "", "*"}:  # problems_of_running has a message for these
        named.append((options.queue, "queue", LONGEST_NAME))
    if options.dedupe_key is not None:
        named.append((options.dedupe_key, "dedupe_key", LONGEST_KEY))
    if options.target is not None:
        if not is_pair_of_strings(options.target):
            yield f"target must be a type and an id, two strings, not {shown(options.target)}"
            return
        named += [(options.target[0], "the target's type", LONGEST_NAME), (options.target[1], "its id", LONGEST_KEY)]
    if isinstance(options.tags, str):
        yield f"tags must be a list of strings, not the string {shown(options.tags)}"
        return
    named += [(tag, "a tag", LONGEST_NAME) for tag in options.tags or ()]
    for text, what, longest in named:
        if problem := problem_of(text, what, longest):
            yield problem


def is_pair_of_strings(value: Any) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [str, str]


def problems_of_running(options: Options) -> Iterator[str]:
    if options.queue in {"", "*"}:
        yield f"{options.queue!r} is not a name for a queue"
    if options.priority is not None and (problem := Priority.problem_of(options.priority)):
        yield problem
    if options.headers is not None and (problem := check_headers(options.headers)):
        yield problem
    if options.max_attempts is not None and (problem := problem_of_attempts(options.max_attempts)):
        yield problem
    if options.timeout is not None and duration(options.timeout) <= 0:
        yield f"timeout is {options.timeout}; give at least a millisecond, or leave it out for no timeout"
    if options.isolation not in {None, "auto", "process"}:
        yield f'isolation must be "auto" or "process", not {options.isolation!r}'


TYPES_OF_OPTIONS: dict[str, tuple[type, ...]] = {
    "retry": (Retry,),
    "retention": (Retention,),
    "throttle": (Throttle,),
    "debounce": (Debounce,),
    "deliver": (Window, PersonWindow),
}


def problems_of_flow(options: Options) -> Iterator[str]:
    for name, kinds in TYPES_OF_OPTIONS.items():
        value = getattr(options, name)
        if value is not None and not isinstance(value, kinds):
            yield f"{name} must be a {kinds[0].__name__}(…), not {value!r}"
            return
    given = {name for name in ("dedupe_key", "throttle", "debounce", "replace") if getattr(options, name) is not None}
    if len(given) > 1:
        yield f"give only one of {' and '.join(sorted(given))}: each says what happens to a second job under a key"
    if options.debounce is not None and (options.run_at is not None or options.delay is not None):
        yield "debounce says when the job is due; leave out run_at and delay"
    if given & {"debounce", "replace"} and options.connection is not None:
        yield "debounce and replace change a waiting job, and cannot do that in your transaction; leave out connection"
    if options.replace is not None:
        newest.check_key(options.replace, "replace")
    if options.breaker is not None:
        breakers.check_name(options.breaker)
    if options.expires is not None and (problem := expiry.problem_of(options.expires)):
        yield problem
    if problem := dependencies.problem_of(options.after, options.on_failed):
        yield problem


NOTHING = Options()


class Defaults:
    """Options for jobs whose task and enqueue leave them unset: those of the queue, else those of the application."""

    def __init__(
        self,
        *,
        retry: Retry | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        retention: Retention | None = None,
    ) -> None:
        given = Options(retry=retry, max_attempts=max_attempts, timeout=timeout, retention=retention)
        self._app = None if given == NOTHING else given
        self._queues: dict[str, Options] = {}

    def set_queue(self, queue: str, options: Options, declared: Sequence[str]) -> None:
        known = self._queues.get(queue)
        if known is not None and known != options:
            msg = f"the defaults of queue {queue!r} are set twice, and differ; set them in one place"
            raise ConfigurationError(msg)
        if known is None and declared:
            msg = (
                f"app.queue({queue!r}, …) comes after tasks of that queue: {', '.join(declared)}. Set a queue's"
                " defaults before its tasks, best right after Mainspring(…)"
            )
            raise ConfigurationError(msg)
        self._queues[queue] = options

    def under(self, options: Options, queue: str) -> Options:
        """Return the options, with the defaults of that queue and the application where they are unset."""
        of_queue = self._queues.get(queue)
        if of_queue is not None:
            options = options.over(of_queue)
        return options if self._app is None else options.over(self._app)


class Task(Generic[P, R, C]):
    """A task made by `@app.task(...)`. Calling it calls the function; enqueuing it makes a job."""

    batch: Batch | None = None  # only a `BatchTask` has one
    is_internal = False  # a task of Mainspring's own, without middleware and defaults
    keys_are_unique = False  # True if no two of its jobs ever have the same dedupe key, as for occasions

    def __init__(
        self,
        app: Mainspring,
        function: Callable[..., Any],
        name: str,
        *,
        options: Options,
        ack: Ack = "batched",
        names: Mapping[str, Any] | None = None,
        steps: Iterable[str] = (),
    ) -> None:
        self.app = app
        self.name = check_task_name(name, "the name of a task")
        self.function = function
        self.check(options)
        self.options = options
        self.ack = ack
        self.steps = checked_steps(name, steps, options)
        self.is_async = inspect.iscoroutinefunction(function)
        self.payload = self._payload_of(function, names or {})
        self.is_plain = self.is_async and self.payload.context is None and options.isolation != "process"
        self._retries: dict[str, Retry] = {}
        self._enqueuer: Enqueuer[P, R] = Enqueuer(self, Options())
        functools.update_wrapper(self, function)

    def _payload_of(self, function: Callable[..., Any], names: Mapping[str, Any]) -> Payload:
        from mainspring.payload import Payload  # noqa: PLC0415 - it imports Pydantic, which takes a while

        return Payload(self.name, function, Context, names)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C: ...
    @overload
    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> C: ...
    def __call__(self, *args: Any, **kwargs: Any) -> C:  # type: ignore[misc] # mypy does not see that it takes P too
        """Call the plain function. If it takes a context and you give none, it gets a detached one."""
        wanted = self.payload.context
        if wanted is None or wanted in kwargs or any(isinstance(arg, Context) for arg in args):
            result: C = self.function(*args, **kwargs)
            return result
        context = Context.detached(task=self.name)
        place = list(inspect.signature(self.function).parameters).index(wanted)
        if place < len(args):
            result = self.function(*args[:place], context, *args[place:], **kwargs)
        else:
            result = self.function(*args, **{wanted: context}, **kwargs)
        return result

    def using(
        self,
        *,
        queue: str | None = None,
        priority: PriorityName | Priority | None = None,
        run_at: datetime | None = None,
        delay: Length | None = None,
        dedupe_key: str | None = None,
        dedupe_for: Literal["active", "forever"] | Length | None = None,
        target: tuple[str, str] | None = None,
        tags: Iterable[str] | None = None,
        max_attempts: int | None = None,
        retry: Retry | None = None,
        timeout: Length | None = None,
        isolation: Isolation | None = None,
        retention: Retention | None = None,
        connection: Any = None,
        throttle: Throttle | None = None,
        debounce: Debounce | None = None,
        replace: str | None = None,
        expires: Length | datetime | None = None,
        after: After | None = None,
        on_failed: OnFailed | None = None,
        breaker: str | None = None,
        deliver: AnyWindow | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Enqueuer[P, R]:
        """Return the task with options for the next enqueue; they never mix with its arguments."""
        given = Options(
            queue=queue, priority=priority, run_at=run_at, delay=delay, dedupe_key=dedupe_key, dedupe_for=dedupe_for,
            target=target, tags=tags, max_attempts=max_attempts, retry=retry, timeout=timeout, isolation=isolation,
            retention=retention, connection=connection, throttle=throttle, debounce=debounce, replace=replace,
            expires=expires, after=dependencies.listed(after), on_failed=on_failed, breaker=breaker, deliver=deliver,
            headers=headers,
        )  # fmt: skip
        self.check(given)
        return Enqueuer(self, given)

    def retry_in(self, queue: str) -> Retry:
        """Return the policy for jobs of that queue without their own: the task's, the queue's or the application's."""
        retry = self._retries.get(queue)
        if retry is None:
            options = self.options if self.is_internal else self.app.defaults.under(self.options, queue)
            retry = options.retry or Retry(max_attempts=options.max_attempts or Retry().max_attempts)
            self._retries[queue] = retry
        return retry

    def check(self, options: Options) -> None:
        """Raise ConfigurationError for options that this kind of task does not support."""

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await self._enqueuer.enqueue(*args, **kwargs)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue from code without an event loop."""
        return self._enqueuer.enqueue_sync(*args, **kwargs)

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any] | BaseModel | NewJob]) -> list[JobHandle[R]]:
        """Enqueue one job for each of the payloads.

        All payloads are checked first; if one is invalid, no job is enqueued. SQLite and PostgreSQL write the jobs in
        one transaction: all or none. On DynamoDB, a failure in the middle can leave some of the jobs enqueued.

        To give an item its own options, pass a prepared job: `task.using(delay=60).prepare(guest="ana")`. Type
        checkers see the arguments of a prepared job; those of a mapping are checked only at run time.
        """
        return await self._enqueuer.enqueue_many(payloads)

    def enqueue_many_sync(self, payloads: Iterable[Mapping[str, Any] | BaseModel | NewJob]) -> list[JobHandle[R]]:
        return self._enqueuer.enqueue_many_sync(payloads)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a checked job that is not enqueued yet, for `ctx.follow_up`, `app.enqueue_all`, batches and chains."""
        return self._enqueuer.prepare(*args, **kwargs)

    def template(self, arguments: Mapping[str, Any]) -> NewJob:
        """Return a job for a schedule or an occasion. Your code does not enqueue it, so no middleware runs."""
        return self._enqueuer.template(arguments)

    def template_of(self, payload: str) -> NewJob:
        """Return a job like `template`, with arguments that are JSON already and known to be valid."""
        return self._enqueuer.template_of(payload)

    def idempotency_key(self, claim: Claim) -> str:
        """Return the key by which outside services recognise a repeat of this job."""
        return claim.dedupe_key if self.keys_are_unique and claim.dedupe_key else claim.id

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return a handle of an existing job of this task, perhaps of another program. This does not read the store."""
        return JobHandle(job_id, False, self.app, self)  # noqa: FBT003 - not created by this call


UNWRAPPED: AbstractContextManager[None] = nullcontext()
OPTIONS_FIELD = [each.name for each in fields(NewJob)[3:]].index("options")


class Enqueuer(Generic[P, R]):
    """A task with the options of one enqueue. Payloads have the types that the task's `enqueue_many` takes."""

    def __init__(self, task: Task[P, R, Any], options: Options) -> None:
        self._task = task
        self._given = options
        self._options = options.over(task.options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        with self._around() as call:
            return (await self._insert(FreshJobs([self._prepared(args, kwargs, call)]), call))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        with self._around() as call:
            return self._insert_sync(FreshJobs([self._prepared(args, kwargs, call)]), call)[0]

    async def enqueue_many(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            jobs, prepared = self._prepare_many(payloads, call)
            if prepared and self._options.connection is None:
                await dependencies.refuse_unknown(self._task.app, jobs)
            return await self._insert(jobs, call)

    def enqueue_many_sync(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            jobs, prepared = self._prepare_many(payloads, call)
            if prepared and self._options.connection is None:
                self._task.app.run(dependencies.refuse_unknown(self._task.app, jobs))
            return self._insert_sync(jobs, call)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        if self._newest_under is not None:
            msg = "a job with debounce or replace cannot be prepared, because it may replace a waiting job; enqueue it"
            raise ConfigurationError(msg)
        with self._around() as call:
            job = self._prepared(args, kwargs, call)
            if call is not None:
                call.job_ids = [job.id]
            return job

    def template(self, arguments: Mapping[str, Any]) -> NewJob:
        return self._prepared((), dict(arguments), None)

    def template_of(self, payload: str) -> NewJob:
        if self._task.app.limits.keyed:
            self._check_keys(payload)
        return NewJob(new_id(), self._task.name, payload, *self._rest)

    def _around(self) -> AbstractContextManager[EnqueueCall | None]:
        """Return the middleware around an enqueue; a shared empty context, at no cost, if there is none."""
        middleware = self._task.app.middleware
        if not middleware.enqueues or self._task.is_internal:
            return UNWRAPPED
        call = EnqueueCall(self._task.name, self._options.queue or "default", dict(self._options.headers or {}))
        return middleware.around_enqueue(call)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: EnqueueCall | None) -> NewJob:
        try:
            text = self._task.payload.dump(args, kwargs)
        except InvalidPayload as error:
            for option in sorted(OPTIONS & kwargs.keys()):  # a common mistake: other libraries mix them
                if not self._task.payload.takes(option):
                    msg = f"{error}; {option} is an option of the job: write using({option}=…).enqueue(…)"
                    raise InvalidPayload(msg) from error
            raise
        if self._task.app.limits.keyed:
            self._check_keys(text)
        return NewJob(new_id(), self._task.name, text, *self._rest_for(call))

    def _prepare_many(self, payloads: Iterable[Any], call: EnqueueCall | None) -> tuple[list[NewJob], bool]:
        """Return the jobs, and whether the caller prepared some of them."""
        name, rest, dump = self._task.name, self._rest_for(call), self._task.payload.dump_one
        keyed = self._task.app.limits.keyed
        jobs, prepared = [], False
        for number, item in enumerate(payloads, 1):
            if isinstance(item, NewJob):
                self._check_prepared(item, number)
                jobs.append(item)
                prepared = True
                continue
            try:
                text = dump(item)
            except InvalidPayload as error:
                msg = f"number {number} of the payloads: {error}"
                raise InvalidPayload(msg) from error
            if keyed:
                self._check_keys(text)
            jobs.append(NewJob(new_id(), name, text, *rest))
        return jobs if prepared else FreshJobs(jobs), prepared

    def _check_prepared(self, job: NewJob, number: int) -> None:
        """Raise ConfigurationError for a job of another task, or if `using` has options: a prepared job has its own."""
        if job.task != self._task.name:
            msg = (
                f"number {number} of the payloads is a job of task {job.task!r}, not {self._task.name!r};"
                " app.enqueue_all([…]) takes jobs of several tasks"
            )
            raise ConfigurationError(msg)
        if replace(self._given, connection=None) != NOTHING:
            msg = (
                f"number {number} of the payloads is a prepared job, which has its own options; give options to each"
                f" item, {self._task.name}.using(…).prepare(…), or to all of them, but not both"
            )
            raise ConfigurationError(msg)

    def _check_keys(self, text: str) -> str:
        """Raise an error if a limit cannot find its key in the payload."""
        self._task.app.limits.check(self._task.name, self._options.queue or "default", text)
        return text

    async def _insert(self, jobs: list[NewJob], call: EnqueueCall | None = None) -> list[JobHandle[R]]:
        return self._handles(await self._put(await self._moved(jobs)), call)

    def _insert_sync(self, jobs: list[NewJob], call: EnqueueCall | None) -> list[JobHandle[R]]:
        app, options = self._task.app, self._options
        if options.connection is None:
            plain = options.deliver is None and options.after is None and self._newest_under is None
            return self._handles(app.insert_sync(jobs), call) if plain else app.run(self._insert(jobs, call))
        if not isinstance(app.store, Immediate):  # opening those might wait for the caller's own transaction
            app.open_sync()  # here, because opening waits for the store, which `run_at_once` cannot do
        if options.deliver is not None:
            jobs = app.run(self._moved(jobs))
        return self._handles(run_at_once(self._put(jobs)), call)

    def _handles(self, inserted: list[Inserted], call: EnqueueCall | None) -> list[JobHandle[R]]:
        if call is not None:
            call.job_ids = [job.id for job in inserted]
        return [JobHandle(job.id, job.created, self._task.app, self._task) for job in inserted]

    async def _moved(self, jobs: list[NewJob]) -> list[NewJob]:
        """Return the jobs, moved to their delivery hours."""
        options = self._options
        if options.deliver is None or options.debounce is not None:
            return jobs
        own_window = delivery.option_of(self._template)
        # a prepared job may have a window of its own, which the guard checks
        fits = [delivery.option_of(job) == own_window for job in jobs]
        deliveries = delivery.Deliveries(self._task.app)
        moved = iter(await deliveries.moved([job for job, fit in zip(jobs, fits, strict=True) if fit], options.deliver))
        return [next(moved) if fit else job for job, fit in zip(jobs, fits, strict=True)]

    async def _put(self, jobs: list[NewJob]) -> list[Inserted]:
        app, options, key = self._task.app, self._options, self._newest_under
        if key is not None:
            return [await newest.Seat(app, job.task, key).put(job, options.debounce) for job in jobs]
        if options.after is not None and options.connection is None:
            return await dependencies.insert_after(app, jobs, dependencies.ids_of(options.after))
        return await app.insert(jobs, options.connection)

    @property
    def _newest_under(self) -> str | None:
        debounce = self._options.debounce
        return self._options.replace if debounce is None else debounce.key

    @functools.cached_property
    def _rest(self) -> tuple[Any, ...]:
        """The arguments of `NewJob` after id, task and payload. They are the same for many jobs."""
        template = self._template
        refuse_unkeepable([replace(template, id=new_id())])
        return tuple(getattr(template, each.name) for each in fields(NewJob)[3:])

    def _rest_for(self, call: EnqueueCall | None) -> tuple[Any, ...]:
        """Return `_rest` with the headers that middleware has set."""
        if call is None or call.headers == (self._options.headers or {}):
            return self._rest
        if problem := check_headers(call.headers):
            raise ConfigurationError(problem)
        own = {**json.loads(self._template.options or "{}"), "headers": call.headers}
        return (*self._rest[:OPTIONS_FIELD], json.dumps(own), *self._rest[OPTIONS_FIELD + 1 :])

    @functools.cached_property
    def _template(self) -> NewJob:
        queue = self._options.queue or "default"
        options = self._options if self._task.is_internal else self._task.app.defaults.under(self._options, queue)
        retry, retention = options.retry or Retry(), options.retention or Retention()
        return NewJob(
            id="",
            task=self._task.name,
            payload="",
            queue=queue,
            priority=Priority.NORMAL if options.priority is None else Priority.parse(options.priority),
            run_at=None if options.run_at is None else to_millis(options.run_at),
            delay=self._delay(),
            max_attempts=options.max_attempts or retry.max_attempts,
            timeout=0 if options.timeout is None else duration(options.timeout),
            dedupe_key=options.dedupe_key if options.throttle is None else options.throttle.dedupe_key,
            dedupe_for=self._dedupe_for(),
            target=options.target,
            tags=tuple(options.tags or ()),
            keep=keep_of(retention.completed, "completed"),
            keep_dead=keep_of(retention.dead, "dead"),
            options=self._own_options(),
        )

    def _delay(self) -> Millis:
        wanted = self._options.delay if self._options.debounce is None else self._options.debounce.wait
        return 0 if wanted is None else duration(wanted)

    def _dedupe_for(self) -> int | None:
        if self._options.throttle is not None:
            return duration(self._options.throttle.per)
        wanted = self._options.dedupe_for
        if wanted is None or wanted == "active":
            return None
        return FOREVER if wanted == "forever" else duration(wanted)

    def _own_options(self) -> str | None:
        """Return the options that the worker must know for this job and cannot know from its task, as JSON."""
        own: dict[str, Any] = {"steps": self._task.steps} if self._task.steps else {}
        if self._given.retry is not None and self._given.retry is not self._task.options.retry:
            own["retry"] = self._given.retry.to_data()
        if self._options.isolation is not None and self._options.isolation != self._task.options.isolation:
            checked_steps(self._task.name, self._task.steps, self._options)
            own["isolation"] = self._options.isolation
        if self._options.headers:
            own["headers"] = dict(self._options.headers)
        own |= self._flow_options()
        return json.dumps(own) if own else None

    def _flow_options(self) -> dict[str, Any]:
        """Return the options that the guards need, see guards.py."""
        options, key = self._options, self._newest_under
        own: dict[str, Any] = {} if key is None else {newest.OPTION: key}
        if options.expires is not None:
            moves = key is not None or options.after is not None or options.deliver is not None
            own[expiry.OPTION] = expiry.option_of(options.expires, options.run_at, options.delay, moves=moves)
        if options.after is not None:
            own[dependencies.OPTION] = dependencies.option_of(options.after, options.on_failed)
        if options.breaker is not None:
            own[breakers.OPTION] = options.breaker
        if options.deliver is not None:
            own[delivery.OPTION] = None if options.deliver is self._task.options.deliver else options.deliver.to_data()
        return own


def checked_steps(name: str, steps: Iterable[str], options: Options) -> tuple[str, ...]:
    """Return the steps that a durable function declares in advance; raise ConfigurationError if they are invalid."""
    if isinstance(steps, str):
        msg = f"task {name!r}: steps must be a list of names, not the text {steps!r}"
        raise ConfigurationError(msg)
    declared = tuple(steps)
    for step in declared:
        check_name(step)
    if len(set(declared)) < len(declared):
        msg = f"task {name!r}: a step is declared twice among {', '.join(declared)}"
        raise ConfigurationError(msg)
    if declared and options.isolation == "process":
        msg = f"task {name!r}: durable functions cannot run in their own process; leave out isolation or steps"
        raise ConfigurationError(msg)
    return declared


class TaskOptions(TypedDict, total=False):
    """The options of `@app.task(…)` other than `batch`, shared by its two overloads."""

    name: str | None
    queue: str
    priority: PriorityName | Priority | None
    retry: Retry | None
    max_attempts: int | None
    timeout: Length | None
    isolation: Isolation
    ack: Ack
    retention: Retention | None
    tags: Iterable[str] | None
    expires: Length | None
    version: int
    steps: Sequence[str]
    breaker: str | None
    deliver: AnyWindow | None
    limits: Iterable[Limit | Rate] | Limit | Rate
    fair: Fair | None


class TaskDecorator(Protocol):
    """The type of `@app.task`: a leading `ctx: Context` is not an argument of the job.

    In any other position the type checker takes it for one: `Concatenate` removes parameters only from the front.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]]) -> Task[P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Task[P, R, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R, R]: ...
