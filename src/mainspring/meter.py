"""What counts jobs for metrics where events would cost too much.

A busy worker starts and ends tens of thousands of jobs a second. To make events of them takes longer than to run them.
So these places call the meter of the event bus directly, if it has one. What happens less often is an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Literal, Protocol

from mainspring.clock import Millis
from mainspring.job import Claim, Inserted, NewJob

Via = Literal["app", "api", "job", "timer"]

enqueued_via: ContextVar[Via | None] = ContextVar("mainspring_enqueued_via", default=None)
"""Where the jobs that are enqueued in this context come from, if something else than the pipeline knows it."""


class Meter(Protocol):
    """Counts jobs. Its methods are called from any thread. They must be quick, must not block and must not raise."""

    def enqueued(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted], via: Via) -> None:
        """Count jobs that the store has taken, or that another job's dedupe key has kept out."""

    def started(self, claim: Claim, lateness: Millis) -> None: ...

    def completed(self, claim: Claim, duration: Millis) -> None: ...

    def called(self, breaker: str, seconds: float, *, well: bool | None) -> None:
        """Count a call through a circuit breaker. None: its end says nothing about the service that was called."""
