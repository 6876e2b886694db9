"""Writes the progress that handlers report to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mainspring.job import ProgressReport
from mainspring.stores.protocol import Store
from mainspring.worker.reporter import Reporter
from mainspring.worker.run import Run

WRITE_PAUSE = 0.1  # seconds between two writes; of several reports of a job, only the last is written


class Progress:
    """The progress reports of one worker; belongs to one event loop."""

    def __init__(self, store: Store, reporter: Reporter, held: Mapping[str, Run]) -> None:
        self._store = store
        self._reporter = reporter
        self._held = held
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

    def forget(self, job_id: str) -> None:
        self._reports.pop(job_id, None)

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
        reports, self._reports = list(self._reports.values()), {}
        if not reports:
            return
        runs = {report.job_id: self._held.get(report.job_id) for report in reports}
        try:
            accepted = await self._store.report(reports)
        except BaseException:
            self._reports = {report.job_id: report for report in reports} | self._reports
            self._some.set()  # try again after a pause
            raise
        for report in reports:
            run = runs[report.job_id]
            if run is not None and report.job_id in accepted:
                self._reporter.progressed(run.claim, report)
