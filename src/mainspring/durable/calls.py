"""What a durable function calls: the part of `Context` that outlasts a run. Each method has a twin for threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from mainspring.clock import Length
from mainspring.durable import children, signals, sleep
from mainspring.durable.children import Child
from mainspring.durable.run import DurableRun
from mainspring.durable.signals import Signal
from mainspring.durable.sleep import Until
from mainspring.errors import ConfigurationError, UnsupportedCall
from mainspring.job import NewJob

if TYPE_CHECKING:
    from mainspring.task import Enqueuer, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Durable(Protocol):
    """What stands behind the calls: a run, or in a unit test nothing that lasts."""

    async def step(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...
    def step_sync(self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...
    async def sleep(self, until: Until, name: str | None) -> None: ...
    async def wait_for(self, key: str, timeout: Length | None, name: str | None) -> Signal | None: ...
    async def spawn(self, job: NewJob, name: str | None, *, cancel: bool) -> Child[Any]: ...
    async def gather(
        self, jobs: Sequence[Child[Any] | NewJob], name: str | None, *, return_exceptions: bool, cancel: bool
    ) -> list[Any]: ...
    def across(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    def refuse_within_step(self, what: str) -> None: ...
    def step_here(self) -> str | None: ...


class DurableCalls:
    """Mixed into `Context`."""

    @property
    def _durable(self) -> Durable:
        raise NotImplementedError

    # -- steps ----------------------------------------------------------------------------------------

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do this once: `await ctx.step("charge", charge, order_id)`.

        What it gives is JSON, by its return annotation, and is recorded before the function goes on. A run that comes
        back gets the record. A plain function runs in a thread.
        """
        check_function(name, function)
        return await self._durable.step(name, function, args, kwargs)

    @overload
    def step_sync(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step_sync(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step_sync(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same in a plain function. It runs right here; a coroutine on the worker's loop."""
        check_function(name, function)
        self._look_up()
        return self._durable.step_sync(name, function, args, kwargs)

    # -- sleep ----------------------------------------------------------------------------------------

    async def sleep(self, length: Length, *, name: str | None = None) -> None:
        """Leave the worker for so long, minutes or years: a timedelta, or seconds."""
        await self._durable.sleep(sleep.after(length), name)

    def sleep_sync(self, length: Length, *, name: str | None = None) -> None:
        self._across(lambda: self._durable.sleep(sleep.after(length), name))

    async def sleep_until(
        self,
        moment: datetime,
        *,
        tz: str | None = None,
        fold: Literal["first", "second"] = "first",
        name: str | None = None,
    ) -> None:
        """Leave the worker until then: a time that has a zone, or the wall time of the place that `tz` names.

        `fold` says which, of a wall time that comes twice; one that clocks skip is as much later.
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
        until = sleep.at(moment, tz, fold)
        self._across(lambda: self._durable.sleep(until, name))

    # -- signals --------------------------------------------------------------------------------------

    async def wait_for(self, key: str, *, timeout: Length | None = None, name: str | None = None) -> Signal | None:
        """Leave the worker until somebody does `app.signal(key, …)`; None: that did not come within the timeout.

        Of several signals under the key this job gets each once, the oldest first, also those sent before it waited.
        """
        return await self._durable.wait_for(key, timeout, name)

    def wait_for_sync(self, key: str, *, timeout: Length | None = None, name: str | None = None) -> Signal | None:
        return self._across(lambda: self._durable.wait_for(key, timeout, name))

    # -- children -------------------------------------------------------------------------------------

    @overload
    async def spawn(self, job: Task[P, R, Any] | Enqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    async def spawn(self, job: NewJob, /, *, name: str | None = None, cancel_children: bool = True) -> Child[Any]: ...
    async def spawn(self, job: Any, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Enqueue a job once, as a child of this one: `await ctx.spawn(render, video="a")`.

        A task, or one with options (`render.using(…)`), and its arguments; or a prepared job, and then how: under which
        name, and whether it is cancelled with this one (cancel_children).
        """
        return await self._spawn(job, args, kwargs)

    @overload
    def spawn_sync(self, job: Task[P, R, Any] | Enqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    def spawn_sync(self, job: NewJob, /, *, name: str | None = None, cancel_children: bool = True) -> Child[Any]: ...
    def spawn_sync(self, job: Any, /, *args: Any, **kwargs: Any) -> Child[Any]:
        return self._across(lambda: self._spawn(job, args, kwargs))

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
        """Leave the worker until these children have finished; their results, in this order.

        Prepared jobs are spawned first, together. JobFailed names the first that did not complete; with
        return_exceptions it is among the results.
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
        check_children(jobs)
        return self._across(
            lambda: self._durable.gather(jobs, name, return_exceptions=return_exceptions, cancel=cancel_children)
        )

    # -- threads --------------------------------------------------------------------------------------

    def _across(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._look_up()
        return self._durable.across(work)

    def _look_up(self) -> None:
        """A thread that is told to stop does so between two steps."""
        self.raise_if_cancelled()

    def raise_if_cancelled(self) -> None:
        raise NotImplementedError


def check_function(name: Any, function: Any) -> None:
    if not callable(function):
        if isinstance(function, Coroutine):
            function.close()  # else Python complains too, that nobody has awaited it
        msg = (
            f"ctx.step({name!r}, …): give the function and then its arguments, fn, 1, not what fn(1) gave: {function!r}"
        )
        raise ConfigurationError(msg)


def check_children(jobs: Sequence[Any]) -> None:
    for job in jobs:
        if not isinstance(job, (Child, NewJob)):
            what = "a list; put a * before it" if isinstance(job, (list, tuple)) else repr(job)
            msg = f"ctx.gather takes what ctx.spawn gave and prepared jobs (render.prepare(…)), not {what}"
            raise ConfigurationError(msg)


class LastingCalls:
    """What a run answers to the calls; each kind of call has a module of its own."""

    def __init__(self, run: DurableRun) -> None:
        self.run = run
        self.step = run.step
        self.step_sync = run.step_sync
        self.across = run.across
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
    """Where a function cannot be durable."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedCall(self._why)

    def refuse_within_step(self, what: str) -> None:
        """There are no steps."""

    def step_here(self) -> str | None:
        return None
