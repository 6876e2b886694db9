"""Halting and waiting for the workers to confirm: what `app.halt()` and `app.pause()` do and return.

A halt is in force for the store as soon as it is written. Workers may hold jobs that they claimed before. Each worker
stops starting them, hands them back and confirms the halt. `halt()` waits for the confirmations of all live workers.

Some workers cannot confirm: they are stopped, or cut off from the store. No worker starts a job if it last read the
halts more than `TRUSTED_FOR` seconds ago (halt_check.py). A wait of `CONFIRM_WITHIN` seconds is longer than that, so
even those workers start nothing after it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime

from mainspring.clock import Length, duration
from mainspring.errors import ConfigurationError, StoreBusy
from mainspring.stores.protocol import Halt, Store, WorkerInfo

CONFIRM_WITHIN = 3.0  # seconds that `halt()` waits by default
WRITE_WITHIN = 5.0  # seconds within which the store must write a halt, unless the wait is longer
SILENT_AFTER = 2.5  # seconds without a heartbeat after which a worker is reported as silent
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between checks for confirmations

STOPPED = "no heartbeat for {age:.1f} s: it is stopped, cut off from the store, or dead"
BUSY = (
    "alive (last heartbeat {age:.1f} s ago), but it has not confirmed: its event loop is blocked by a handler, or the "
    "wait was too short"
)


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A worker that has not confirmed a halt."""

    worker: WorkerInfo
    why: str


@dataclass(frozen=True, slots=True)
class HaltResult:
    """What `halt()` and `pause()` return."""

    halt: Halt
    unconfirmed: tuple[Unconfirmed, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether every live worker of the halted queues has confirmed."""
        return not self.unconfirmed


def seconds_of(wait: Length | None) -> float | None:
    """Return the wait in seconds; None means no limit."""
    if wait is not None and duration(wait) < 0:
        msg = f"wait is {wait!r}, which is negative; give a length of time, 0 to return at once, or None for no limit"
        raise ConfigurationError(msg)
    return None if wait is None else duration(wait) / 1000


async def write_halt(store: Store, halt: Halt, seconds: float | None) -> Halt:
    """Write a halt; raise StoreBusy if the store does not write it in time.

    A process that is stopped in the middle of a commit keeps an SQLite file locked until it continues or is killed.
    """
    try:
        async with asyncio.timeout(None if seconds is None else max(seconds, WRITE_WITHIN)):
            return await store.halt(halt)
    except TimeoutError:
        msg = (
            "the halt is not written: another process keeps the store locked, such as a worker that was stopped in the "
            "middle of a commit. Let that process continue, or kill it; then check if the halt is set, or repeat it"
        )
        raise StoreBusy(msg) from None


async def wait_for_workers(store: Store, halt: Halt, seconds: float | None) -> list[WorkerInfo]:
    """Wait for confirmations; return the workers that have not confirmed the halt when the time is over."""
    end = None if seconds is None else time.monotonic() + seconds
    pause = FIRST_PAUSE
    while late := await store.unconfirmed(halt):
        remaining = LONGEST_PAUSE if end is None else end - time.monotonic()
        if remaining <= 0:
            break
        await asyncio.sleep(min(pause, remaining))
        pause = min(pause * 2, LONGEST_PAUSE)
    return late


def explained(worker: WorkerInfo, now: datetime) -> Unconfirmed:
    age = 0.0 if worker.seen_at is None else max(0.0, (now - worker.seen_at).total_seconds())
    return Unconfirmed(worker, (STOPPED if age >= SILENT_AFTER else BUSY).format(age=age))
