from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from structlog.testing import LogCapture

from mainspring import Mainspring, Retry
from mainspring.cli.logs import TextFormatter
from mainspring.job import Claim, NewJob, Status
from mainspring.log import JobFilter, add_context, add_job, context_fields, get_log, request_id, running, worker_id
from mainspring.stored_options import with_options
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


def test_a_logger_of_structlog_is_made_once_where_the_program_allows_it(captured: LogCapture) -> None:
    made: list[str] = []

    def make(name: str) -> logging.Logger:
        made.append(name)
        return logging.getLogger(name)

    for _ in range(2):  # it follows a new configuration
        structlog.configure(processors=[captured], logger_factory=make, cache_logger_on_first_use=True)
        log.info("job_done")
        log.info("job_done")
    assert made == ["mainspring.test"] * 2
    assert len(captured.entries) == 4


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


# -- what lines in JSON are about -------------------------------------------------------------------

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


def claim_of(options: str | None = None) -> Claim:
    return Claim("j1", 1, "greet", "mail", "{}", 0, 1, 3, 0, 0, 0, 0, options=options)


def fields_in(claim: Claim | None, request: str | None = None, worker: str | None = None) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        running.set(claim)
        request_id.set(request)
        worker_id.set(worker)
        return context_fields()

    return contextvars.copy_context().run(look)


def test_a_line_outside_of_jobs_and_requests_is_about_nothing() -> None:
    assert fields_in(None, worker="w1") == {}
    assert fields_in(None, "r1") == {"request_id": "r1"}


def test_a_line_of_a_handler_is_about_its_job() -> None:
    about = {"job_id": "j1", "task": "greet", "queue": "mail", "attempt": 2}
    assert fields_in(claim_of(), worker="w1") == {**about, "worker": "w1"}
    assert fields_in(claim_of('{"headers": {"traceparent": "x"}}')) == about


def test_a_line_has_the_trace_of_its_job() -> None:
    job = with_options(NewJob("j1", "greet", "{}"), trace=TRACE)
    fields = fields_in(claim_of(job.options))
    assert (fields["trace_id"], fields["span_id"]) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def test_the_current_span_comes_before_the_trace_of_the_job() -> None:
    job = with_options(NewJob("j1", "greet", "{}"), trace=TRACE)
    span = trace.NonRecordingSpan(trace.SpanContext(trace_id=1, span_id=2, is_remote=False))
    with trace.use_span(span):
        fields = fields_in(claim_of(job.options))
    assert (fields["trace_id"], fields["span_id"]) == (f"{1:032x}", f"{2:016x}")


def test_fields_that_a_line_already_has_stay() -> None:
    def look() -> Any:
        request_id.set("r1")
        return add_context(None, "info", {"event": "x", "request_id": "mine"})

    assert contextvars.copy_context().run(look) == {"event": "x", "request_id": "mine"}


def test_a_line_for_people_names_the_request() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "hello", None, None)

    def write() -> str:
        request_id.set("r1")
        return TextFormatter().format(record)

    assert contextvars.copy_context().run(write).endswith("hello [shop] request_id='r1'")
