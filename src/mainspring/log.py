"""Structured logs: through structlog where it is installed, else through the standard library as `event key=value`."""

from __future__ import annotations

import logging
from typing import Any, Protocol


class Log(Protocol):
    """What of structlog's logger is used here."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


class PlainLog:
    """The standard library's logging in structlog's manner; fields also travel as attributes of the record."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            trace = fields.pop("exc_info", None)
            shown = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
            self._logger.log(level, "%s %s", event, shown, extra={"fields": fields}, exc_info=trace)


def get_log(name: str) -> Log:
    try:
        import structlog  # noqa: PLC0415 - optional
    except ImportError:
        return PlainLog(name)
    log: Log = structlog.get_logger(name)
    return log
