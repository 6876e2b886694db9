"""Structured logs: through structlog where the program has configured it, else through logging as `event key=value`.

What a handler logs can be told apart by its job: `JobFilter` for logging and `add_job` for structlog add `job_id` and
`task`. The formats of `mainspring worker` have both.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from enum import Enum
from functools import partial
from typing import Any

from mainspring.job import Claim

running: ContextVar[Claim | None] = ContextVar("mainspring_running", default=None)
"""The job whose handler runs in this context. Batched handlers have several, and none here."""

FORMAT = "%(asctime)s [%(levelname)s] %(name)s %(message)s job_id=%(job_id)s task=%(task)s"


class Log:
    """In structlog's manner. Without it the fields also travel as the record's attribute `fields`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def wants(self, level: int) -> bool:
        """Whether a line of this level would be seen: for who has many of them."""
        structlog = configured_structlog()
        if structlog is None:
            return self._logger.isEnabledFor(level)
        logger = structlog.get_logger(self._name).bind()
        asks = getattr(type(logger), "is_enabled_for", None) or getattr(type(logger), "isEnabledFor", None)
        return asks is None or bool(asks(logger, level))

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = configured_structlog()
        if structlog is None and not self._logger.isEnabledFor(level):
            return
        fields = {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}
        if structlog is not None:
            write = getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())
            write(event, **fields)  # not every logger of structlog's has `log`
        else:
            trace = fields.pop("exc_info", None)
            shown = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
            self._logger.log(level, "%s %s", event, shown, extra={"fields": fields}, exc_info=trace)


def configured_structlog() -> Any | None:
    """Where the program has not imported it, it is not wanted."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def get_log(name: str) -> Log:
    return Log(name)


# -- what handlers log ----------------------------------------------------------------------------


def job_fields() -> dict[str, str]:
    """`job_id` and `task` of the job whose handler runs here; nothing outside of handlers."""
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
    """Processor for structlog that does the same; what the line says itself stays."""
    for name, value in job_fields().items():
        event.setdefault(name, value)
    return event


# -- in child processes ---------------------------------------------------------------------------

SetUp = Callable[[], None]
_of_children: list[SetUp] = []


def set_up_children(set_up: SetUp) -> None:
    """Call this in each child process, before the application is imported: it must be importable there."""
    _of_children[:] = [set_up]


def set_up_of_children() -> tuple[SetUp | None, SetUp]:
    """What a new child calls before, and what it calls after it has imported the application.

    A program that has set up its own logging does so again in the child, if that is done by an import. If it is not,
    the child logs to standard error from the same level on.
    """
    return next(iter(_of_children), None), partial(log_to_stderr, logging.getLogger().level)


def log_to_stderr(level: int) -> None:
    """Do nothing if there are handlers already."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.addFilter(JobFilter())
        logging.basicConfig(level=level, handlers=[handler], format=FORMAT)
