"""What workers do for all: take over from the dead, delete what is old, notice a clock that was set."""

from __future__ import annotations

import asyncio

from mainspring.app import Mainspring
from mainspring.clock import Millis
from mainspring.job import Status
from mainspring.stores.protocol import Measured, StalledRun
from mainspring.worker import decide
from mainspring.worker.aftermath import Aftermath
from mainspring.worker.announce import Announcer
from mainspring.worker.clock_watch import ClockWatch

CLOCK_JUMP = 250  # milliseconds by which the wall clock may go wrong between two looks at it
PRUNE_EVERY = 10.0  # seconds
PRUNE_CHUNK = 1000  # jobs
PRUNE_FOR = 1.0  # seconds at a time: meanwhile nobody here looks for the dead


class Upkeep:
    """Of one event loop."""

    def __init__(self, app: Mainspring, announce: Announcer, aftermath: Aftermath, stopping: asyncio.Event) -> None:
        self._app = app
        self._store = app.store
        self._announce = announce
        self._aftermath = aftermath
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._pruned_at = self._loop.time()
        self._clock_offset = self._offset()
        self._must_recover = False
        self._watch = ClockWatch(app)

    async def look_after_others(self) -> None:
        await self._watch.look()
        if isinstance(self._store, Measured):
            self._app.contact.measured(self._store.measures())
        await self._take_over()
        await self._prune()

    async def _take_over(self) -> None:
        """Take over from dead workers, then finish what they left half done: if that fails, at the next look."""
        reaped = await self._store.reap(self._after_stall)
        for takeover in reaped.takeovers:
            self._announce.taken_over(takeover)
            if takeover.status is Status.CANCELLED:
                self._aftermath.cancelled(takeover.job_id)
        self._must_recover = self._must_recover or bool(reaped.dead)
        if self._must_recover:
            await self._app.timers.recover()
            self._must_recover = False

    def _after_stall(self, run: StalledRun) -> Millis | None:
        return decide.after_stall(self._app.task_named(run.task), run)

    async def rest(self, seconds: float) -> None:
        """Between two looks at the others. Who overslept does not judge at once: perhaps all of them were suspended."""
        began = self._loop.time()
        await asyncio.sleep(seconds)
        if self._loop.time() - began > seconds + self._store.lease / 2:
            await asyncio.sleep(seconds)  # then the others too had the time to give a sign of life

    def clock_jumped(self) -> bool:
        """The clock was set, or the machine slept: what is due now may be other than we thought."""
        before, self._clock_offset = self._clock_offset, self._offset()
        return abs(self._clock_offset - before) > CLOCK_JUMP

    def _offset(self) -> float:
        return self._store.clock.now() - self._loop.time() * 1000

    async def _prune(self) -> None:
        """In chunks, so that others may write in between."""
        began = self._loop.time()
        if began - self._pruned_at < PRUNE_EVERY or not self._watch.may_delete():
            return
        while await self._store.prune(PRUNE_CHUNK) >= PRUNE_CHUNK:
            if self._stopping.is_set() or self._loop.time() - began > PRUNE_FOR:
                return  # there is more: the next look goes on
        self._pruned_at = self._loop.time()
