"""One run of a job in a worker, from its claim to its outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from mainspring.clock import Millis
from mainspring.context import Context
from mainspring.feature import Recheck
from mainspring.features.durable.run import DurableRun
from mainspring.job import Claim
from mainspring.json_text import read_object
from mainspring.retry import Retry
from mainspring.task import Task


class Stop(StrEnum):
    """Why the worker ends a run before its handler does."""

    CANCEL = "cancelled"  # your code or an operator cancelled the job
    TIMEOUT = "timeout"
    LOST = "claim lost"  # another worker may have the job now: this run's outcome is not written
    SHUTDOWN = "worker stops"  # the job is handed back without using an attempt
    CROWDED = "no room"  # handed back likewise: the worker claimed the job, but has no free slot for it
    HALTED = "halted"  # handed back likewise: halted or refused by a feature between its claim and its start


class Dumped:
    """A result that is already JSON text: a child process has checked it against its task."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text


class Run:
    """One claimed job, what the worker knows about its run, and how to stop it."""

    started_at: Millis = 0
    context: Context | None = None
    thread: int | None = None  # the thread in which the handler runs
    handler_thread: int | None = None  # the same, but only while the handler runs there; also set for chunks
    durable: DurableRun | None = None  # set once the handler has used anything durable
    waits_in: deque[Run] | None = None  # of a job that waits for others to fill its chunk: where it waits
    slot: asyncio.Task[None] | None = None  # the asyncio task that runs it
    written: asyncio.Future[None] | None = None  # set if the slot must wait until the outcome is written
    kill: Callable[[], object] | None = None  # ends the child process, or otherwise stops the handler
    stop: Stop | None = None
    stop_reason = ""
    told_at: float | None = None  # when it was first told to stop, by the monotonic clock
    ended = False  # its outcome is on the way to the store, so the run cannot be stopped any more
    error: BaseException | None = None  # what the handler raised; after a timeout a TimeoutError
    admitted = False  # features have admitted it, and must be told when it ends
    recheck: Recheck | None = None  # of a job being suspended: checks whether what it waits for has happened

    def __init__(self, claim: Claim, task: Task[..., Any, Any], claimed_at: float) -> None:
        self.claim = claim
        self.task = task
        self.claimed_at = claimed_at  # by the worker's monotonic clock

    @property
    def timeout(self) -> float | None:
        return self.claim.timeout / 1000 if self.claim.timeout else None

    @property
    def is_plain(self) -> bool:
        """Return whether it is a coroutine without context, timeout or options of its own."""
        return self.task.is_plain and not self.claim.timeout and self.claim.options is None

    @property
    def needs_recheck(self) -> bool:
        """Return whether features that admitted it may have changed their mind: they go by the job's options."""
        return self.admitted and self.claim.options is not None

    @property
    def isolated(self) -> bool:
        if self.claim.options is None or '"isolation"' not in self.claim.options:  # true of most jobs
            return self.task.options.get("isolation") == "process"
        own = read_object(self.claim.options).get("isolation")
        return (own or self.task.options.get("isolation")) == "process"

    @property
    def threaded(self) -> bool:
        """Return whether the handler can only be told to stop, as it runs in a thread.

        A job that still waits for a child process does not count: it can be stopped.
        """
        return not self.task.is_async and not self.isolated

    @property
    def waits_for_child(self) -> bool:
        return self.slot is not None and self.kill is None and self.isolated

    @property
    def retry(self) -> Retry:
        """Return the job's own retry policy, or else that of its task."""
        if self.claim.options and (own := read_object(self.claim.options).get("retry")):
            return Retry.from_data(own)
        return self.task.retry_in(self.claim.queue)

    def in_its_thread(self, handler: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        return handler()

    def hold_back(self) -> None:
        """Note that the run does not start after all. Any thread may call this."""
        self.stop = self.stop or Stop.HALTED

    def end(self, stop: Stop, reason: str = "") -> None:
        """Make the handler stop: cancel its coroutine or end its process. A handler in a thread is only told."""
        if self.ended or self.stop is Stop.LOST or (self.stop is not None and stop is not Stop.LOST):
            return
        if self._commits(stop):
            return
        self.stop, self.stop_reason = stop, reason
        self.told_at = self.told_at or time.monotonic()
        if self.context is not None:
            self.context.stop(reason or stop)
        if self.kill is not None:
            self.kill()
        elif self.slot is not None and not self.threaded:
            self.slot.cancel()

    def _commits(self, stop: Stop) -> bool:
        """Return whether the run's own transaction is writing its outcome, which a heartbeat sees as a lost claim."""
        if self.context is None:
            return False
        effects = self.context.effects
        return effects.committing or (effects.committed and stop is Stop.LOST)


def in_this_thread(runs: Sequence[Run], handler: Callable[[], Any]) -> Any:
    """Call the handler of these runs. Meanwhile note the thread it runs in, to show its stack if it hangs."""
    for run in runs:
        run.handler_thread = threading.get_ident()
    try:
        return handler()
    finally:
        for run in runs:
            run.handler_thread = None
