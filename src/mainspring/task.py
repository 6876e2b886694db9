"""A task: a plain function that can also be enqueued."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from mainspring.clock import Millis, duration, to_millis
from mainspring.context import Context
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.features.breakers.api import Breakers
from mainspring.features.debounce.feature import DebounceFeature
from mainspring.features.dependencies import options as dependencies
from mainspring.features.durable.plan import Planned, StepPlan
from mainspring.features.expiry import options as expiry
from mainspring.features.limits.options import DeclaredLimits
from mainspring.handle import JobHandle
from mainspring.ids import new_id
from mainspring.job import FOREVER, Claim, FreshJobs, Inserted, Level, NewJob, Priority
from mainspring.jobs import Jobs
from mainspring.live_settings import EMPTY, NOTHING, LiveSettings, Snapshot
from mainspring.middleware import EnqueueCall, Middleware
from mainspring.names import check_name as check_task_name
from mainspring.options import (
    ENQUEUE_OPTIONS,
    Chunk,
    Defaults,
    EnqueueOptions,
    Retention,
    TaskOptions,
    attempts_in,
    check_headers,
    checked,
    keep_of,
    level_of,
    over,
    queue_of,
)
from mainspring.pipeline import Pipeline
from mainspring.projects import key_in
from mainspring.retry import DEFAULT_MAX_ATTEMPTS, Retry
from mainspring.services import PayloadReader, Services
from mainspring.signature import Signature
from mainspring.stored_options import StoredOptions, options_of
from mainspring.stores.engine.creation import refuse_unkeepable
from mainspring.trace import problem_of_trace

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mainspring.payload import Payload

P = ParamSpec("P")
R = TypeVar("R")  # what the job results in
C = TypeVar("C")  # what calling the function returns: R, or an awaitable of it


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What the tasks of an application share."""

    services: Services
    pipeline: Pipeline
    jobs: Jobs
    defaults: Defaults
    middleware: Middleware
    limits: DeclaredLimits
    debounce: DebounceFeature
    breakers: Breakers
    settings: LiveSettings


class PayloadWriter(PayloadReader, Protocol):
    """Converts the payloads of a task to JSON, and judges them."""

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str: ...
    def dump_one(self, payload: Any) -> str: ...
    def dump_data(self, payload: Any) -> str: ...
    def takes(self, name: str) -> bool: ...


class Enqueueable(Protocol):
    """What an enqueue needs to know of a task: a `Task`, or a `RemoteTask` of another program."""

    @property
    def name(self) -> str: ...
    @property
    def shared(self) -> TaskServices: ...
    @property
    def options(self) -> EnqueueOptions: ...
    @property
    def plan(self) -> StepPlan: ...
    @property
    def payload(self) -> PayloadWriter: ...
    @property
    def is_internal(self) -> bool: ...
    @property
    def is_remote(self) -> bool: ...
    def with_defaults(self, options: EnqueueOptions) -> EnqueueOptions: ...
    def allows_no_arguments(self) -> bool: ...


