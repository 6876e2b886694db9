"""Runs a claimed job: calls its handler and turns what it returns or raises into an `Outcome`. It knows no store.

The handler is called as a coroutine on the worker's loop, in a thread, or in a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from mainspring.clock import Clock
from mainspring.job import Outcome
from mainspring.log import get_log, running
from mainspring.middleware import Middleware, RunCall
from mainspring.task import Task
from mainspring.worker.chunks import ChunkRun
from mainspring.worker.contexts import Contexts
from mainspring.worker.failures import message_of
from mainspring.worker.processes import Processes
from mainspring.worker.run import Run, Stop, failed, in_this_thread, outcome_of_error, outcome_of_value
from mainspring.worker.threads import HeldBack, Threads

log = get_log("mainspring.worker")


class Executor:
    """Runs the jobs of one worker; belongs to one event loop.

    `permits` says whether a run may still call its handler. It is asked inside the thread or process, as those take a
    while to be ready.
    """

    def __init__(
        self,
        contexts: Contexts,
        permits: Callable[[Run], bool],
        middleware: Middleware,
        threads: Threads,
        *,
        processes: int,
        clock: Clock,
    ) -> None:
        self._contexts = contexts
        self._permits = permits
        self._middleware = middleware
        self._wrapped = middleware.runs  # middleware around each run, if there is any
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._threads, self._processes = threads, Processes(processes)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    async def run(self, run: Run) -> Outcome | None:
        """Run one job; return what becomes of it, or None if its claim is lost and nothing may be written."""
        running.set(run.claim)
        try:
            if run.is_plain and not self._wrapped:  # a coroutine that needs nothing from us, as most are
                args, kwargs = run.task.payload.load(run.claim.payload)
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

    def _outcome(self, run: Run, value: Any, error: BaseException | None) -> Outcome | None:
        return self._raised(run, error) if error is not None else outcome_of_value(run, value, self._clock.now())

    def _raised(self, run: Run, error: BaseException) -> Outcome | None:
        if run.context is not None and run.context.effects.committed:
            shown = f"{type(error).__name__}: {message_of(error)}"
            log.warning("raised_after_commit", job_id=run.claim.id, task=run.claim.task, error=shown)
        if run.admitted:
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
        handler = partial(task.function, *args, **kwargs)
        if not task.is_async:
            return await self._call_thread(run, handler)
        with self._deadline(run):
            if not self._wraps(task):
                return await handler()
            call = RunCall(task.name, (self._contexts.of(run),), is_async=True)
            return await self._middleware.around(call, handler)

    async def _call_chunk(self, chunk: ChunkRun) -> Any:
        if not chunk.runs:
            return None
        call = partial(chunk.task.function, list(chunk.argument))  # a copy, as the handler may change the list
        with chunk.deadline():
            if self._wraps(chunk.task):
                return await self._call_wrapped_chunk(chunk, call)
            value = call() if chunk.task.is_async else await self._in_thread(chunk.runs, call)
            return await value if inspect.iscoroutine(value) else value

    async def _call_wrapped_chunk(self, chunk: ChunkRun, call: Callable[[], Any]) -> Any:
        contexts = tuple(self._contexts.of(run) for run in chunk.runs)
        middleware, of_call = self._middleware, RunCall(chunk.task.name, contexts, chunk.task.is_async)
        if chunk.task.is_async:
            return await middleware.around(of_call, call)
        value = await middleware.around_thread(of_call, partial(self._in_thread, chunk.runs), call)
        return await value if inspect.iscoroutine(value) else value

    def _wraps(self, task: Task[..., Any, Any]) -> bool:
        return bool(self._wrapped) and not task.is_internal

    def _in_thread(self, runs: list[Run], call: Callable[[], Any]) -> asyncio.Future[Any]:
        return self._threads.run(partial(self._started, runs, call))

    def _started(self, runs: list[Run], call: Callable[[], Any]) -> Any:
        """Call the handler unless a run may not start any more. This runs in the handler's thread."""
        if not all(map(self._permits, runs)):
            for run in runs:
                run.hold_back()
            raise HeldBack
        return in_this_thread(runs, call)

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

        timers: list[asyncio.TimerHandle] = []
        try:
            return await self._processes.run(
                run.task, run.claim, self._contexts.of(run), begun, partial(self._permits, run)
            )
        except HeldBack:
            run.hold_back()
            raise
        finally:
            for timer in timers:
                timer.cancel()

    async def _call_thread(self, run: Run, function: Callable[[], Any]) -> Any:
        """Call the handler in a thread. It cannot be stopped: at its timeout the context tells it, and we wait."""
        context = self._contexts.of(run)
        with self._deadline(run):
            if self._wraps(run.task):
                call = RunCall(run.task.name, (context,), is_async=False)
                value = await self._middleware.around_thread(call, partial(self._in_own_thread, run), function)
            else:
                value = await self._in_own_thread(run, function)
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
