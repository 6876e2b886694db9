"""Calls a run's handler: as a coroutine on the worker's loop, in a thread, or in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from mainspring.app import Mainspring
from mainspring.context import Context
from mainspring.durable_calls import RecordedCalls
from mainspring.features.breakers.call import Passage
from mainspring.features.durable.run import DurableRun
from mainspring.middleware import RunCall
from mainspring.stores.protocol import Completion
from mainspring.task import Task
from mainspring.worker import outcomes
from mainspring.worker.chunk_run import ChunkRun
from mainspring.worker.processes import Processes
from mainspring.worker.progress import Progress
from mainspring.worker.run import Run, Stop, in_this_thread
from mainspring.worker.threads import HeldBack, Threads


class Executor:
    """Calls the handlers of one worker; belongs to one event loop. `Threads` and `Processes` know no store."""

    def __init__(
        self, app: Mainspring, worker: str, progress: Progress, *, processes: int, may_start: Callable[[Run], bool]
    ) -> None:
        self._app = app
        self._store = app.store
        self._worker = worker
        self._progress = progress
        self._may_start = may_start  # asked again inside the thread or process, as those take a while to be ready
        self._loop = asyncio.get_running_loop()
        self._threads, self._processes = Threads(), Processes(processes)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    async def call(self, run: Run) -> Any:
        """Call the run's handler in the way that fits it, and return what it returns."""
        if run.stop is not None:
            raise asyncio.CancelledError
        task = run.task
        args, kwargs = task.payload.load(run.claim.payload)
        if task.payload.context is not None:
            kwargs[task.payload.context] = self.context(run)
        if run.isolated:
            return await self._call_process(run)
        handler = partial(task.function, *args, **kwargs)
        if not task.is_async:
            return await self._call_thread(run, handler)
        with self._deadline(run):
            if not self._wraps(task):
                return await handler()
            return await self._app.middleware.around(RunCall(task.name, (self.context(run),), is_async=True), handler)

    async def call_chunk(self, chunk: ChunkRun) -> Any:
        if not chunk.runs:
            return None
        call = partial(chunk.task.function, list(chunk.argument))  # a copy, as the handler may change the list
        with chunk.deadline():
            if self._wraps(chunk.task):
                return await self._call_wrapped_chunk(chunk, call)
            value = call() if chunk.task.is_async else await self._in_thread(chunk.runs, call)
            return await value if inspect.iscoroutine(value) else value

    async def _call_wrapped_chunk(self, chunk: ChunkRun, call: Callable[[], Any]) -> Any:
        contexts = tuple(self.context(run) for run in chunk.runs)
        middleware, of_call = self._app.middleware, RunCall(chunk.task.name, contexts, chunk.task.is_async)
        if chunk.task.is_async:
            return await middleware.around(of_call, call)
        value = await middleware.around_thread(of_call, partial(self._in_thread, chunk.runs), call)
        return await value if inspect.iscoroutine(value) else value

    def _wraps(self, task: Task[..., Any, Any]) -> bool:
        return bool(self._app.middleware.runs) and not task.is_internal

    def _in_thread(self, runs: list[Run], call: Callable[[], Any]) -> asyncio.Future[Any]:
        return self._threads.run(partial(self._started, runs, call))

    def _started(self, runs: list[Run], call: Callable[[], Any]) -> Any:
        """Call the handler unless a run may not start any more. This runs in the handler's thread."""
        if not all(map(self._may_start, runs)):
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
                run.task, run.claim, self.context(run), begun, partial(self._may_start, run)
            )
        except HeldBack:
            run.hold_back()
            raise
        finally:
            for timer in timers:
                timer.cancel()

    async def _call_thread(self, run: Run, function: Callable[[], Any]) -> Any:
        """Call the handler in a thread. It cannot be stopped: at its timeout the context tells it, and we wait."""
        context = self.context(run)
        with self._deadline(run):
            if self._wraps(run.task):
                call = RunCall(run.task.name, (context,), is_async=False)
                value = await self._app.middleware.around_thread(call, partial(self._in_own_thread, run), function)
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

    # -- what handlers can use through their context --------------------------------------------

    def context(self, run: Run) -> Context:
        """Return the run's context. Any thread may call this: the handler of a chunk asks for those it needs."""
        if run.context is None:
            durable = run.task.payload.context is not None and not run.isolated
            run.context = Context(
                run.claim,
                key=run.task.idempotency_key(run.claim),
                worker=self._worker,
                report=partial(self._progress.report, run),
                transact=partial(self._transact, run),
                durable=partial(self._durable, run) if durable else None,
                passage=partial(Passage, self._app.breakers),
            )
            if run.stop is not None:
                run.context.stop(run.stop_reason or run.stop)
        return run.context

    def _durable(self, run: Run) -> RecordedCalls:
        """Create the durable part of the context. Any thread may call this."""
        run.durable = DurableRun(
            self._app.services,
            self._app.pipeline,
            run.claim,
            loop=self._loop,
            task=run.slot,
            thread=run.thread,
            in_thread=self._threads.run,
            progressed=partial(self._progress.report, run),
            write_progress=self._progress.write,
            stopped=lambda: run.stop is not None,
            declared=run.task.steps,
        )
        return RecordedCalls(run.durable)

    def _transact(self, run: Run, connection: Any) -> Completion:
        return self._store.completion(lambda: outcomes.completed(run, self._store.clock.now()), connection)
