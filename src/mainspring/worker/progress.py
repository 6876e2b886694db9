"""Writes the progress that handlers report: now and then while they run, and the last report before the outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from mainspring.errors import StoreError
from mainspring.events import JobProgressed
from mainspring.job import ProgressReport
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Completion
from mainspring.worker.outage import is_being_cancelled
from mainspring.worker.run import Run, Stop, fields_of

log = get_log("mainspring.worker")

LONGEST_WAIT = 10.0  # seconds that a handler in a thread waits for its report to be written
WRITE_PAUSE = 0.1  # seconds between two writes of progress; of several reports of a job, only the last is written


class Progress:
    """Writes the progress reports of one worker to the store; belongs to one event loop.

    While jobs run, `step` writes the newest report of each, ten times a second at most. A run that ends with an
    unwritten report passes `write_last` before its outcome is written. After that the store would refuse the report,
    because it takes reports of claims that are held only.
    """

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._store = runtime.store
        self._bus = runtime.bus
        self._worker = worker
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._waiting: set[Run] = set()
        self._some = asyncio.Event()
        self._writing = asyncio.Lock()  # keeps an older report from being written after a newer one

    def report(self, run: Run, fraction: float, note: str) -> None:
        """Note a report, to be written soon. Any thread may call this."""
        run.report = ProgressReport(run.claim.id, run.claim.token, fraction, run.hide(note) if note else note)
        self._loop.call_soon_threadsafe(self._note, run)

    def _note(self, run: Run) -> None:
        if not run.ended:
            self._waiting.add(run)
            self._some.set()

    async def step(self) -> None:
        """Do one turn of a supervised loop."""
        await self._some.wait()
        await self.write()
        await asyncio.sleep(WRITE_PAUSE)

    async def write(self) -> None:
        """Write the newest report of each run that has not ended."""
        async with self._writing:
            self._some.clear()
            runs, self._waiting = self._waiting, set()
            try:
                await self._write([run for run in runs if not run.ended])
            except BaseException:
                self._waiting |= runs
                self._some.set()  # try again after a pause
                raise

    async def write_last(self, runs: Sequence[Run], *, insist: bool = False) -> None:
        """Write the last reports of runs, before their outcomes. Wait for reports that are being written.

        With `insist`, raise the errors of the store, so that the caller tries again. Otherwise log them: an outcome
        must not wait for ever because a report of progress cannot be written.
        """
        try:
            async with self._writing:
                await self._write(runs)
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled() or (insist and isinstance(error, StoreError)):
                raise
            log.warning("progress_not_written", jobs=len(runs), error=f"{type(error).__name__}: {error}")

    def write_last_from_thread(self, run: Run) -> None:
        """Do the same for a handler in a thread. On the event loop do nothing, because it would wait for itself."""
        if threading.get_ident() != self._thread:
            with suppress(RuntimeError, TimeoutError):  # the worker has ended, or is too busy
                asyncio.run_coroutine_threadsafe(self.write_last([run]), self._loop).result(LONGEST_WAIT)

    async def _write(self, runs: Sequence[Run]) -> None:
        reports = {run: run.report for run in runs if run.report is not run.reported and run.stop is not Stop.LOST}
        unwritten = [report for report in reports.values() if report is not None]
        if unwritten:
            accepted = await self._store.report(unwritten)
            self._written(reports, accepted)

    def _written(self, reports: Mapping[Run, ProgressReport | None], accepted: set[str]) -> None:
        wanted = self._bus.wants(JobProgressed)
        for run, report in reports.items():
            run.reported = report
            if wanted and report is not None and report.job_id in accepted:
                about = fields_of(run, self._worker)
                self._bus.emit(JobProgressed(**about, fraction=report.fraction, note=report.note))


class ReportedCompletion:
    """A transaction of `ctx.transaction()` that begins when the run's last report is written.

    Within the transaction it is too late: on SQLite, the report would wait until the transaction ends.
    """

    def __init__(self, completion: Completion, progress: Progress, run: Run) -> None:
        self._completion = completion
        self._progress = progress
        self._run = run

    def __enter__(self) -> Any:
        self._progress.write_last_from_thread(self._run)
        return self._completion.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._completion.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        await self._progress.write_last([self._run])
        return await self._completion.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._completion.__aexit__(kind, error, trace)
