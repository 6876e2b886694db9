"""Structured logs: through structlog if the program has configured it, else through logging as `event key=value`.

To see which job wrote a line, add `job_id` and `task` to what handlers log: with `JobFilter` for logging, or `add_job`
for structlog. The log formats of `mainspring worker` and `mainspring serve` have both fields; lines in JSON have all of
`context_fields`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Any

from mainspring.job import Claim

running: ContextVar[Claim | None] = ContextVar("mainspring_running", default=None)
"""The job whose handler runs in this context; None for chunk handlers, which run several jobs at once."""

request_id: ContextVar[str | None] = ContextVar("mainspring_request_id", default=None)
"""The request that the service answers in this context."""

worker_id: ContextVar[str | None] = ContextVar("mainspring_worker_id", default=None)
"""The worker that runs the job of this context."""

TRACE = re.compile(r'"traceparent": ?"[0-9a-f]{2}-(?P<trace_id>[0-9a-f]{32})-(?P<span_id>[0-9a-f]{16})-')

FORMAT = "%(asctime)s [%(levelname)s] %(name)s %(message)s job_id=%(job_id)s task=%(task)s"


class Log:
    """A logger with structlog's interface. Without structlog, records also have the fields as attribute `fields`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)
        self._of_structlog: Any = None
        self._processors: Any = None  # of structlog, when `_of_structlog` was made

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def wants(self, level: int) -> bool:
        """Return whether a line of this level would be written, so that callers with many lines can skip them."""
        structlog = configured_structlog()
        if structlog is None:
            return self._logger.isEnabledFor(level)
        logger = self._structlog_logger(structlog).bind()
        asks = getattr(type(logger), "is_enabled_for", None) or getattr(type(logger), "isEnabledFor", None)
        return asks is None or bool(asks(logger, level))

    def _structlog_logger(self, structlog: Any) -> Any:
        """Return the logger of structlog. It is made once per configuration: to make it takes longer than to ask it."""
        processors = structlog.get_config()["processors"]
        if processors is not self._processors:
            self._of_structlog, self._processors = structlog.get_logger(self._name), processors
        return self._of_structlog

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = configured_structlog()
        if structlog is None and not self._logger.isEnabledFor(level):
            return
        fields = {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}
        if structlog is not None:
            write = getattr(self._structlog_logger(structlog), logging.getLevelName(level).lower())
            write(event, **fields)  # not every structlog logger has `log`
        else:
            trace = fields.pop("exc_info", None)
            shown = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
            self._logger.log(level, "%s %s", event, shown, extra={"fields": fields}, exc_info=trace)


def configured_structlog() -> Any | None:
    """Return structlog if the program has imported and configured it, else None."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def get_log(name: str) -> Log:
    return Log(name)


# -- what handlers log ----------------------------------------------------------------------------


def context_fields() -> dict[str, Any]:
    """Return what a line is about: the request, the job whose handler runs here, and the trace."""
    claim, request, fields = running.get(), request_id.get(), dict[str, Any]()
    if request is not None:
        fields["request_id"] = request
    if claim is not None:
        fields |= {"job_id": claim.id, "task": claim.task, "queue": claim.queue, "attempt": claim.attempt}
        if (worker := worker_id.get()) is not None:
            fields["worker"] = worker
    return fields | trace_fields(claim)


def trace_fields(claim: Claim | None) -> dict[str, str]:
    """Return `trace_id` and `span_id`: of the current span of OpenTelemetry, else of the job's stored trace."""
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is not None:
        span = opentelemetry.get_current_span().get_span_context()
        if span.is_valid:
            return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    found = None if claim is None or claim.options is None else TRACE.search(claim.options)
    return {} if found is None else found.groupdict()


def job_fields() -> dict[str, str]:
    """Return `job_id` and `task` of the job whose handler runs here; an empty dict outside of handlers."""
    claim = running.get()
    return {} if claim is None else {"job_id": claim.id, "task": claim.task}


class JobFilter(logging.Filter):
    """Add `job_id` and `task` to each record, for `%(job_id)s` in a format; "-" outside of handlers.

    Put it on the handler that formats: handler.addFilter(JobFilter())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = job_fields()
        record.job_id, record.task = fields.get("job_id", "-"), fields.get("task", "-")
        return True


def add_job(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add `job_id` and `task` to structlog's events, as a processor. Fields that the line already has stay."""
    for name, value in job_fields().items():
        event.setdefault(name, value)
    return event


def add_context(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add all of `context_fields` to structlog's events, as a processor. Fields that the line already has stay."""
    for name, value in context_fields().items():
        event.setdefault(name, value)
    return event


# -- in child processes ---------------------------------------------------------------------------

SetUp = Callable[[], None]
_of_children: list[SetUp] = []


def set_up_children(set_up: SetUp) -> None:
    """Register a function that each child process calls before it imports the application.

    The child must be able to import the function.
    """
    _of_children[:] = [set_up]


def set_up_of_children() -> tuple[SetUp | None, SetUp]:
    """Return what a new child process calls before and after it imports the application.

    If an import sets up the program's logging, the child does so, too. Otherwise the child logs to standard error,
    with the same level.
    """
    return next(iter(_of_children), None), partial(log_to_stderr, logging.getLogger().level)


def log_to_stderr(level: int) -> None:
    """Log to standard error, unless there are handlers already."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.addFilter(JobFilter())
        logging.basicConfig(level=level, handlers=[handler], format=FORMAT)
