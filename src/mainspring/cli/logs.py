"""Log lines on standard error: as text for people, as JSON for machines; through structlog if it is installed.

This is set up before the application is imported, so that an application can set up its own logging instead.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import partial
from typing import Any

from mainspring.cli.terminal import has_colour
from mainspring.log import add_job, job_fields, set_up_children

LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str, *, as_json: bool, structlog: bool = True, final: bool = False) -> None:
    """Set up logging, and do the same in child processes of a worker.

    With `structlog=False`, structlog is not imported: a command that imports no application does not need it. With
    `final`, loggers keep these settings from their first line on, so that lines below the level cost little.
    """
    set_up_children(partial(set_up, level, as_json=as_json, structlog=structlog, final=final))
    formatter = structlog_formatter(level, as_json=as_json, final=final) if structlog else None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter or (JsonFormatter() if as_json else TextFormatter()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def structlog_formatter(level: str, *, as_json: bool, final: bool) -> logging.Formatter | None:
    """Return a formatter that makes lines of structlog and logging look alike; None if structlog is not installed."""
    try:
        import structlog
    except ImportError:
        return None
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_job,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=final,
    )
    last: list[Any]
    if as_json:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=has_colour(sys.stderr), pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *last])


class TextFormatter(logging.Formatter):
    """Formats lines like `2026-05-01T09:30:00.123Z [info] worker_started worker='…' [mainspring.worker]`."""

    def format(self, record: logging.LogRecord) -> str:
        job = {} if hasattr(record, "fields") else job_fields()
        words = [record.getMessage(), f"[{record.name}]", *(f"{name}={value!r}" for name, value in job.items())]
        line = f"{timestamp(record)} [{record.levelname.lower():<7}] {' '.join(words)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formats each line as a JSON object, in the same shape as structlog does."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        event = record.getMessage().split(" ", 1)[0] if fields else record.getMessage()
        about = {"logger": record.name, "level": record.levelname.lower(), "timestamp": timestamp(record)}
        entry = {**job_fields(), **fields, "event": event.strip(), **about}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"
