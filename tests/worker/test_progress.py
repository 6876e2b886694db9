"""Progress: written now and then while a job runs, and always before its outcome."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, Snooze
from mainspring.changes import ChangeStream
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.events import Event, JobCompleted, JobProgressed
from mainspring.job import Progress, ProgressReport
from mainspring.stores.feed import ChangeFilter
from mainspring.stores.sqlite import MemoryStore
from tests.worker.working import ended, eventually, new_app, record, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    return new_app()


async def until_end(stream: ChangeStream) -> list[tuple[str, Any]]:
    """Return the changes up to the end of a job, each with the fraction that it reports."""
    found: list[tuple[str, Any]] = []
    async with asyncio.timeout(30):
        async for change in stream:
            found.append((change.kind, change.data.get("fraction")))
            if change.kind in {"completed", "dead_lettered", "cancelled"}:
                return found
    raise AssertionError


async def test_the_last_report_is_written_before_the_job_completes(app: Mainspring) -> None:
    first = asyncio.Event()

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        await first.wait()
        ctx.progress(0.9, "nearly")

    stream = app.changes(where=ChangeFilter(kinds=("progressed", "completed")))
    await stream.begin()
    async with working(app):
        events = record(app, JobProgressed)
        job = await work.enqueue()
        await eventually(lambda: events)
        first.set()
        assert await until_end(stream) == [("progressed", 0.5), ("progressed", 0.9), ("completed", None)]
    assert (await job.get()).progress == Progress(0.9, "nearly")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("ack", ["grouped", "sync"])
async def test_a_report_just_before_the_end_is_kept(tmp_path: Path, kind: str, ack: Any) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    work: Any = app.task(ack=ack)(report_and_return if kind == "coroutine" else report_in_thread)
    async with working(app):
        job = await work.enqueue()
        await ended(app, job.id)
    assert (await job.get()).progress == Progress(1.0, "done")


async def report_and_return(ctx: Context) -> None:
    ctx.progress(1.0, "done")


def report_in_thread(ctx: Context) -> None:
    ctx.progress(1.0, "done")


@pytest.mark.parametrize("error", [OSError("down"), Snooze(3600)])
async def test_a_run_that_does_not_complete_keeps_its_last_report(app: Mainspring, error: Exception) -> None:
    @app.task(retry=Retry.fixed(3600, max_attempts=3))
    async def work(ctx: Context) -> None:
        ctx.progress(0.7)
        raise error

    async def reported() -> bool:
        return (await job.get()).progress == Progress(0.7, "")

    async with working(app):
        job = await work.enqueue()
        await eventually(reported)


async def test_a_job_that_suspends_keeps_its_last_report(app: Mainspring) -> None:
    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.3, "waits")
        await ctx.sleep(3600)

    async def waits() -> bool:
        found = await job.get()
        return found.status == "suspended" and found.progress == Progress(0.3, "waits")

    async with working(app):
        job = await work.enqueue()
        await eventually(waits)


async def test_a_large_result_comes_after_the_last_report(app: Mainspring) -> None:
    @app.task()
    async def work(ctx: Context) -> str:
        ctx.progress(1.0)
        return "x" * 300_000

    events = record(app, Event)
    async with working(app):
        job = await work.enqueue()
        await ended(app, job.id)
    kinds = [type(event) for event in events if isinstance(event, (JobProgressed, JobCompleted))]
    assert kinds == [JobProgressed, JobCompleted]
    assert (await job.get()).progress == Progress(1.0, "")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_report_before_a_transaction_is_written_before_its_commit(tmp_path: Path, kind: str) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    async def on_the_loop(ctx: Context) -> None:
        ctx.progress(0.8)
        async with ctx.transaction() as connection:
            assert isinstance(connection, sqlite3.Connection)

    def in_a_thread(ctx: Context) -> None:
        ctx.progress(0.8)
        with ctx.transaction() as connection:
            assert isinstance(connection, sqlite3.Connection)

    work = app.task()(on_the_loop) if kind == "coroutine" else app.task()(in_a_thread)
    async with working(app):
        job = await work.enqueue()
        await ended(app, job.id)
    assert (await job.get()).progress == Progress(0.8, "")


# -- what it costs --------------------------------------------------------------------------------


class ReportStore(MemoryStore):
    """Records its writes of reports, and can hold them up or let them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[list[float]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.errors: list[Exception] = []
        self.always: Exception | None = None

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        self.reports.append([report.fraction for report in reports])
        await self.gate.wait()
        if self.errors or self.always:
            raise self.errors.pop(0) if self.errors else self.always  # type: ignore[misc]
        return await super().report(reports)


async def test_jobs_without_reports_cause_no_write_of_progress() -> None:
    app = Mainspring(store := ReportStore())

    @app.task()
    async def work(ctx: Context) -> None: ...

    async with working(app):
        jobs = [await work.enqueue() for _ in range(20)]
        await ended(app, *(job.id for job in jobs))
    assert store.reports == []


async def test_outcomes_of_other_jobs_do_not_wait_for_a_report() -> None:
    app = Mainspring(store := ReportStore())

    @app.task()
    async def report(ctx: Context) -> None:
        ctx.progress(1.0)

    @app.task()
    async def plain() -> None: ...

    store.gate.clear()
    async with working(app):
        slow = await report.enqueue()
        await eventually(lambda: store.reports)
        await ended(app, (await plain.enqueue()).id)
        assert (await slow.get()).status == "running"
        store.gate.set()
        await ended(app, slow.id)


async def test_an_older_report_that_is_being_written_comes_first() -> None:
    app = Mainspring(store := ReportStore())
    gate = asyncio.Event()

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.2)
        await gate.wait()
        ctx.progress(0.9)

    events = record(app, JobProgressed)
    store.gate.clear()
    async with working(app):
        job = await work.enqueue()
        await eventually(lambda: store.reports)
        gate.set()
        await asyncio.sleep(0.05)
        assert store.reports == [[0.2]]
        store.gate.set()
        await ended(app, job.id)
    assert store.reports == [[0.2], [0.9]]
    assert [event.fraction for event in events] == [0.2, 0.9]


