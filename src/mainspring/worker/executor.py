"""Runs a claimed job: calls its handler and turns what it returns or raises into an `Outcome`. It knows no store.

The handler is called as a coroutine on the worker's loop, in a thread, or in a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from mainspring.clock import Clock
from mainspring.job import Outcome
from mainspring.log import get_log, running
from mainspring.middleware import Middleware, RunCall
from mainspring.observer import Observers
from mainspring.task import Task
from mainspring.worker.chunks import ChunkRun
from mainspring.worker.contexts import Contexts
from mainspring.worker.failures import message_of
from mainspring.worker.processes import Processes
from mainspring.worker.run import Run, Stop, failed, in_this_thread, outcome_of_error, outcome_of_value
from mainspring.worker.threads import HeldBack, Threads

log = get_log("mainspring.worker")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class LastCheck(Protocol):
    """Says whether a run that has begun may still call its handler: the worker's `Gate`.

    It is asked again after anything that takes a while: middleware, and getting a thread or a process ready.
    """

    def permits(self, run: Run) -> bool:
        """Answer from what is known. Any thread may ask."""

    async def still_permits(self, runs: Sequence[Run]) -> bool:
        """Answer on the event loop, for all of the runs, and look at the store first if what is known is too old."""


class Executor:
    """Runs the jobs of one worker; belongs to one event loop."""

    def __init__(
        self,
        contexts: Contexts,
        check: LastCheck,
        middleware: Middleware,
        threads: Threads,
        *,
        processes: int,
        clock: Clock,
        observers: Observers | None = None,
    ) -> None:
        self._contexts = contexts
        self._check = check
        self._middleware = middleware
        self._wrapped = middleware.runs  # middleware around each run, if there is any
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._threads, self._processes = threads, Processes(processes, observers)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    async def run(self, run: Run) -> Outcome | None:
        """Run one job; return what becomes of it, or None if its claim is lost and nothing may be written."""
        running.set(run.claim)
        try:
            if run.is_plain and not self._wrapped:  # a coroutine that needs nothing from us, as most are
                args, kwargs = run.task.payload.load(run.claim.payload)
                run.called = True
                value = await run.task.function(*args, **kwargs)
            else:
                value = await self._call(run)
        except BaseException as error:  # noqa: BLE001 - every exception decides the outcome
            return self._raised(run, error)
        return outcome_of_value(run, value, self._clock.now())

    async def run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> list[tuple[Run, Outcome | None]]:
        """Run several jobs by one call of their handler; return what becomes of each."""
        chunk = ChunkRun(runs, slot, self._contexts.of)
        try:
            verdicts = chunk.returned(await self._call_chunk(chunk))
        except BaseException as error:  # noqa: BLE001 - every exception decides the outcomes
            verdicts = chunk.raised(error)
        return [(run, self._outcome(run, value, error)) for run, (value, error) in verdicts]

    # -- outcomes -------------------------------------------------------------------------------

    def outcome_of(self, run: Run, error: BaseException) -> Outcome | None:
        """Return what becomes of a job whose run ended by this error before its handler was called."""
        return self._raised(run, error)

    def _outcome(self, run: Run, value: Any, error: BaseException | None) -> Outcome | None:
        return self._raised(run, error) if error is not None else outcome_of_value(run, value, self._clock.now())

    def _raised(self, run: Run, error: BaseException) -> Outcome | None:
        if run.context is not None and run.context.effects.committed:
            shown = f"{type(error).__name__}: {run.hide(message_of(error))}"
            log.warning("raised_after_commit", job_id=run.claim.id, task=run.claim.task, error=shown)
        if run.admitted or run.observed:
            run.error = TimeoutError() if run.stop is Stop.TIMEOUT else error
        try:
            return outcome_of_error(run, error, self._clock.now())
        except Exception as broken:  # noqa: BLE001 - say of the user's own subclass of RunEnd; the slot must survive it
            return failed(run, broken, self._clock.now())

    # -- calls ----------------------------------------------------------------------------------

    async def _call(self, run: Run) -> Any:
        """Call the run's handler in the way that fits it, and return what it returns."""
        if run.stop is not None:
            raise asyncio.CancelledError
        task = run.task
        args, kwargs = task.payload.load(run.claim.payload)
        if task.signature.context is not None:
            kwargs[task.signature.context] = self._contexts.of(run)
        if run.isolated:
            return await self._call_process(run)
        handler = partial(call_handler, [run], partial(task.function, *args, **kwargs))
        if not task.is_async:
            return await self._call_thread(run, handler)
        with self._deadline(run):
            return await (self._call_wrapped([run], handler, None) if self._wraps(task) else handler())

    async def _call_chunk(self, chunk: ChunkRun) -> Any:
        if not chunk.runs:
            return None
        argument = list(chunk.argument)  # a copy, as the handler may change the list
        call = partial(call_handler, chunk.runs, partial(chunk.task.function, argument))
        with chunk.deadline():
            in_thread = None if chunk.task.is_async else partial(self._in_thread, chunk.runs)
            if self._wraps(chunk.task):
                value = await self._call_wrapped(chunk.runs, call, in_thread)
            else:
                value = call() if in_thread is None else await in_thread(call)
            return await value if inspect.iscoroutine(value) else value

    def _wraps(self, task: Task[..., Any, Any]) -> bool:
        return bool(self._wrapped) and not task.is_internal

    async def _call_wrapped(self, runs: list[Run], handler: Callable[[], Any], in_thread: InThread | None) -> Any:
        """Call the handler within all middleware. As middleware may wait, check again just before the handler."""
        call = RunCall(runs[0].task.name, tuple(map(self._contexts.of, runs)), is_async=in_thread is None)
        if in_thread is None:
            value = await self._middleware.around(call, partial(self._start, runs, handler))
        else:
            start = partial(self._start_in_thread, runs, handler)
            value = await self._middleware.around_thread(call, in_thread, start)
        if any(run.stop and not run.called for run in runs):  # middleware caught the end of a run before its handler
            raise HeldBack
        return value

    async def _start(self, runs: list[Run], handler: Callable[[], Awaitable[Any]]) -> Any:
        """Call a coroutine function unless a run may not start any more."""
        if not await self._check.still_permits(runs):
            hold_back(runs)
        return await handler()

    def _in_thread(self, runs: list[Run], call: Callable[[], Any]) -> asyncio.Future[Any]:
        return self._threads.run(partial(self._start_in_thread, runs, partial(in_this_thread, runs, call)))

    def _start_in_thread(self, runs: list[Run], call: Callable[[], Any]) -> Any:
        """Call the handler, or plain middleware around it, unless a run may not start any more."""
        if not all(map(self._check.permits, runs)):
            hold_back(runs)
        return call()

    @contextlib.contextmanager
    def _deadline(self, run: Run) -> Iterator[None]:
        if run.timeout is None:
            yield
            return
        timer = self._loop.call_later(run.timeout, run.end, Stop.TIMEOUT)
        try:
            yield
        finally:
            timer.cancel()

    async def _call_process(self, run: Run) -> Any:
        def begun(kill: Callable[[], object]) -> None:
            run.kill = kill
            if run.stop is not None:
                kill()
            elif run.timeout is not None:
                timers.append(self._loop.call_later(run.timeout, run.end, Stop.TIMEOUT))

        def may_start() -> bool:
            run.called = self._check.permits(run)
            return run.called

        timers: list[asyncio.TimerHandle] = []
        try:
            return await self._processes.run(
                run.task,
                run.claim,
                self._contexts.of(run),
                begun=begun,
                may_start=may_start,
                durable=partial(self._contexts.durable_of, run),
            )
        except HeldBack:
            run.hold_back()
            raise
        finally:
            for timer in timers:
                timer.cancel()

    async def _call_thread(self, run: Run, function: Callable[[], Any]) -> Any:
        """Call the handler in a thread. It cannot be stopped: at its timeout the context tells it, and we wait."""
        self._contexts.of(run)  # so that there is one to tell it
        in_thread = partial(self._in_own_thread, run)
        with self._deadline(run):
            wrapped = self._wraps(run.task)
            value = await (self._call_wrapped([run], function, in_thread) if wrapped else in_thread(function))
            return await self._await(run, value) if inspect.iscoroutine(value) else value

    def _in_own_thread(self, run: Run, function: Callable[[], Any]) -> asyncio.Future[Any]:
        return self._in_thread([run], partial(run.in_its_thread, function))

    async def _await(self, run: Run, work: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine that a plain function returned, as wrappers of async ones do. It can be cancelled."""
        if run.stop is not None:
            work.close()
            raise asyncio.CancelledError
        run.kill = run.slot.cancel if run.slot is not None else None
        return await work


def call_handler(runs: Sequence[Run], handler: Callable[[], Any]) -> Any:
    """Call the handler of these runs, and note that it was called: only then they count as started."""
    for run in runs:
        run.called = True
    return handler()


def hold_back(runs: Sequence[Run]) -> NoReturn:
    """Hand back runs whose handler may not be called any more."""
    for run in runs:
        run.hold_back()
    raise HeldBack
