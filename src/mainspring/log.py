"""Structured logs: through structlog where the program has configured it, else through logging as `event key=value`."""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import Any


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
        fields = {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}
        if structlog is not None:
            write = getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())
            write(event, **fields)  # not every logger of structlog's has `log`
        elif self._logger.isEnabledFor(level):
            trace = fields.pop("exc_info", None)
            shown = " ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
            self._logger.log(level, "%s %s", event, shown, extra={"fields": fields}, exc_info=trace)


def configured_structlog() -> Any | None:
    """Where the program has not imported it, it is not wanted."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def get_log(name: str) -> Log:
    return Log(name)
