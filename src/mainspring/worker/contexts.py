"""What a handler can use of the store: the contexts of runs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from mainspring.context import Context
from mainspring.durable_calls import RecordedCalls
from mainspring.features.breakers.call import Passage
from mainspring.features.durable.run import DurableRun
from mainspring.job import Outcome
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Completion
from mainspring.worker.progress import Progress, ReportedCompletion
from mainspring.worker.run import Run, completed
from mainspring.worker.threads import Threads


class Contexts:
    """Makes the contexts of one worker's runs: the executor does not know the store. Belongs to one event loop."""

    def __init__(self, runtime: Runtime, worker: str, progress: Progress, threads: Threads) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._worker = worker
        self._progress = progress
        self._threads = threads
        self._loop = asyncio.get_running_loop()

    def of(self, run: Run) -> Context:
        """Return the run's context. Any thread may call this: the handler of a chunk asks for those it needs."""
        if run.context is None:
            durable = run.task.signature.context is not None and not run.isolated
            run.context = Context(
                run.claim,
                key=run.task.idempotency_key(run.claim),
                worker=self._worker,
                report=partial(self._progress.report, run),
                transact=partial(self._transact, run),
                durable=partial(self._durable, run) if durable else None,
                passage=partial(Passage, self._runtime.breakers),
                plan=run.plan if durable else None,
            )
            if run.stop is not None:
                run.context.stop(run.stop_reason or run.stop)
        return run.context

    def durable_of(self, run: Run) -> DurableRun:
        """Return what records the steps of a run in a child process."""
        if run.durable is None:
            self._durable(run)
        assert run.durable is not None  # noqa: S101 - it was just made
        return run.durable

    def _durable(self, run: Run) -> RecordedCalls:
        """Create the durable part of the context. Any thread may call this."""
        run.durable = DurableRun(
            self._runtime.services,
            self._runtime.pipeline,
            run.claim,
            loop=self._loop,
            task=run.slot,
            thread=run.thread,
            in_thread=self._threads.run,
            progressed=partial(self._progress.report, run),
            stopped=lambda: run.stop is not None,
            plan=run.plan,
        )
        return RecordedCalls(run.durable)

    def _transact(self, run: Run, connection: Any) -> Completion:
        def outcome() -> Outcome:
            assert run.context is not None  # noqa: S101 - it has opened the transaction
            run.context.effects.outcome = completed(run, self._store.clock.now())
            return run.context.effects.outcome

        completion = self._store.completion(outcome, connection)
        if run.report is run.reported:
            return completion
        return cast("Completion", ReportedCompletion(completion, self._progress, run))