async def test_reports_are_written_at_intervals_while_the_job_runs() -> None:
    app = Mainspring(store := ReportStore())

    @app.task()
    async def work(ctx: Context) -> None:
        for number in range(200):
            ctx.progress(number / 200)
            await asyncio.sleep(0)

    async with working(app):
        job = await work.enqueue()
        await ended(app, job.id)
    assert len(store.reports) < 20
    assert store.reports[-1] == [199 / 200]


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), StoreError("disk")])
async def test_the_last_report_is_tried_again_after_an_outage(fault: Exception) -> None:
    app = Mainspring(store := ReportStore())
    store.errors = [fault, fault]

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(1.0, "done")

    async with working(app):
        job = await work.enqueue()
        await ended(app, job.id)
    assert (await job.get()).progress == Progress(1.0, "done")


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), StoreError("disk"), ValueError("note")])
async def test_an_outcome_is_written_even_if_its_report_never_can_be(fault: Exception) -> None:
    app = Mainspring(store := ReportStore())
    store.always = fault

    @app.task()
    async def work(ctx: Context) -> str:
        ctx.progress(1.0)
        return "kept"

    async with working(app):
        job = await work.enqueue()
        assert await job.result(30) == "kept"


async def test_a_run_whose_claim_is_lost_reports_nothing_more() -> None:
    app = Mainspring(store := ReportStore())
    running = asyncio.Event()

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            ctx.progress(1.0)

    async with working(app) as worker:
        job = await work.enqueue()
        await running.wait()
        (run,) = worker.parts.runs.held.values()
        run.claim.token += 1  # as if another worker had claimed the job meanwhile
        await eventually(lambda: not worker.parts.runs.held)
        assert (await job.get()).progress is None
    assert store.reports == []
