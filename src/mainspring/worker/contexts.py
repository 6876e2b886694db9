"""What a handler can use of the store: the contexts of runs, and the progress that handlers report through them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from mainspring.context import Context
from mainspring.durable_calls import RecordedCalls
from mainspring.events import JobProgressed
from mainspring.features.breakers.call import Passage
from mainspring.features.durable.run import DurableRun
from mainspring.job import Outcome, ProgressReport
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Completion
from mainspring.worker.run import Run, completed, fields_of
from mainspring.worker.threads import Threads

WRITE_PAUSE = 0.1  # seconds between two writes of progress; of several reports of a job, only the last is written


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
            write_progress=self._progress.write,
            stopped=lambda: run.stop is not None,
            plan=run.plan,
        )
        return RecordedCalls(run.durable)

    def _transact(self, run: Run, connection: Any) -> Completion:
        def outcome() -> Outcome:
            assert run.context is not None  # noqa: S101 - it has opened the transaction
            run.context.effects.outcome = completed(run, self._store.clock.now())
            return run.context.effects.outcome

        return self._store.completion(outcome, connection)


class Progress:
    """Writes the progress reports of one worker to the store; belongs to one event loop."""

    def __init__(self, runtime: Runtime, worker: str, held: Mapping[str, Run]) -> None:
        self._store = runtime.store
        self._bus = runtime.bus
        self._worker = worker
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._reports: dict[str, ProgressReport] = {}
        self._some, self._writing = asyncio.Event(), asyncio.Lock()

    def report(self, run: Run, fraction: float, note: str) -> None:
        """Note a report, to be written soon. Any thread may call this."""
        report = ProgressReport(run.claim.id, run.claim.token, fraction, run.hide(note) if note else note)
        self._loop.call_soon_threadsafe(self._note, report)

    def _note(self, report: ProgressReport) -> None:
        if report.job_id in self._held:
            self._reports[report.job_id] = report
            self._some.set()

    async def step(self) -> None:
        """Do one turn of a supervised loop."""
        await self._some.wait()
        await self.write()
        await asyncio.sleep(WRITE_PAUSE)

    async def write(self) -> None:
        """Write all reports; when this returns, everything reported before is written."""
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        self._some.clear()
        reports, self._reports = [report for report in self._reports.values() if self._is_current(report)], {}
        if not reports:
            return
        runs = {report.job_id: self._held[report.job_id] for report in reports}
        try:
            accepted = await self._store.report(reports)
        except BaseException:
            self._reports = {report.job_id: report for report in reports} | self._reports
            self._some.set()  # try again after a pause
            raise
        for report in reports if self._bus.wants(JobProgressed) else ():
            if report.job_id in accepted:
                about = fields_of(runs[report.job_id], self._worker)
                self._bus.emit(JobProgressed(**about, fraction=report.fraction, note=report.note))

    def _is_current(self, report: ProgressReport) -> bool:
        run = self._held.get(report.job_id)
        return run is not None and run.claim.token == report.token
