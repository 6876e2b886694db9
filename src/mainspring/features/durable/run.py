"""One run of a durable function. Each call is recorded, fenced by the claim's token, before the function goes on.

A `DurableRun` is created at the handler's first durable call. At the end the worker reads from it whether the function
was suspended or its claim lost. All work happens on the worker's event loop; threads use `run_on_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, TypeVar

from mainspring.clock import Millis
from mainspring.errors import ClaimLost, ConfigurationError, StoreUnavailable
from mainspring.features.durable.deadline import cancelled_after, told_after
from mainspring.features.durable.failures import dump_failure, load_failure
from mainspring.features.durable.journal import FAILED, Asked, Journal, kind_of
from mainspring.features.durable.outputs import Output
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.replay import is_replay
from mainspring.features.durable.saved import record_of, saved_in
from mainspring.features.durable.suspension import Suspended, Suspension, Wait
from mainspring.job import Claim, Inserted, NewJob, Save, Step
from mainspring.pipeline import Pipeline
from mainspring.services import Services

T = TypeVar("T")
InThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
Branch = int | asyncio.Task[Any] | None
"""What makes a call: another thread (its ident) or task of the function, or None for the handler itself."""

WAITS = frozenset({"sleep", "wait"})  # while the job is being suspended, branches can begin only these
NO_PLAN = StepPlan()
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between tries while the store is unavailable

current_step: ContextVar[tuple[int, str] | None] = ContextVar("mainspring_step", default=None)
"""The `id()` of the run, and the name, of the step that is executing in this context."""

calling_branch: ContextVar[tuple[Branch] | None] = ContextVar("mainspring_from_thread", default=None)
"""The branch on whose behalf `run_on_loop` executes a coroutine on the event loop."""


class DurableRun:
    def __init__(
        self,
        services: Services,
        pipeline: Pipeline,
        claim: Claim,
        *,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Task[Any] | None,
        thread: int | None,
        in_thread: InThread,
        progressed: Callable[[float, str], None],
        stopped: Callable[[], bool],
        plan: StepPlan = NO_PLAN,
    ) -> None:
        self.services = services
        self.pipeline = pipeline
        self.store = services.store
        self.claim = claim
        self.journal = Journal(claim.id)
        self.suspension: Suspension | None = None
        self.lost = False
        self.spawned: list[str] = []  # ids of the jobs that this run inserted
        self.consumed: dict[str, set[str]] = {}  # for each key, the ids of the signals that this job has received
        self._in_thread = in_thread
        self._progressed = progressed
        self._is_stopped = stopped
        self.plan = plan
        self._loop = loop
        self._loading = asyncio.Lock()
        self._task = task  # the task that runs the handler
        self._thread = thread  # or the thread that runs it
        self._failures: dict[Branch, Step] = {}  # of steps; caught if the same branch makes another call
        self._busy = 0  # number of steps that are executing
        self._step_ended = asyncio.Event()
        self._lock = threading.Lock()
        self._unwritten: tuple[Step, ...] = ()  # caught failures; the next write includes them

    # -- branches -------------------------------------------------------------------------------------

    def in_its_thread(self, handler: Callable[[], T]) -> T:
        """Call a plain function's handler in this thread, and remember the thread as the handler's own."""
        self._thread = threading.get_ident()
        return handler()

    def branch(self) -> Branch:
        """Return the task or thread that calls this, or None if it is the handler itself."""
        if (sent := calling_branch.get()) is not None:
            return sent[0]
        try:
            task = asyncio.current_task()
        except RuntimeError:
            ident = threading.get_ident()
            return None if ident == self._thread else ident
        return None if task is self._task else task

    def run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the worker's event loop, from a thread, and wait for its result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(run_as_branch(self.branch(), work), self._loop).result()
        msg = (
            "the methods that end in _sync are for plain functions, which run in threads; here, await the other method"
        )
        raise RuntimeError(msg)

    # -- asking and recording ----------------------------------------------------------------------------

    async def ask(self, name: str, kind: str, branch: Branch) -> Asked:
        """Match a call of the function with its record. While the job is being suspended, start nothing new."""
        if self.lost:
            raise ClaimLost
        self.refuse_within_step(f"{kind} {name!r}")
        await self._load()
        if (failure := self._failures.pop(branch, None)) is not None:  # the branch goes on, so it has caught the error
            self._unwritten = (*self._unwritten, failure)
        asked = self.journal.ask(name, kind, self.store.clock.now(), main=branch is None)
        if asked.record is None and self.suspension is not None and kind not in WAITS:
            raise Suspended
        return asked

    def step_here(self) -> str | None:
        """Return the name of the step that is executing in this context, if any."""
        place = current_step.get()
        return place[1] if place is not None and place[0] == id(self) else None

    def refuse_within_step(self, what: str) -> None:
        if (step := self.step_here()) is not None:
            msg = f"{what} within step {step!r}: a step cannot contain durable calls; make this call before or after it"
            raise ConfigurationError(msg)

    async def _load(self) -> None:
        """Load the records once per run. A new job has none, unless it is a replay, so skip the query."""
        async with self._loading:
            if not self.journal.loaded:
                is_new = self.claim.token <= 1 and not is_replay(self.claim.options)
                self.journal.load([] if is_new else await self.retry_outages(partial(self.store.steps, self.claim.id)))

    async def save(self, step: Step, jobs: Sequence[NewJob] = ()) -> list[Inserted]:
        """Record a step and insert jobs in one commit. Raise ClaimLost if this run no longer holds the job."""
        failures, self._unwritten = self._unwritten, ()
        save = Save(self.claim.id, self.claim.token, (*failures, step), tuple(jobs), self.claim.ref)
        (answer,) = await self.retry_outages(lambda: self.store.save([save]))
        if answer is None:
            self.lost = True
            raise ClaimLost
        for written in save.steps:
            self.journal.wrote(written)
        return answer

    async def suspend(self, wait: Wait) -> NoReturn:
        """Suspend the job, once no step is executing: an unfinished step would be repeated."""
        if self.suspension is None:
            self.suspension = Suspension()
        self.suspension.waits.append(wait)
        self.suspension.failures = self._unwritten
        while self._busy:
            self._step_ended.clear()
            await self._step_ended.wait()
        raise Suspended

    async def retry_outages(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the store is unavailable. Failing would throw away finished work, and repeat it."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if self._is_stopped():
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def now(self) -> Millis:
        """Return the store's time. It is at least `run_at`, even if this process estimates it too low."""
        return max(self.store.clock.now(), self.claim.run_at)

    # -- steps ----------------------------------------------------------------------------------------

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None = None,
    ) -> Any:
        """Run a step: a coroutine function on the loop, a plain one in a thread, as it may block."""
        branch = self.branch()
        asked = await self.ask_step(name, branch)
        output = Output(name, function)
        if asked.record is not None:
            return replayed(asked.record, output)
        with self._running(asked, branch):
            call, seconds, stopped = partial(function, *args, **kwargs), timeout or self.plan.timeout(name), None
            if is_coroutine_function(function):
                async with cancelled_after(name, seconds):
                    value = await call()
            else:
                value, stopped = await self._call_in_thread(name, call, seconds)
            if stopped is not None and not self._is_stopped():  # the function cancelled the step: record no output
                raise stopped
            text = output.dump(value)
            await self.done(asked, text)
        if stopped is not None:
            raise stopped
        return output.load(text)

    def step_sync(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None = None,
    ) -> Any:
        """Run a step in the thread that calls this."""
        branch = self.branch()
        asked = self.run_on_loop(lambda: self.ask_step(name, branch))
        output = Output(name, function)
        if asked.record is not None:
            return replayed(asked.record, output)
        with self._running(asked, branch):
            seconds = timeout or self.plan.timeout(name)
            with told_after(name, seconds):
                value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self.run_on_loop(partial(await_value, value, name, seconds))
            text = output.dump(value)
            self.run_on_loop(lambda: self.done(asked, text))
        return output.load(text)

    async def ask_step(self, name: str, branch: Branch) -> Asked:
        self.plan.check(name)
        return await self.ask(self.journal.called(name), "step", branch)

    @contextlib.contextmanager
    def _running(self, asked: Asked, branch: Branch) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        token = current_step.set((id(self), asked.name))
        try:
            yield
        except ClaimLost:
            raise
        except Exception as error:
            self.note_failure(asked, branch, dump_failure(error))
            raise
        except asyncio.CancelledError:
            if not self._is_stopped():  # the function cancelled it: `asyncio.timeout` raises TimeoutError
                cancelled = TimeoutError(f"step {asked.name!r} was cancelled by its function")
                self.note_failure(asked, branch, dump_failure(cancelled))
            raise
        finally:
            current_step.reset(token)
            with self._lock:
                self._busy -= 1
            self._loop.call_soon_threadsafe(self._step_ended.set)

    @property
    def failed_step(self) -> str | None:
        """Return the step that failed last, unless the function caught its error and went on."""
        return next((step.name for step in reversed(self._failures.values())), None)

    def note_failure(self, asked: Asked, branch: Branch, error: str) -> None:
        """Note that a step failed, with its error as JSON. It is recorded if the branch makes another call."""
        self._failures[branch] = asked.step(error, self.store.clock.now(), FAILED)

    async def _call_in_thread(
        self, name: str, call: Callable[[], Any], seconds: float | None
    ) -> tuple[Any, BaseException | None]:
        """Call a function in a thread; return its value and the cancellation that arrived meanwhile, if any.

        A thread cannot be stopped, so a cancellation waits until the function returns.
        """
        stopped: BaseException | None = None
        with told_after(name, seconds):
            future = self._in_thread(call)
            try:
                value = await asyncio.shield(future)
            except asyncio.CancelledError as error:
                if future.cancelled():
                    raise
                stopped = error
                await asyncio.wait([future])
                value = future.result()
        if inspect.isawaitable(value):  # a plain function that wraps a coroutine function
            value = await await_value(value, name, seconds)
        return value, stopped

    async def done(self, asked: Asked, text: str) -> None:
        """Record the output of a step, and report progress if the step is declared."""
        await self.save(asked.step(text, self.store.clock.now()))
        if asked.name in self.plan:
            done = [name for name in self.plan if name in self.journal.records]
            self._progressed(len(done) / len(self.plan), asked.name)

    # -- states of steps ------------------------------------------------------------------------------

    async def save_state(self, step: str, state: Any) -> None:
        """Write what the function wants to remember of a step. This may be called within a step."""
        if self.lost:
            raise ClaimLost
        self.plan.check(step)
        await self._load()
        await self.save(record_of(step, state, self.journal.number_of(step), self.now()))

    async def step_state(self, step: str) -> Any:
        """Return the state that this run or an earlier one has saved last; None if there is none."""
        self.plan.check(step)
        await self._load()
        return saved_in(self.journal.states.values()).get(step)


async def run_as_branch(branch: Branch, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    calling_branch.set((branch,))  # affects only this task's own context
    return await work()


async def await_value(value: Awaitable[T], step: str, seconds: float | None) -> T:
    async with cancelled_after(step, seconds):
        return await value


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def replayed(record: Step, output: Output) -> Any:
    """Return the recorded output of a step; raise its error if it failed and the function went on."""
    if kind_of(record) == FAILED:
        raise load_failure(record.output or "{}")
    return output.load(record.output)
