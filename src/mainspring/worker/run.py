"""One job in a worker's hands, from claim to outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from mainspring.clock import Millis
from mainspring.context import Context
from mainspring.durable.run import DurableRun
from mainspring.guards import LookAgain
from mainspring.job import Claim
from mainspring.json_text import read_object
from mainspring.retry import Retry
from mainspring.task import Task


class Stop(StrEnum):
    """Why the worker ends a run before its handler does."""

    CANCEL = "cancelled"  # by hand
    TIMEOUT = "timeout"
    LOST = "claim lost"  # somebody else has it now: whatever it does is not written
    SHUTDOWN = "worker stops"  # handed back, no attempt burnt
    CROWDED = "no room"  # likewise: claimed, but nothing is free here to run it
    HALTED = "halted"  # likewise: halted, or refused by a guard, between its claim and its start


class Dumped:
    """A result that is JSON text already: a child process has checked it against its task."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text


class Run:
    started_at: Millis = 0
    context: Context | None = None
    thread: int | None = None  # in which its handler runs
    handler_thread: int | None = None  # the same, but only while the handler runs there; also of a batch
    durable: DurableRun | None = None  # if its handler has asked for anything durable
    slot: asyncio.Task[None] | None = None  # the task that runs it
    written: asyncio.Future[None] | None = None  # if its slot is to wait for that
    kill: Callable[[], object] | None = None  # ends its process, if it has one
    stop: Stop | None = None
    stop_reason = ""
    told_at: float | None = None  # when it was first told to stop, by the monotonic clock
    ended = False  # its outcome is on the way: nothing can be done about it any more
    error: BaseException | None = None  # what its handler raised; at its timeout a TimeoutError
    guarded = False  # it passed guards, who want to hear of its end
    look_again: LookAgain | None = None  # if it is being suspended: whether what it waits for has happened by now

    def __init__(self, claim: Claim, task: Task[..., Any, Any], claimed_at: float) -> None:
        self.claim = claim
        self.task = task
        self.claimed_at = claimed_at  # the worker's monotonic clock

    @property
    def timeout(self) -> float | None:
        return self.claim.timeout / 1000 if self.claim.timeout else None

    @property
    def is_plain(self) -> bool:
        """A coroutine without context, timeout or options of its own."""
        return self.task.is_plain and not self.claim.timeout and self.claim.options is None

    @property
    def isolated(self) -> bool:
        if self.claim.options is None or '"isolation"' not in self.claim.options:  # most say nothing about it
            return self.task.options.isolation == "process"
        own = read_object(self.claim.options).get("isolation")
        return (own or self.task.options.isolation) == "process"

    @property
    def threaded(self) -> bool:
        """Whether all we can do is tell it. A job that still waits for a child process can be called off."""
        return not self.task.is_async and not self.isolated

    @property
    def waits_for_child(self) -> bool:
        return self.slot is not None and self.kill is None and self.isolated

    @property
    def retry(self) -> Retry:
        """The job's own policy, if it carries one."""
        if self.claim.options and (own := read_object(self.claim.options).get("retry")):
            return Retry.from_data(own)
        return self.task.retry_in(self.claim.queue)

    def in_its_thread(self, handler: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        return handler()

    def hold_back(self) -> None:
        """It does not start after all. May be called from any thread."""
        self.stop = self.stop or Stop.HALTED

    def end(self, stop: Stop, reason: str = "") -> None:
        """Make the handler stop: cancel the coroutine, end the process; a thread is only told."""
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
        """Its own transaction writes its end: to a heartbeat that looks like a lost claim."""
        if self.context is None:
            return False
        effects = self.context.effects
        return effects.committing or (effects.committed and stop is Stop.LOST)


def in_this_thread(runs: Sequence[Run], handler: Callable[[], Any]) -> Any:
    """Call the handler of these runs, and note meanwhile in which thread it is, in case it hangs."""
    for run in runs:
        run.handler_thread = threading.get_ident()
    try:
        return handler()
    finally:
        for run in runs:
            run.handler_thread = None