class Task(Generic[P, R, C]):
    """A task made by `@app.task(...)`. Calling it calls the function; enqueuing it makes a job."""

    chunk: Chunk | None = None  # only a `ChunkTask` has one
    is_internal = False  # a task of Mainspring's own, without middleware and defaults
    is_remote = False  # its code is in another program, see published/remote.py
    keys_are_unique = False  # True if no two of its jobs ever have the same dedupe key, as for occasions

    def __init__(
        self,
        shared: TaskServices,
        function: Callable[..., Any],
        name: str,
        *,
        options: EnqueueOptions,
        given: TaskOptions | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are those of its jobs, and `given` all that it was declared with."""
        given = given or {}
        self.shared = shared
        self.name = check_task_name(name, "the name of a task")
        self.function = function
        self.check(options)
        self.options = options
        self.ack = given.get("ack", "grouped")
        self.plan = declared_plan(name, given.get("steps", ()))
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(name, function, Context, names or {})
        self._check_signature()
        self.is_plain = self.is_async and self.signature.context is None and options.get("isolation") != "process"
        self._retries: dict[str, Retry] = {}
        self._retries_under: Snapshot = EMPTY  # the settings by which they were found
        self._enqueuer: Enqueuer[P, R] = Enqueuer(self, {})
        functools.update_wrapper(self, function)

    def _check_signature(self) -> None:
        """Raise ConfigurationError if jobs could not have the function's arguments or its result."""
        self.signature.check_names()
        if not self.signature.is_plain():
            _ = self.payload

    @functools.cached_property
    def payload(self) -> Payload:
        """Converts the arguments and the result. Made at first use, because importing Pydantic takes a while."""
        from mainspring.payload import Payload  # noqa: PLC0415 - as said

        return Payload(self.signature)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C: ...
    @overload
    def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> C: ...
    def __call__(self, *args: Any, **kwargs: Any) -> C:  # type: ignore[misc] # mypy does not see that it takes P too
        """Call the plain function. If it takes a context and you give none, it gets a detached one."""
        wanted = self.signature.context
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

    def using(self, **options: Unpack[EnqueueOptions]) -> Enqueuer[P, R]:
        """Return the task with options for the next enqueue; they never mix with its arguments."""
        given = checked(options)
        if not given:
            return self._enqueuer
        self.check(given)
        if "steps" in given:
            self._check_plan()
        return Enqueuer(self, given)

    def _check_plan(self) -> None:
        """Raise ConfigurationError if the function cannot run steps."""
        if self.chunk is not None or self.signature.context is None:
            is_chunk = self.chunk is not None
            why = "it is a chunk task" if is_chunk else "its function takes no context"
            instead = "leave out steps" if is_chunk else "add the parameter ctx: Context to it, or leave out steps"
            msg = f"task {self.name!r} cannot run the steps of a plan, because {why}; {instead}"
            raise ConfigurationError(msg)

    def retry_in(self, queue: str) -> Retry:
        """Return the policy for jobs of that queue without their own: the task's, the queue's or the application's.

        A policy that is set at run time comes before that of the code at its level. Which errors are retried is always
        decided by the code.
        """
        if self.shared.settings.snapshot is not self._retries_under:
            self._retries, self._retries_under = {}, self.shared.settings.snapshot
        retry = self._retries.get(queue)
        if retry is None:
            retry = self._retries[queue] = self._find_retry(queue)
        return retry

    def _find_retry(self, queue: str) -> Retry:
        coded = self.with_defaults(over({"queue": queue}, self.options))
        set_now = self._retries_under
        if self.is_internal or not (set_now.tasks or set_now.queues):
            return policy_in(coded)
        own = over(set_now.tasks.get(self.name, NOTHING).defaults, over({"queue": queue}, self.options))
        of_queue = set_now.queues.get(queue, NOTHING).defaults
        found, rules = policy_in(self.shared.defaults.under(own, of_queue)), policy_in(coded)
        return found if found is rules else replace(found, only=rules.only, never=rules.never)

    def with_defaults(self, options: EnqueueOptions) -> EnqueueOptions:
        return options if self.is_internal else self.shared.defaults.under(options)

    def allows_no_arguments(self) -> bool:
        """Return whether a job without arguments is valid."""
        return self.signature.allows_no_arguments()

    def check(self, options: EnqueueOptions) -> None:
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
        return JobHandle(job_id, False, self.shared.jobs, self)  # noqa: FBT003 - not created by this call


UNWRAPPED: AbstractContextManager[None] = nullcontext()
OPTIONS_FIELD = [each.name for each in fields(NewJob)[3:]].index("options")


class Enqueuer(Generic[P, R]):
    """A task with the options of one enqueue. Payloads have the types that the task's `enqueue_many` takes."""

    def __init__(self, task: Enqueueable, given: EnqueueOptions) -> None:
        self._task = task
        self._shared = task.shared
        self._given = given
        self._options = over(given, task.options)
        self._queue = queue_of(self._options)
        self._connection = self._options.get("connection")
        debounce = self._options.get("debounce")
        self._newest_under = self._options.get("replace") if debounce is None else debounce.key

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        if not self._shared.middleware.enqueues and self._newest_under is None:  # as below, in fewer steps
            jobs = FreshJobs([self._prepared(args, kwargs, None)])
            [inserted] = await self._shared.pipeline.insert(jobs, self._connection)
            return JobHandle(inserted.id, inserted.created, self._shared.jobs, self._task)
        with self._around() as call:
            return (await self._insert(FreshJobs([self._prepared(args, kwargs, call)]), call))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        with self._around() as call:
            return self._insert_sync(FreshJobs([self._prepared(args, kwargs, call)]), call)[0]

    async def enqueue_many(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            return await self._insert(self._prepare_many(payloads, call), call)

    def enqueue_many_sync(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            return self._insert_sync(self._prepare_many(payloads, call), call)

    async def enqueue_data(self, payload: Any) -> JobHandle[R]:
        """Enqueue a job whose payload is given as `job.payload` shows it, as `app.enqueue` does."""
        with self._around() as call:
            return (await self._insert(FreshJobs([self._from_data(payload, call)]), call))[0]

    def enqueue_data_sync(self, payload: Any) -> JobHandle[R]:
        with self._around() as call:
            return self._insert_sync(FreshJobs([self._from_data(payload, call)]), call)[0]

    async def enqueue_data_many(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            return await self._insert(self._prepare_many(payloads, call, self._task.payload.dump_data), call)

    def enqueue_data_many_sync(self, payloads: Iterable[Any]) -> list[JobHandle[R]]:
        with self._around() as call:
            return self._insert_sync(self._prepare_many(payloads, call, self._task.payload.dump_data), call)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        return self._prepare_by(lambda call: self._prepared(args, kwargs, call))

    def prepare_data(self, payload: Any) -> NewJob:
        """Prepare a job whose payload is given as `job.payload` shows it, as `app.prepare` does."""
        if not self._shared.middleware.enqueues and self._newest_under is None:  # as below, in fewer steps
            return self._from_data(payload, None)
        return self._prepare_by(lambda call: self._from_data(payload, call))

    def _prepare_by(self, make: Callable[[EnqueueCall | None], NewJob]) -> NewJob:
        if self._newest_under is not None:
            msg = "a job with debounce or replace cannot be prepared, because it may replace a waiting job; enqueue it"
            raise ConfigurationError(msg)
        with self._around() as call:
            job = make(call)
            if call is not None:
                call.job_ids = [job.id]
            return job

    def template(self, arguments: Mapping[str, Any]) -> NewJob:
        if not arguments and self._task.allows_no_arguments():  # as for most schedules; needs no Pydantic
            return self.template_of("{}")
        return self._prepared((), dict(arguments), None)

    def template_of(self, payload: str) -> NewJob:
        if self._shared.limits.keyed:
            self._check_keys(payload)
        return NewJob(new_id(), self._task.name, payload, *self._rest)

    # -- from arguments to jobs -----------------------------------------------------------------------

    def _around(self) -> AbstractContextManager[EnqueueCall | None]:
        """Return the middleware around an enqueue; a shared empty context, at no cost, if there is none."""
        middleware = self._shared.middleware
        if not middleware.enqueues or self._task.is_internal:
            return UNWRAPPED
        return middleware.around_enqueue(self._call())

    def _call(self) -> EnqueueCall:
        return EnqueueCall(self._task.name, self._queue, dict(self._headers), trace=dict(self._trace))

    @property
    def _headers(self) -> Mapping[str, str]:
        return self._options.get("headers") or {}

    @property
    def _trace(self) -> Mapping[str, str]:
        return self._options.get("trace") or {}

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: EnqueueCall | None) -> NewJob:
        try:
            text = self._task.payload.dump(args, kwargs)
        except InvalidPayload as error:
            for option in sorted(ENQUEUE_OPTIONS & kwargs.keys()):  # a common mistake: other libraries mix them
                if not self._task.payload.takes(option):
                    msg = f"{error}; {option} is an option of the job: write using({option}=…).enqueue(…)"
                    raise InvalidPayload(msg) from error
            raise
        if self._shared.limits.keyed:
            self._check_keys(text)
        return NewJob(new_id(), self._task.name, text, *(self._rest if call is None else self._rest_for(call)))

    def _from_data(self, payload: Any, call: EnqueueCall | None) -> NewJob:
        text = self._task.payload.dump_data(payload)
        if self._shared.limits.keyed:
            self._check_keys(text)
        return NewJob(new_id(), self._task.name, text, *(self._rest if call is None else self._rest_for(call)))

    def _prepare_many(
        self, payloads: Iterable[Any], call: EnqueueCall | None, dump: Callable[[Any], str] | None = None
    ) -> list[NewJob]:
        name, dump = self._task.name, dump or self._task.payload.dump_one
        rest = self._rest if call is None else self._rest_for(call)
        keyed = self._shared.limits.keyed
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
        return jobs if prepared else FreshJobs(jobs)

    def _check_prepared(self, job: NewJob, number: int) -> None:
        """Raise ConfigurationError for a job of another task, or if `using` has options: a prepared job has its own."""
        if job.task != self._task.name:
            msg = (
                f"number {number} of the payloads is a job of task {job.task!r}, not {self._task.name!r};"
                " app.enqueue_all([…]) takes jobs of several tasks"
            )
            raise ConfigurationError(msg)
        if self._given.keys() - {"connection"}:
            msg = (
                f"number {number} of the payloads is a prepared job, which has its own options; give options to each"
                f" item, {self._task.name}.using(…).prepare(…), or to all of them, but not both"
            )
            raise ConfigurationError(msg)

    def _check_keys(self, text: str) -> None:
        """Raise an error if a limit cannot find its key in the payload. Only the program with the code can tell."""
        if not self._task.is_remote:
            self._shared.limits.check(self._task.name, self._queue, text)

    # -- into the store -------------------------------------------------------------------------------

    async def _insert(self, jobs: list[NewJob], call: EnqueueCall | None = None) -> list[JobHandle[R]]:
        if self._newest_under is not None:
            return self._handles([await self._replace_waiting(job) for job in jobs], call)
        return self._handles(await self._shared.pipeline.insert(jobs, self._connection), call)

    def _insert_sync(self, jobs: list[NewJob], call: EnqueueCall | None) -> list[JobHandle[R]]:
        if self._newest_under is not None:
            return self._shared.services.run(self._insert(jobs, call))
        return self._handles(self._shared.pipeline.insert_sync(jobs, self._connection), call)

    async def _replace_waiting(self, job: NewJob) -> Inserted:
        return await self._shared.debounce.put(job, self._newest_under or "", self._options.get("debounce"))

    def _handles(self, inserted: list[Inserted], call: EnqueueCall | None) -> list[JobHandle[R]]:
        if call is not None:
            call.job_ids = [job.id for job in inserted]
        return [JobHandle(job.id, job.created, self._shared.jobs, self._task) for job in inserted]

    # -- from options to a job ------------------------------------------------------------------------

    @functools.cached_property
    def _rest(self) -> tuple[Any, ...]:
        """The arguments of `NewJob` after id, task and payload. They are the same for many jobs."""
        template = self._template
        refuse_unkeepable([replace(template, id=new_id())])
        return tuple(getattr(template, each.name) for each in fields(NewJob)[3:])

    def _rest_for(self, call: EnqueueCall) -> tuple[Any, ...]:
        """Return `_rest` with the headers and the trace context that middleware has set."""
        if call.headers == self._headers and call.trace == self._trace:
            return self._rest
        if problem := check_headers(call.headers) or problem_of_trace(call.trace):
            raise ConfigurationError(problem)
        own = {**options_of(self._template.options)}
        if call.headers != self._headers:
            own["headers"] = call.headers
        if call.trace != self._trace:
            own["trace"] = call.trace
        return (*self._rest[:OPTIONS_FIELD], json.dumps(own), *self._rest[OPTIONS_FIELD + 1 :])

    @functools.cached_property
    def _template(self) -> NewJob:
        options = self._task.with_defaults(self._options)
        retention = options.get("retention") or Retention()
        run_at, timeout, throttle = options.get("run_at"), options.get("timeout"), options.get("throttle")
        key = options.get("dedupe_key") if throttle is None else throttle.dedupe_key
        stored = self._stored()
        return NewJob(
            id="",
            task=self._task.name,
            payload="",
            queue=self._queue,
            priority=Priority.NORMAL if (priority := options.get("priority")) is None else Priority.parse(priority),
            run_at=None if run_at is None else to_millis(run_at),
            delay=self._delay(),
            max_attempts=attempts_in(options) or DEFAULT_MAX_ATTEMPTS,
            timeout=0 if timeout is None else duration(timeout),
            dedupe_key=None if key is None else key_in(self._queue, key),
            dedupe_for=self._dedupe_for(),
            target=options.get("target"),
            tags=tuple(options.get("tags") or ()),
            keep=keep_of(retention.completed, "completed"),
            keep_dead=keep_of(retention.dead, "dead"),
            options=json.dumps(stored) if stored else None,
            timeout_level=self._level(lambda options: options.get("timeout")),
            attempts_level=self._level(attempts_in),
        )

    def _level(self, find: Callable[[EnqueueOptions], object]) -> Level:
        return Level.ENQUEUE if self._task.is_internal else level_of(find(self._given), find(self._task.options))

    def _delay(self) -> Millis:
        debounce = self._options.get("debounce")
        wanted = self._options.get("delay") if debounce is None else debounce.wait
        return 0 if wanted is None else duration(wanted)

    def _dedupe_for(self) -> Millis | None:
        throttle, wanted = self._options.get("throttle"), self._options.get("dedupe_for")
        if throttle is not None:
            return duration(throttle.per)
        if wanted is None or wanted == "active":
            return None
        return FOREVER if wanted == "forever" else duration(wanted)

    def _stored(self) -> StoredOptions:
        """Return what the worker and the features must know of this job and cannot know from its task."""
        own, options = StoredOptions(), self._options
        if (plan := options.get("steps")) is not None:
            own["plan"] = StepPlan.of(plan).to_data()
        elif self._task.plan:
            own["steps"] = tuple(self._task.plan)
        if (retry := self._given.get("retry")) is not None and retry is not self._task.options.get("retry"):
            own["retry"] = retry.to_data()
        isolation = options.get("isolation")
        if isolation is not None and isolation != self._task.options.get("isolation"):
            own["isolation"] = isolation
        if self._headers:
            own["headers"] = dict(self._headers)
        if (trace := options.get("trace")) is not None:
            own["trace"] = dict(trace)
        return own | self._stored_by_features()

    def _stored_by_features(self) -> StoredOptions:
        own, options, key = StoredOptions(), self._options, self._newest_under
        if key is not None:
            own["newest"] = key
        if (expires := options.get("expires")) is not None:
            moves = key is not None or "after" in options or "deliver" in options
            own["start_by"] = expiry.option_of(expires, options.get("run_at"), options.get("delay"), moves=moves)
        if (after := dependencies.listed(options.get("after"))) is not None:
            own["after"] = dependencies.option_of(after, options.get("on_failed"))
        if (breaker := options.get("breaker")) is not None:
            own["breaker"] = breaker
        if (window := options.get("deliver")) is not None:
            own["deliver"] = None if window is self._task.options.get("deliver") else window.to_data()
        return own


def policy_in(options: EnqueueOptions) -> Retry:
    """Return the retry policy that the options ask for."""
    return options.get("retry") or Retry(max_attempts=options.get("max_attempts") or DEFAULT_MAX_ATTEMPTS)


def declared_plan(name: str, steps: Planned) -> StepPlan:
    """Return the steps that a durable function declares in advance; raise ConfigurationError if they are invalid."""
    try:
        return StepPlan.of(steps, complete=False)
    except ConfigurationError as error:
        msg = f"task {name!r}: {error}"
        raise ConfigurationError(msg) from None


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
