"""Refuse to wait for a job in a test: nothing runs by itself there, so most waits would never end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mainspring.errors import ConfigurationError, UnsupportedCall
from mainspring.job import Job

in_handler: ContextVar[bool] = ContextVar("in_handler", default=False)


class Waiting:
    """Knows whether the kit runs jobs at this moment, and refuses waits that only the caller itself could end."""

    def __init__(self) -> None:
        self._drains = 0

    @contextmanager
    def draining(self) -> Iterator[None]:
        self._drains += 1
        try:
            yield
        finally:
            self._drains -= 1

    @contextmanager
    def handling(self) -> Iterator[None]:
        token = in_handler.set(True)
        try:
            yield
        finally:
            in_handler.reset(token)

    def refuse(self, job: Job) -> None:
        """Raise an error if waiting for this unfinished job would never end. `result()` calls this before it waits."""
        which = f"job {job.id} of task {job.task!r} is {job.status}"
        if in_handler.get():
            msg = f"{which}, but under mainspring.testing one job runs at a time: a handler cannot wait for another job"
            raise UnsupportedCall(msg)
        if not self._drains:
            msg = (
                f"{which}, but under mainspring.testing nothing runs by itself: run due jobs with kit.drain(), or"
                " later jobs with kit.time.advance(…), before you ask for the result"
            )
            raise ConfigurationError(msg)
