"""The durable methods of `Context`: steps, sleeps, waits and children. Each has a `_sync` twin for plain functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from mainspring.clock import Length
from mainspring.errors import ConfigurationError, UnsupportedCall
from mainspring.features.durable import children, signals, sleep
from mainspring.features.durable.children import Child
from mainspring.features.durable.plan import limit_of
from mainspring.features.durable.run import DurableRun
from mainspring.features.durable.signals import Signal
from mainspring.features.durable.sleep import Until
from mainspring.job import NewJob

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class HasResult(Protocol[R_co]):
    """A handle of a job whose result has this type."""

    def result_sync(self, timeout: Length | None = None) -> R_co: ...


class Spawnable(Protocol[P, R_co]):
    """A task, or a task with options."""

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> NewJob: ...
    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> HasResult[R_co]: ...


class Durable(Protocol):
    """Carries out the calls: `RecordedCalls` in a run, `Detached` in a unit test, `NoCalls` where they are refused."""

    async def step(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None = None
    ) -> Any: ...
    def step_sync(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None = None
    ) -> Any: ...
    async def save_state(self, step: str, state: Any) -> None: ...
    async def step_state(self, step: str) -> Any: ...
    async def sleep(self, until: Until, name: str | None) -> None: ...
    async def wait_for(self, key: str, timeout: Length | None, name: str | None) -> Signal | None: ...
    async def spawn(self, job: NewJob, name: str | None, *, cancel: bool) -> Child[Any]: ...
    async def gather(
        self, jobs: Sequence[Child[Any] | NewJob], name: str | None, *, return_exceptions: bool, cancel: bool
    ) -> list[Any]: ...
    def run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    def refuse_within_step(self, what: str) -> None: ...
    def step_here(self) -> str | None: ...


class StepCalls:
    """The methods that run steps. `ctx.using(timeout=60)` has them too."""

    _step_timeout: float | None = None  # seconds; None: what the job's plan says

    @property
    def _durable(self) -> Durable:
        raise NotImplementedError

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once per job: `await ctx.step("charge", charge, order_id)`.

        Its result is recorded as JSON, according to its return annotation, before your code goes on. A later run gets
        the recorded result and does not call the function. A plain function runs in a thread.
        """
        check_function(name, function)
        return await self._durable.step(name, function, args, kwargs, self._step_timeout)

    @overload
    def step_sync(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step_sync(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step_sync(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do as `step` does, in a plain function. It runs in this thread; a coroutine runs on the worker's loop."""
        check_function(name, function)
        self._stop_if_cancelled()
        return self._durable.step_sync(name, function, args, kwargs, self._step_timeout)

    def _stop_if_cancelled(self) -> None:
        """Stop a plain function between two steps. A thread cannot be interrupted while it runs."""
        self.raise_if_cancelled()

    def raise_if_cancelled(self) -> None:
        raise NotImplementedError


class StepOptions(StepCalls):
    """A context with options for its next steps, made by `ctx.using(…)`."""

    def __init__(self, calls: DurableCalls, timeout: Length | None) -> None:
        millis = limit_of("ctx.using(…)", timeout)
        self._calls = calls
        self._step_timeout = None if millis is None else millis / 1000

    @property
    def _durable(self) -> Durable:
        return self._calls._durable  # noqa: SLF001 - a part of it

    def raise_if_cancelled(self) -> None:
        self._calls.raise_if_cancelled()


class DurableCalls(StepCalls):
    """The durable methods, as a base class of `Context`."""

    def using(self, *, timeout: Length | None = None) -> StepOptions:
        """Return the context with options for steps; they never mix with the arguments of the step's function.

        await ctx.using(timeout=60).step("render", render, video)

        A step that takes longer raises StepTimeout. A coroutine is cancelled then. A function in a thread is told by
        `ctx.cancelled`. In a child process, the process is ended.
        """
        return StepOptions(self, timeout)

    # -- states of steps ------------------------------------------------------------------------------

    async def save_state(self, step: str, state: Any) -> None:
        """Save any JSON about a step, also while it runs: `await ctx.save_state("render", {"frame": 900})`.

        It is written before this returns. The next attempt reads it with `step_state`, other processes with
        `app.jobs.steps(id)`. It is kept as long as the job.
        """
        await self._durable.save_state(step, state)

    def save_state_sync(self, step: str, state: Any) -> None:
        """Do as `save_state` does, in a plain function."""
        self._run_on_loop(lambda: self._durable.save_state(step, state))

    async def step_state(self, step: str) -> Any:
        """Return the state that this or an earlier run has saved of a step; None if there is none."""
        return await self._durable.step_state(step)

    def step_state_sync(self, step: str) -> Any:
        """Do as `step_state` does, in a plain function."""
        return self._run_on_loop(lambda: self._durable.step_state(step))

    # -- sleep ----------------------------------------------------------------------------------------

    async def sleep(self, length: Length, *, name: str | None = None) -> None:
        """Suspend the job for this long, minutes or years: a timedelta, or seconds. It occupies no worker meanwhile."""
        await self._durable.sleep(sleep.after(length), name)

    def sleep_sync(self, length: Length, *, name: str | None = None) -> None:
        """Do as `sleep` does, in a plain function."""
        self._run_on_loop(lambda: self._durable.sleep(sleep.after(length), name))

    async def sleep_until(
        self,
        moment: datetime,
        *,
        tz: str | None = None,
        fold: Literal["first", "second"] = "first",
        name: str | None = None,
    ) -> None:
        """Suspend the job until `moment`: an aware datetime, or a wall time in the time zone `tz`.

        If the wall time occurs twice, `fold` says which one. If the clocks skip it, it moves later by the length of the
        gap.
        """
        await self._durable.sleep(sleep.at(moment, tz, fold), name)

    def sleep_until_sync(
        self,
        moment: datetime,
        *,
        tz: str | None = None,
        fold: Literal["first", "second"] = "first",
        name: str | None = None,
    ) -> None:
        """Do as `sleep_until` does, in a plain function."""
        until = sleep.at(moment, tz, fold)
        self._run_on_loop(lambda: self._durable.sleep(until, name))

    # -- signals --------------------------------------------------------------------------------------

    async def wait_for(self, key: str, *, timeout: Length | None = None, name: str | None = None) -> Signal | None:
        """Suspend the job until `app.signal(key, …)` is called; return the signal, or None after the timeout.

        The job gets each signal of the key once, oldest first, including those sent before it waited.
        """
        return await self._durable.wait_for(key, timeout, name)

    def wait_for_sync(self, key: str, *, timeout: Length | None = None, name: str | None = None) -> Signal | None:
        """Do as `wait_for` does, in a plain function."""
        return self._run_on_loop(lambda: self._durable.wait_for(key, timeout, name))

    # -- children -------------------------------------------------------------------------------------

    @overload
    async def spawn(self, job: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    async def spawn(self, job: NewJob, /, *, name: str | None = None, cancel_children: bool = True) -> Child[Any]: ...
    async def spawn(self, job: Any, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Enqueue a job once, as a child of this one: `await ctx.spawn(render, video="a")`.

        Give a task, or a task with options (`render.using(…)`), and its arguments. Or give a prepared job; then you can
        also set the step's name, and whether cancelling this job cancels the child (cancel_children).
        """
        return await self._spawn(job, args, kwargs)

    @overload
    def spawn_sync(self, job: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    def spawn_sync(self, job: NewJob, /, *, name: str | None = None, cancel_children: bool = True) -> Child[Any]: ...
    def spawn_sync(self, job: Any, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Do as `spawn` does, in a plain function."""
        return self._run_on_loop(lambda: self._spawn(job, args, kwargs))

    def _spawn(self, job: Any, args: Any, kwargs: dict[str, Any]) -> Coroutine[Any, Any, Child[Any]]:
        if not isinstance(job, NewJob):
            if not hasattr(job, "prepare"):
                msg = (
                    f"ctx.spawn({job!r}): give a task and its arguments, or a prepared job; a plain function is a step"
                )
                raise ConfigurationError(msg)
            return self._durable.spawn(job.prepare(*args, **kwargs), None, cancel=True)
        return self._durable.spawn(job, kwargs.get("name"), cancel=kwargs.get("cancel_children", True))

    async def gather(
        self,
        *jobs: Child[Any] | NewJob,
        return_exceptions: bool = False,
        name: str | None = None,
        cancel_children: bool = True,
    ) -> list[Any]:
        """Suspend the job until these children have finished; return their results in the order given.

        Prepared jobs are spawned first, in one commit. If a child did not complete, this raises JobFailed for the first
        such child. With return_exceptions, the exceptions are among the results instead.
        """
        check_children(jobs)
        return await self._durable.gather(jobs, name, return_exceptions=return_exceptions, cancel=cancel_children)

    def gather_sync(
        self,
        *jobs: Child[Any] | NewJob,
        return_exceptions: bool = False,
        name: str | None = None,
        cancel_children: bool = True,
    ) -> list[Any]:
        """Do as `gather` does, in a plain function."""
        check_children(jobs)
        return self._run_on_loop(
            lambda: self._durable.gather(jobs, name, return_exceptions=return_exceptions, cancel=cancel_children)
        )

    # -- threads --------------------------------------------------------------------------------------

    def _run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._stop_if_cancelled()
        return self._durable.run_on_loop(work)


def check_function(name: Any, function: Any) -> None:
    if not callable(function):
        if isinstance(function, Coroutine):
            function.close()  # else Python also warns that it was never awaited
        msg = (
            f"ctx.step({name!r}, …): give the function and then its arguments (fn, 1), "
            f"not the result of fn(1), which is {function!r}"
        )
        raise ConfigurationError(msg)


def check_children(jobs: Sequence[Any]) -> None:
    for job in jobs:
        if not isinstance(job, (Child, NewJob)):
            what = "a list; unpack it with *" if isinstance(job, (list, tuple)) else repr(job)
            msg = f"ctx.gather takes children (from ctx.spawn) and prepared jobs (render.prepare(…)), not {what}"
            raise ConfigurationError(msg)


class RecordedCalls:
    """Carries out the calls of a run and records them. Each kind of call has its own module."""

    def __init__(self, run: DurableRun) -> None:
        self.run = run
        self.step = run.step
        self.step_sync = run.step_sync
        self.save_state = run.save_state
        self.step_state = run.step_state
        self.run_on_loop = run.run_on_loop
        self.refuse_within_step = run.refuse_within_step
        self.step_here = run.step_here

    async def sleep(self, until: Until, name: str | None) -> None:
        await sleep.sleep(self.run, until, name)

    async def wait_for(self, key: str, timeout: Length | None, name: str | None) -> Signal | None:
        return await signals.wait_for(self.run, key, timeout, name)

    async def spawn(self, job: NewJob, name: str | None, *, cancel: bool) -> Child[Any]:
        return await children.spawn(self.run, job, name, cancel=cancel)

    async def gather(
        self, jobs: Sequence[Child[Any] | NewJob], name: str | None, *, return_exceptions: bool, cancel: bool
    ) -> list[Any]:
        return await children.gather(self.run, jobs, name, return_exceptions=return_exceptions, cancel=cancel)


class NoCalls:
    """Refuses every call, where a function cannot be durable."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedCall(self._why)

    def refuse_within_step(self, what: str) -> None:
        """Allow it: no step can be running here."""

    def step_here(self) -> str | None:
        return None
