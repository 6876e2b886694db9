"""Stuck slots: their jobs were told to stop and go on all the same.

A run is told to stop when its timeout is over, when its job is cancelled, or when its claim is lost. Its slot is stuck
when it still runs `grace` seconds later. The grace is the store's `stall_grace`, after which a timed-out job is taken
over. A stuck slot holds a thread that hangs, or a coroutine that swallows its cancellation. The slot of a chunk is
stuck when this is true of all its jobs. Runs that are told to stop because the worker stops do not count.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Collection, Iterable
from itertools import takewhile
from types import FrameType
from typing import Any

from mainspring.log import get_log
from mainspring.worker.run import Run, Stop, in_this_thread, run_in_new_context

log = get_log("mainspring.worker")

MAX_FRAMES = 30  # the innermost ones, in a log line


class StuckSlots:
    """The stuck runs of one worker. Used on its event loop; `slots` may be read from any thread."""

    def __init__(self, worker: str, grace: float) -> None:
        self._worker = worker
        self._grace = grace  # seconds
        self.runs: set[Run] = set()
        self.slots = 0

    def look(self, running: Collection[Run], now: float) -> list[Run]:
        """Find the runs that are stuck now and were not before; log where each of them hangs.

        A run that the stopping worker has left behind is not found once more.
        """
        found = [run for run in overdue(running, self._grace, now) if run not in self.runs and not run.ended]
        if found:
            self.runs.update(found)
            self._count()
        for run in one_per_slot(found):
            log.warning(
                "slot_stuck",
                worker=self._worker,
                task=run.claim.task,
                job_id=run.claim.id,
                attempt=run.claim.attempt,
                told=run.stop,
                seconds_ago=round(now - (run.told_at or now), 3),
                stack="\n".join(stack_of(run)),  # a text: structlog's console renderer takes no list under this name
            )
        return found

    def ended(self, run: Run) -> None:
        """Note that a stuck run has ended after all."""
        if run in self.runs:
            self.runs.discard(run)
            self._count()
            log.info("slot_free_again", worker=self._worker, task=run.claim.task, job_id=run.claim.id)

    def forget(self, run: Run) -> None:
        """Remove a run that the stopping worker leaves behind."""
        self.runs.discard(run)
        self._count()

    def find(self, job_id: str, token: int) -> Run | None:
        return next((run for run in self.runs if (run.claim.id, run.claim.token) == (job_id, token)), None)

    def _count(self) -> None:
        self.slots = len({run.slot for run in self.runs})


def overdue(running: Collection[Run], grace: float, now: float) -> list[Run]:
    """Return the runs of all slots in which every run was told to stop at least `grace` seconds ago."""
    late = {run for run in running if run.told_at is not None and now - run.told_at >= grace}
    late -= {run for run in late if run.stop is Stop.SHUTDOWN}
    if not late:  # nearly always
        return []
    in_use = {run.slot for run in running if run not in late}
    return [run for run in late if run.slot not in in_use]


def one_per_slot(runs: Iterable[Run]) -> Iterable[Run]:
    return {run.slot: run for run in runs}.values()


# -- where it hangs -------------------------------------------------------------------------------


def stack_of(run: Run) -> list[str]:
    """Return where the handler is now, as `file:line in function: source`; the innermost call is last."""
    frames = frames_in_thread(run.handler_thread) if run.handler_thread else frames_in_coroutine(run)
    shown = [frame for frame in frames if not frame.f_globals.get("__name__", "").startswith("mainspring.worker.")]
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in shown[-MAX_FRAMES:])
    return [f"{entry.filename}:{entry.lineno} in {entry.name}: {entry.line}" for entry in summary]


def frames_in_thread(thread: int) -> list[FrameType]:
    innermost = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way to see another thread's stack
    frames = [frame for frame, _ in traceback.walk_stack(innermost)] if innermost is not None else []
    return list(takewhile(lambda frame: frame.f_code is not in_this_thread.__code__, frames))[::-1]


def frames_in_coroutine(run: Run) -> list[FrameType]:
    return frames_of(run.slot) if run.slot is not None else []


def frames_of(slot: asyncio.Task[None]) -> list[FrameType]:
    """Return the frames of a suspended slot, down to what its handler awaits.

    `Task.get_stack` would stop at `run_in_new_context`.
    """
    frames: list[FrameType] = []
    awaitable: Any = slot.get_coro()
    while (frame := getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)) is not None:
        frames.append(frame)
        if frame.f_code is run_in_new_context.__code__:
            awaitable = frame.f_locals["work"]
        else:
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return frames
