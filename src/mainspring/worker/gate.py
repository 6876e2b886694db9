"""Decides whether jobs may start now: the gate knows what is halted, and how recently it has looked.

The store hands out no jobs of what is halted. But jobs wait in the worker between their claim and their start: for a
slot, in a chunk that is collected, for a feature. So each start asks the gate. Usually that only compares the time
with `open_until`. Jobs that concern features are checked by these once more, too.

The gate looks at the halts when it is woken, and once a second. It trusts a look for `TRUSTED_FOR` seconds. A process
that was stopped (SIGSTOP) and goes on, a laptop that slept, or a worker that lost its store, looks again before its
next start. If the pause was longer than the lease, the gate first waits for the answer to a heartbeat, which names the
jobs that other workers have taken over.

When a task is paused at run time, or a limit or rate is lowered, the gate hands back the jobs that it concerns and that
have not started. The next claim admits them by the new settings. A limit or rate that is raised needs no hand-back, and
handing a job back costs it the tokens of its rates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from mainspring.clock import duration, since_boot, to_datetime
from mainspring.errors import StoreError
from mainspring.events import Halted, Resumed
from mainspring.halt_check import ACTOR, TRUSTED_FOR, OutsideHalt
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Halt
from mainspring.worker.membership import Heartbeat
from mainspring.worker.outage import Outage
from mainspring.worker.run import Run, Stop
from mainspring.worker.slots import Runs

log = get_log("mainspring.worker")

LOOK_EVERY = 1.0  # seconds between two looks, if nothing wakes the gate
MAX_LOOKS = 3  # before a start, if each of them takes longer than it can be trusted
SETTLE_WITHIN = 1.0  # seconds; then the gate confirms the halt, even if jobs are still being handed back
NEVER = float("-inf")


class Gate:
    """The gate of one worker; belongs to one event loop."""

    def __init__(self, runtime: Runtime, worker: str, runs: Runs, heartbeat: Heartbeat, outage: Outage) -> None:
        self._features = runtime.features
        self._settings = runtime.live_settings
        self._limits = runtime.declared_limits
        self._obeyed = self._settings.snapshot
        self._store = runtime.store
        self._worker = worker
        self._runs = runs
        self._heartbeat = heartbeat
        self._outage = outage
        self.is_shut = False  # the worker is stopping
        self._looking = asyncio.Lock()
        self._looked_at = NEVER  # at the halts of the store
        self._asked_outside_at = NEVER  # when the other system was asked whose answer is used
        self._poked = asyncio.Event()
        self._number = 0  # of the newest known halt
        self._confirmed = 0
        self._asked = False  # whether to confirm even what was confirmed before
        self.open_until = NEVER  # on the clock `since_boot`; until then any job may start without asking further
        self.paused: frozenset[str] = frozenset()  # queues
        self.halted = False  # the whole system
        self.knows_halts = False  # whether anything is halted, as far as is known
        self.outside = runtime.services.outside_halt
        self.halted_outside = False  # another system has halted the jobs; the store does not know
        self.resumed: Callable[[], None] = lambda: None  # called when that halt is over
        self._bus = runtime.bus
        self.clear = True  # nothing is known to be halted, and the worker is not stopping

    # -- at the start of a run ------------------------------------------------------------------

    def permits(self, run: Run) -> bool:
        """Return whether a run that has begun may still call its handler. Any thread may ask."""
        return self._is_open(run.claim.queue) and (not run.admitted or self._features.permits(run.claim))

    async def still_permits(self, runs: Sequence[Run]) -> bool:
        """Return whether all of these runs may still call their handler. If the last look is too old, look again."""
        with contextlib.suppress(StoreError):
            await self.refresh()
        return all(map(self.permits, runs))

    async def end_unstartable(self, runs: Sequence[Run]) -> None:
        """End those of the runs that may not start any more. They may have waited for a slot for long."""
        if any(run.needs_recheck for run in runs):
            await self._end_refused(runs)
        if not all(map(self.permits, runs)) or self.is_shut:
            await self._end_halted(runs)

    async def _end_refused(self, runs: Sequence[Run]) -> None:
        """End runs that passed their features but may not start any more: a breaker opened, or they expired."""
        waiting = {run.claim.id: run for run in runs if run.admitted and not run.ended}
        claims = [run.claim for run in waiting.values()]
        try:
            refused = await self._features.recheck(claims, self._store.clock.now())
        except Exception as error:  # noqa: BLE001 - whatever failed, the slot must go on
            log_failure(list(waiting.values()), error)
            for run in waiting.values():
                self._runs.end(run, Stop.CROWDED)
            return
        for job_id, refusal in refused.items():
            if not waiting[job_id].ended:  # it stays admitted, so that its features are told that it has ended
                self._runs.refuse(waiting[job_id], refusal)

    async def _end_halted(self, runs: Sequence[Run]) -> None:
        """End runs that are halted. If the last look at the halts is too old, look again first.

        A breaker may open during that look, so ask about more than halts after it.
        """
        unsure = False
        if not self.is_shut:
            try:
                await self.refresh()
                unsure = not self._is_sure
            except StoreError as error:
                self._outage.failed("gate", error)
                unsure = True
        for run in runs:
            if self.is_shut:  # they were claimed before the worker was told to stop
                self._runs.end(run, Stop.SHUTDOWN)
            elif unsure or not self.permits(run):
                self._runs.end(run, Stop.CROWDED if unsure else Stop.HALTED)

    @property
    def _trusted_until(self) -> float:
        """Return until when the last look at the halts is trusted, on the clock `since_boot`.

        The store and the other system have separate times. Otherwise a store that answers more slowly than a short
        `HaltCheck` allows would keep every job from starting.
        """
        until = self._looked_at + TRUSTED_FOR
        return until if self.outside is None else min(until, self._asked_outside_at + self.outside.check.trusted_for)

    @property
    def _is_sure(self) -> bool:
        return since_boot() <= self._trusted_until

    def _is_open(self, queue: str) -> bool:
        return self._is_sure and not self.stops(queue)

    def stops(self, queue: str) -> bool:
        """Return whether the queue is known to be halted."""
        return self.halted or queue in self.paused

    # -- halts ----------------------------------------------------------------------------------

    def shut(self) -> None:
        """Check each start from now on, because the worker is stopping."""
        self.is_shut, self.clear, self.open_until = True, False, NEVER

    def poke(self) -> None:
        """Look at the halts and confirm them, because one was set or ended."""
        self._asked = True
        self._poked.set()

    async def step(self) -> None:
        """Look, confirm what is new, and wait for the next look."""
        self._poked.clear()
        await self.look()
        if self._number and (self._asked or self._number > self._confirmed):
            await self._confirm(self._number)
        with contextlib.suppress(TimeoutError):
            every = LOOK_EVERY if self.outside is None else duration(self.outside.check.every) / 1000
            async with asyncio.timeout(every):
                await self._poked.wait()

    async def refresh(self) -> None:
        """Look, unless the last look can still be trusted. If all looks take too long, give up: no job starts then."""
        for _ in range(MAX_LOOKS):
            if self._is_sure:
                return
            await self.look(unless_trusted=True)

    async def look(self, *, unless_trusted: bool = False) -> None:
        async with self._looking:
            if unless_trusted and self._is_sure:  # another caller has just looked
                return
            await self._heartbeat.confirm(self._store.lease)
            if not self._is_sure:  # this process was stopped, or has lost its store
                if self._settings.is_stale():
                    await self._settings.read()
                self.obey_settings()
            began = since_boot()
            halts = await self._store.halts()
            if self.outside is not None:
                halts = [*halts, *await self._look_outside(self.outside)]
            self._learn(halts, began)

    async def _look_outside(self, outside: OutsideHalt) -> list[Halt]:
        """Ask the other system; emit an event if it has begun or ended its halt."""
        halt = await outside.halt(to_datetime(self._store.clock.now()))
        self._asked_outside_at = outside.asked_at
        changed = self.halted_outside != (halt is not None)
        self.halted_outside = halt is not None
        if changed and halt is not None:
            self._bus.emit(Halted(actor=halt.actor, reason=halt.reason))
        elif changed:
            self._bus.emit(Resumed(actor=ACTOR))
            self.resumed()
        return [] if halt is None else [halt]

    def _learn(self, halts: list[Halt], looked_at: float) -> None:
        self._looked_at = looked_at
        self._number = max((halt.number for halt in halts), default=0)
        self.paused = frozenset(halt.queue for halt in halts if halt.queue is not None)
        system = next((halt for halt in halts if halt.queue is None), None)
        self._log_change(system)
        self.halted, self.knows_halts = system is not None, bool(halts)
        self._runs.system_halted = self.halted
        self.clear = not halts and not self.is_shut
        self.open_until = self._trusted_until if self.clear else NEVER
        if halts:
            self._hand_back()

    def obey_settings(self) -> None:
        """Hand back jobs that have not started, if their task is paused or a limit or rate of theirs was lowered."""
        after = self._settings.snapshot
        if after is self._obeyed:
            return
        self._obeyed = after
        old = [run for run in self._runs.not_started() if run.settings is not after]
        numbers = after.numbers()
        lowered = {before: self._limits.lowered(before.numbers(), numbers) for before in {run.settings for run in old}}
        for run in old:
            task, queue = run.claim.task, run.claim.queue
            if task in after.paused or not lowered[run.settings].isdisjoint(self._limits.names(task, queue)):
                self._runs.end(run, Stop.CHANGED)

    def _log_change(self, system: Halt | None) -> None:
        """Log that the system was halted, or resumed (None), if that is new."""
        if system is not None and not self.halted:
            log.info("worker_halted", worker=self._worker, actor=system.actor, reason=system.reason)
        elif system is None and self.halted:
            log.info("worker_resumed", worker=self._worker)

    def _hand_back(self) -> None:
        """Hand back halted jobs that have not started, wherever they wait: for a slot, in a chunk, or for a feature."""
        for run in self._runs.not_started():
            if self.stops(run.claim.queue):
                self._runs.end(run, Stop.HALTED)

    async def _confirm(self, number: int) -> None:
        """Confirm that the worker obeys the halt. Nothing starts any more, so do not wait long for the hand-back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_WITHIN):
                await self._runs.handed_back()
        await self._store.confirm(self._worker, number)
        self._asked, self._confirmed = False, number


def log_failure(runs: Sequence[Run], error: Exception) -> None:
    log.warning("admission_failed", jobs=len(runs), error=f"{type(error).__name__}: {error}")
