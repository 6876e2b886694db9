"""Writes the progress that handlers report to the store."""

from __future__ import annotations

import asyncio

from mainspring.job import ProgressReport
from mainspring.stores.protocol import Store
from mainspring.worker.reporter import Reporter
from mainspring.worker.run import Run
from mainspring.worker.runs import Runs

WRITE_PAUSE = 0.1  # seconds between two writes; of several reports of a job, only the last is written


class Progress:
    """The progress reports of one worker; belongs to one event loop."""

    def __init__(self, store: Store, reporter: Reporter, runs: Runs) -> None:
        self._store = store
        self._reporter = reporter
        self._held = runs.held
        self._loop = asyncio.get_running_loop()
        self._reports: dict[str, ProgressReport] = {}
        self._some, self._writing = asyncio.Event(), asyncio.Lock()

    def report(self, run: Run, fraction: float, note: str) -> None:
        """Note a report, to be written soon. Any thread may call this."""
        report = ProgressReport(run.claim.id, run.claim.token, fraction, note)
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
        claims = {report.job_id: self._held[report.job_id].claim for report in reports}
        try:
            accepted = await self._store.report(reports)
        except BaseException:
            self._reports = {report.job_id: report for report in reports} | self._reports
            self._some.set()  # try again after a pause
            raise
        for report in reports:
            if report.job_id in accepted:
                self._reporter.progressed(claims[report.job_id], report)

    def _is_current(self, report: ProgressReport) -> bool:
        run = self._held.get(report.job_id)
        return run is not None and run.claim.token == report.token
