"""The port for error reports, and its adapter for Sentry over plain HTTP."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

log = logging.getLogger(__name__)
TIMEOUT = 10.0  # seconds
PAUSES = (0.5, 2.0)  # seconds before the second and third try
FRAME = re.compile(r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$(?:\n    (?P<code>.+)$)?')
EVENT_IDS = uuid.UUID("0a4be8f0-54a6-4b2b-8d3c-6dbb9c1ad5b7")  # the namespace of our event ids


@dataclass(frozen=True, slots=True)
class JobError:
    """One failed run of a job."""

    job_id: str
    job_type: str
    payload: Any
    attempt: int
    worker: str
    is_dead_letter: bool
    error_type: str
    message: str
    traceback: str
    at: datetime

    @property
    def event_id(self) -> str:
        """The same for each try to report this run, so that Sentry recognises a repeat.

        The number of the attempt is not enough: a run that ends with its process does not count as an attempt.
        """
        return uuid.uuid5(EVENT_IDS, f"{self.job_id} {self.attempt} {self.at.isoformat()}").hex


class ErrorReporter(Protocol):
    def report(self, error: JobError) -> None: ...


class LogReporter:
    """For an installation without Sentry: Mainspring has logged the error already; this adds the payload."""

    def report(self, error: JobError) -> None:
        log.error("%s %s failed with payload %s\n%s", error.job_type, error.job_id, error.payload, error.traceback)


class SentryReporter:
    """Sends errors as envelopes to the server that a DSN names."""

    def __init__(self, dsn: str, sleep: Callable[[float], None] = time.sleep) -> None:
        parts = urlsplit(dsn)
        project = parts.path.removeprefix("/")
        if not parts.username or not parts.hostname or not project.isdigit():
            raise ValueError(f"{dsn!r} is not a Sentry DSN; it looks like https://<key>@<host>/<project>")
        host = parts.netloc.rpartition("@")[2]
        self._url = f"{parts.scheme}://{host}/api/{project}/envelope/"
        self._auth = f"Sentry sentry_version=7, sentry_client=companion/1.0, sentry_key={parts.username}"
        self._sleep = sleep

    def report(self, error: JobError) -> None:
        """Send the report. If Sentry does not take it after three tries, log it: a report must not fail a job."""
        body = envelope(error)
        for pause in (*PAUSES, None):
            try:
                return self._send(body)
            except OSError as problem:
                if pause is None or (isinstance(problem, HTTPError) and problem.code < 429):
                    log.exception("Sentry did not take the report of %s %s", error.job_type, error.job_id)
                    return None
                self._sleep(pause)
        return None

    def _send(self, body: bytes) -> None:
        headers = {"Content-Type": "application/x-sentry-envelope", "X-Sentry-Auth": self._auth}
        request = Request(self._url, body, headers)  # noqa: S310 - a setting
        try:
            urlopen(request, timeout=TIMEOUT).close()  # noqa: S310 - likewise
        except HTTPError as error:
            error.close()  # it holds the connection
            raise


def envelope(error: JobError) -> bytes:
    event = json.dumps(to_event(error)).encode()
    header = {"event_id": error.event_id}
    item = {"type": "event", "content_type": "application/json", "length": len(event)}
    return b"\n".join([json.dumps(header).encode(), json.dumps(item).encode(), event, b""])


def to_event(error: JobError) -> dict[str, Any]:
    return {
        "event_id": error.event_id,
        "timestamp": error.at.isoformat(),
        "platform": "python",
        "level": "error" if error.is_dead_letter else "warning",
        "logger": "companion.jobs",
        "transaction": error.job_type,
        "tags": {"job_id": error.job_id, "job_type": error.job_type, "dead_letter": str(error.is_dead_letter)},
        "contexts": {"job": {"attempt": error.attempt, "worker": error.worker, "payload": error.payload}},
        "extra": {"traceback": error.traceback},
        "exception": {
            "values": [
                {"type": error.error_type, "value": error.message, "stacktrace": {"frames": frames_of(error.traceback)}}
            ]
        },
    }


def frames_of(traceback: str) -> list[dict[str, Any]]:
    """Return the frames of a traceback as Sentry groups errors by them: the innermost last."""
    return [
        {
            "filename": found["file"],
            "lineno": int(found["line"]),
            "function": found["function"],
            "context_line": found["code"],
            "in_app": "/site-packages/" not in found["file"] and "/mainspring/" not in found["file"],
        }
        for found in FRAME.finditer(traceback)
    ]
