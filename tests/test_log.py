from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from mainspring import Mainspring, Retry
from mainspring.job import Status
from mainspring.log import JobFilter, add_job, get_log
from mainspring.testing import manual
from tests.worker.working import ended, working

log = get_log("mainspring.test")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = vars(record)["fields"]
    return fields


@pytest.fixture
def captured() -> Iterator[LogCapture]:
    """As a program configures structlog."""
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture
    structlog.reset_defaults()


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_plain_logging_has_the_fields_in_the_line_and_on_the_record(
    caplog: pytest.LogCaptureFixture, level: str
) -> None:
    with caplog.at_level("DEBUG", "mainspring"):
        getattr(log, level)("job_done", job_id="1", task="write", error=None)
    (record,) = caplog.records
    assert record.getMessage() == "job_done job_id='1' task='write'"
    assert (record.name, record.levelname) == ("mainspring.test", level.upper())
    assert fields_of(record) == {"job_id": "1", "task": "write", "error": None}


def test_a_field_that_is_one_of_an_enumeration_is_its_value(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("job_taken_over", status=Status.PENDING)
    (record,) = caplog.records
    assert record.getMessage() == "job_taken_over status='pending'"


def test_plain_logging_shows_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise LookupError("lost")
    except LookupError:
        log.error("failed", exc_info=True)  # noqa: G201 - no logger of the standard library
    assert "LookupError: lost" in caplog.text
    assert fields_of(caplog.records[0]) == {}


@pytest.mark.parametrize("wrapper", [structlog.BoundLogger, structlog.make_filtering_bound_logger(0)])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_structlog_gets_the_fields_as_they_are(
    captured: LogCapture, caplog: pytest.LogCaptureFixture, level: str, wrapper: type
) -> None:
    structlog.configure(processors=[captured], wrapper_class=wrapper)
    getattr(log, level)("job_done", job_id="1", attempt=2)
    assert captured.entries == [{"event": "job_done", "job_id": "1", "attempt": 2, "log_level": level}]
    assert caplog.records == []


def test_structlog_is_used_only_where_the_program_configured_it(caplog: pytest.LogCaptureFixture) -> None:
    assert not structlog.is_configured()
    log.error("job_done")
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_structlog_need_not_be_installed() -> None:
    program = (
        "import sys; sys.modules['structlog'] = None\n"
        "from mainspring.log import get_log; get_log('mainspring').error('job_done', task='write')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "job_done task='write'"


def test_it_can_be_asked_whether_a_level_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "mainspring"):
        assert log.wants(logging.INFO)
        assert not log.wants(logging.DEBUG)
    try:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
        assert log.wants(logging.INFO)
        assert not log.wants(logging.DEBUG)
        structlog.configure(wrapper_class=structlog.BoundLogger)
        assert log.wants(logging.DEBUG)  # it does not say: then it gets all
    finally:
        structlog.reset_defaults()


async def test_the_lines_about_a_job_name_it_by_the_same_fields(captured: LogCapture) -> None:
    app = Mainspring("memory://")

    @app.task(retry=Retry.fixed(60, max_attempts=2))
    async def fail() -> None:
        raise LookupError("no such guest")

    @app.task()
    async def succeed() -> None: ...

    async with manual(app) as kit:
        failing, fine = await fail.enqueue(), await succeed.enqueue()
        await kit.time.advance(minutes=1)
    lines = {entry["event"]: entry for entry in captured.entries}
    about = {"job_id": failing.id, "task": "fail", "duration": 0.0, "error": "LookupError: no such guest"}
    assert lines["job_retrying"].items() >= {**about, "attempt": 1, "delay": 60.0, "reason": "error"}.items()
    assert lines["job_retrying"]["log_level"] == "warning"
    assert lines["job_dead_lettered"].items() >= {**about, "attempt": 2}.items()
    assert lines["job_dead_lettered"]["log_level"] == "error"
    assert lines["job_completed"].items() >= {"job_id": fine.id, "task": "succeed", "log_level": "debug"}.items()
    worker = lines["worker_started"]["worker"]
    assert {lines[event]["worker"] for event in ("job_retrying", "job_dead_lettered", "job_completed")} == {worker}


# -- what handlers log ----------------------------------------------------------------------------


@pytest.fixture
def seen() -> Iterator[list[logging.LogRecord]]:
    """The records of the logger "shop", as a handler with our filter passes them on."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    handler.addFilter(JobFilter())
    logging.getLogger("shop").addHandler(handler)
    yield records
    logging.getLogger("shop").removeHandler(handler)


def told(record: logging.LogRecord) -> tuple[str, str]:
    return vars(record)["job_id"], vars(record)["task"]


async def test_lines_of_handlers_say_which_job(seen: list[logging.LogRecord]) -> None:
    app = Mainspring("memory://")
    both = asyncio.Barrier(2)

    @app.task()
    async def greet(word: str) -> None:
        await both.wait()
        logging.getLogger("shop").warning(word)

    @app.task()
    def write(word: str) -> None:
        logging.getLogger("shop").warning(word)

    async with working(app):
        jobs = [await greet.enqueue("a"), await greet.enqueue("b"), await write.enqueue("c")]
        await ended(app, *[job.id for job in jobs])
    logging.getLogger("shop").warning("d")
    assert {record.getMessage(): told(record) for record in seen} == {
        "a": (jobs[0].id, "greet"), "b": (jobs[1].id, "greet"), "c": (jobs[2].id, "write"), "d": ("-", "-"),
    }  # fmt: skip


async def test_lines_of_handlers_say_which_job_through_structlog() -> None:
    app = Mainspring("memory://")
    capture = LogCapture()
    structlog.configure(processors=[add_job, capture])

    @app.task()
    async def greet() -> None:
        structlog.get_logger().warning("hello")
        structlog.get_logger().warning("own", job_id="mine")

    try:
        async with manual(app) as kit:
            job = await greet.enqueue()
            await kit.drain(raise_errors=True)
    finally:
        structlog.reset_defaults()
    lines = {line["event"]: line for line in capture.entries}
    assert (lines["hello"]["job_id"], lines["hello"]["task"]) == (job.id, "greet")
    assert lines["own"]["job_id"] == "mine"
