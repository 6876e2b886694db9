"""Log lines without secrets: those of Mainspring, of handlers, and of libraries that they use.

`mainspring worker` and `mainspring serve` log like this. In a program of your own, wrap the formatter of a handler:
`handler.setFormatter(RedactingFormatter(handler.formatter, app.redaction))`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from mainspring.json_text import from_json, read_object
from mainspring.log import running
from mainspring.redaction import DEFAULT, Hide, Redaction

KEPT = frozenset({"exc_info", "_record", "_from_structlog"})  # of structlog's events: what is not data


class RedactingFormatter(logging.Formatter):
    """Formats a record by another formatter, without what a redaction hides.

    Inside a handler, the values of its job's payload that a rule matches are hidden too, wherever the line has them.
    """

    def __init__(self, inner: logging.Formatter | None, redaction: Redaction = DEFAULT) -> None:
        super().__init__()
        self.inner = inner or logging.Formatter()
        self.redaction = redaction
        self._last: tuple[tuple[str, int], Hide] | None = None  # what hides the secrets of the last job

    def format(self, record: logging.LogRecord) -> str:
        line = self.inner.format(self._without_secrets(record))
        return self._hide()(line)

    def _without_secrets(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy in which data is redacted by its keys. Other handlers get the record as it is."""
        fields = getattr(record, "fields", None)
        if not (fields or record.args or isinstance(record.msg, dict)):
            return record
        made = copy.copy(record)
        if fields:
            made.fields = self.redaction.value(fields)
        if isinstance(record.msg, dict):  # of structlog
            made.msg = {
                key: item if key in KEPT else self.redaction.value({key: item})[key] for key, item in record.msg.items()
            }
        made.args = self._arguments(record.args)
        return made

    def _arguments(self, arguments: Any) -> Any:
        if isinstance(arguments, Mapping):
            return self.redaction.value(arguments)
        is_data = (dict, list)
        return tuple(self.redaction.value(each) if isinstance(each, is_data) else each for each in arguments or ())

    def _hide(self) -> Hide:
        claim = running.get()
        if claim is None:
            return self.redaction.text
        last = self._last
        if last is not None and last[0] == (claim.id, claim.token):
            return last[1]
        try:
            payload = from_json(claim.payload)
        except ValueError:
            payload = None
        hide = self.redaction.hide(payload, read_object(claim.options).get("headers"), claim.task)
        self._last = (claim.id, claim.token), hide
        return hide


def use_in_logs(redaction: Redaction) -> None:
    """Let all redacting formatters of this process's log use these rules."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, RedactingFormatter):
            handler.formatter.redaction = redaction
