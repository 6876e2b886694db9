"""The slots of a worker (`SlotPool`) and its runs, from their claim until their outcome is on the way (`Runs`).

A slot is one asyncio task, which runs jobs one after the other: a task per job would cost more than a quick job itself.
Each job still has a context of its own, as a task would give it, so that no context variable leaks from one job into
the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from mainspring.clock import since_boot
from mainspring.events import JobStarted, WorkerHeartbeat
from mainspring.feature import Refusal
from mainspring.job import Outcome
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Pulse
from mainspring.worker.acker import Acker, AfterAck
from mainspring.worker.chunks import PendingChunk
from mainspring.worker.observation import Runner
from mainspring.worker.run import Run, Stop, fields_of, outcome_of_error, run_in_new_context
from mainspring.worker.stuck import StuckSlots

SLOTS_PER_WAIT = 2  # slots that are set to work whenever a job has to wait, so that many are soon busy
CANCEL_TIMEOUT = 1.0  # seconds that cancelled slots have to end
MAX_TURN = 0.0005  # seconds for which one slot runs jobs that never wait, before the event loop gets its turn


class StartCheck(Protocol):
    """What may keep a run from starting: the worker's `Gate`."""

    open_until: float  # on the clock `since_boot`; until then, runs that concern no feature may start unchecked

    async def end_unstartable(self, runs: Sequence[Run]) -> None:
        """End those of the runs that may not start any more."""


class SlotPool:
    """Runs what is in `Runs.ready`, in its order, in at most `limit` slots. A slot is started when it is needed."""

    def __init__(self, limit: int, runs: Runs, check: StartCheck, executor: Runner) -> None:
        self._limit = limit
        self._runs = runs
        self._ready = runs.ready
        self._check = check
        self._executor = executor
        self._slots: list[asyncio.Task[None]] = []
        self._resting: list[asyncio.Future[None]] = []
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def put(self, chunk: PendingChunk) -> None:
        self._ready.append(chunk)
        self.feed()

    def feed(self) -> None:
        """Set slots to work, if something is ready.

        A slot sets others to work when its job has to wait. So one slot runs jobs that never wait in a row, without a
        turn of the event loop for each of them.
        """
        for _ in range(min(len(self._ready), SLOTS_PER_WAIT)):
            self._set_one_to_work()

    async def close(self) -> None:
        """Cancel what still runs. A handler that ignores its cancellation is left behind."""
        self._closing = True
        for slot in self._slots:
            slot.cancel()
        if self._slots:
            await asyncio.wait(self._slots, timeout=CANCEL_TIMEOUT)
        self._slots.clear()

    # -- slots ----------------------------------------------------------------------------------

    def _set_one_to_work(self) -> None:
        while self._resting:
            resting = self._resting.pop()
            if not resting.done():
                resting.set_result(None)
                return
        if len(self._slots) < self._limit:
            number = len(self._slots) + 1
            self._slots.append(self._loop.create_task(self._serve(), name=f"mainspring-slot-{number}"))

    async def _serve(self) -> None:
        slot = asyncio.current_task()
        assert slot is not None  # noqa: S101 - a coroutine that runs is in a task
        while not self._closing:
            try:
                await self._run_some(slot)
                if self._ready:
                    await asyncio.sleep(0)
                elif not self._closing:
                    await self._rest()
            except asyncio.CancelledError:  # from something that a job left behind: the slot must not end by it
                if self._closing:
                    raise
                uncancel(slot)

    async def _run_some(self, slot: asyncio.Task[None]) -> None:
        ready, run, time = self._ready, self.run, self._loop.time
        until = time() + MAX_TURN
        while ready and not self._closing:
            await run_in_new_context(run(ready.popleft(), slot), self.feed)
            if time() > until:
                return

    async def _rest(self) -> None:
        fed: asyncio.Future[None] = self._loop.create_future()
        self._resting.append(fed)
        await fed

    # -- what a slot does with a run ------------------------------------------------------------

    async def run(self, run: Run | PendingChunk, slot: asyncio.Task[None]) -> None:
        """Run one job in one slot, until its outcome is on the way to the store."""
        if isinstance(run, PendingChunk):
            await self._run_chunk(run.take(), slot)
            return
        if since_boot() > self._check.open_until or (run.admitted and run.needs_recheck):
            await self._check.end_unstartable([run])
            if run.ended:
                return
        self._runs.begin(run, slot)
        outcome = await self._executor.run(run)
        self._runs.finish(run, outcome)
        if run.written is not None or slot.cancelling():  # a handler may have swallowed its cancellation
            await leave([run], slot)

    async def _run_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> None:
        """Run several jobs in one slot by one call of their handler, until their outcomes are on the way."""
        await self._check.end_unstartable(runs)
        runs = [run for run in runs if not run.ended]
        if not runs:  # all of them were taken away while they waited for this slot
            self._runs.room.set()
            return
        self._runs.together += len(runs) - 1
        for run in runs:
            self._runs.begin(run, slot)
        outcomes = await self._executor.run_chunk(runs, slot)
        self._runs.together -= len(runs) - 1
        for run, outcome in outcomes:
            self._runs.finish(run, outcome)
        await leave(runs, slot)


async def leave(runs: Sequence[Run], slot: asyncio.Task[None]) -> None:
    """Wait for the writes that must be done before the slot takes the next run, and end its cancellation."""
    if slot.cancelling():
        await shed_cancellation(slot)
    for run in runs:
        if run.written is not None:
            await run.written


async def shed_cancellation(slot: asyncio.Task[None]) -> None:
    """Clear a cancellation that was requested but not raised yet: before Python 3.13 it would end the next job."""
    uncancel(slot)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def uncancel(slot: asyncio.Task[None]) -> None:
    """Clear the cancellation of a slot: it was meant for the slot's job."""
    while slot.cancelling():
        slot.uncancel()


class Runs:
    """Knows every run of one worker and can end it, wherever it is; belongs to one event loop.

    Several parts share it: admission adds runs to `held` and `ready`, slots take them out of `ready`, and intake counts
    them and waits for `room` or `idle`.
    """

    def __init__(self, runtime: Runtime, worker: str, acker: Acker, after_ack: AfterAck, stuck: StuckSlots) -> None:
        self._worker = worker
        self._bus = runtime.bus
        self._clock = runtime.store.clock
        self.acker = acker
        self._after_ack = after_ack
        self.stuck = stuck
        self.held: dict[str, Run] = {}  # by job id: claimed, and the outcome is not decided yet
        self.ready: deque[Run | PendingChunk] = deque()  # they may start as soon as a slot is free
        self.running: set[Run] = set()  # in slots; each job of a chunk counts
        self.detached: set[Run] = set()  # in slots but not held: stuck, or their jobs were claimed here again
        self.system_halted = False  # as the gate saw it last
        self.together = 0  # jobs in running chunks that need no slot of their own: all but one per chunk
        self.claiming = asyncio.Lock()  # locked while a claim is under way, whose jobs are not held yet
        self.idle = asyncio.Event()  # set while no run is held
        self.idle.set()
        self.room = acker.room  # set when the worker may have room for more jobs
        self.room_below = 0  # set `room` when no more than this many are ready
        self.freed: asyncio.Event | None = None  # set when a run is over, if intake waits for that

    # -- the way of a run -----------------------------------------------------------------------

    def replaced(self, run: Run) -> None:
        """End a run whose job another worker took from us, now that we have claimed it again."""
        self.end(run, Stop.LOST)
        if run in self.running:
            self.detached.add(run)

    def begin(self, run: Run, slot: asyncio.Task[None]) -> None:
        """Note that a slot is about to call the run's handler."""
        self.running.add(run)
        run.slot = slot
        run.started_at = self._clock.now()
        if self._bus.meter is not None:
            self._bus.meter.started(run.claim, run.started_at - run.claim.run_at)
        if self._bus.wants(JobStarted):
            lateness = max(0, run.started_at - run.claim.run_at) / 1000
            self._bus.emit(JobStarted(**fields_of(run, self._worker), lateness=lateness))
        if len(self.ready) <= self.room_below:
            self.room.set()

    def finish(self, run: Run, outcome: Outcome | None) -> None:
        """Take a run out of its slot and pass on its outcome. None means that its claim is lost."""
        self.running.discard(run)
        if run.stop is not None:
            self.detached.discard(run)
            self.stuck.ended(run)
        if run.ended:  # it was abandoned, and handed back already
            return
        self._let_go(run)
        if outcome is None:
            self._after_ack.lost(run)
        elif run.context is not None and run.context.effects.committed:
            self._after_ack.committed(run, outcome)
        else:
            sync = run.task.ack == "sync"
            if sync:
                run.written = asyncio.get_running_loop().create_future()
            self.acker.add(run, outcome, urgent=sync or not self.held)

    def refuse(self, run: Run, refusal: Refusal) -> None:
        """End a run that its features do not let start."""
        run.recheck = refusal.recheck
        self._let_go(run)
        self.acker.add(run, refusal.outcome)

    def end(self, run: Run, stop: Stop, reason: str = "") -> None:
        """Stop a run, wherever it is. One that has not started never will."""
        run.end(stop, reason)
        if run.slot is None and not run.ended:
            waits_in = self.ready if run.waits_in is None else run.waits_in
            with contextlib.suppress(ValueError):  # it waits for a feature, or a slot has just taken it out
                waits_in.remove(run)
            self._let_go(run)
            outcome = outcome_of_error(run, asyncio.CancelledError(), self._clock.now())
            if outcome is not None:
                self.acker.add(run, outcome)
            else:
                self._after_ack.lost(run)

    def abandon(self, run: Run) -> None:
        """Leave behind a handler that does not stop. The process is about to end, and its threads with it."""
        self.stuck.forget(run)
        outcome = outcome_of_error(run, asyncio.CancelledError(), self._clock.now())
        self._let_go(run)
        if outcome is not None:
            self.acker.add(run, outcome)

    def _let_go(self, run: Run) -> None:
        run.ended = True
        if self.held.get(run.claim.id) is run:  # else the worker holds a newer claim of the same job
            del self.held[run.claim.id]
        if not self.held:
            self.idle.set()
        if not self.ready:
            self.room.set()
        if self.freed is not None:
            self.freed.set()

    # -- all of them ----------------------------------------------------------------------------

    def queues(self) -> Counter[str]:
        """Return how many jobs of each queue run now. Any thread may call this."""
        return Counter(run.claim.queue for run in list(self.running))

    def not_started(self) -> list[Run]:
        """Return the runs whose handlers are not called yet, wherever they wait."""
        return [run for run in self.held.values() if run.slot is None or run.waits_for_child]

    def note_idle(self) -> None:
        (self.idle.clear if self.held else self.idle.set)()

    async def wait_idle(self, seconds: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until no run is held, at most `seconds` or until `unless` is set; return whether none is held."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.idle, unless) if event is not None]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()
        return self.idle.is_set()

    async def claim_finished(self) -> None:
        """Wait for the answer of a claim that is under way."""
        async with self.claiming:
            await asyncio.sleep(0)

    async def handed_back(self) -> None:
        """Return when the store has taken back all that was ended, including jobs of a claim that was under way."""
        await self.claim_finished()
        await self.acker.flush()

    def look_for_stuck(self) -> None:
        """Let go of jobs whose slots are stuck, so that the worker can stop or run a suspect without them.

        Until they end, they still count as slots in use and against the limit of their queue.
        """
        for run in self.stuck.look(self.running, time.monotonic()):
            self.detached.add(run)
            if self.held.get(run.claim.id) is run:
                del self.held[run.claim.id]
        if not self.held:
            self.idle.set()

    # -- heartbeat ------------------------------------------------------------------------------

    def tokens(self) -> dict[str, int]:
        """Return the claims to ask about: those we hold, and those of stuck runs that no other worker has taken yet.

        Called from the thread of the heartbeat.
        """
        stuck = {run.claim.id: run.claim.token for run in list(self.stuck.runs) if run.stop is not Stop.LOST}
        return stuck | {job_id: run.claim.token for job_id, run in list(self.held.items())}

    def heard(self, pulse: Pulse, asked: Mapping[str, int]) -> None:
        """End the runs that the store says are lost or cancelled. `asked` has the tokens that it was asked about."""
        for job_id in pulse.lost:
            if (run := self._claimed(job_id, asked[job_id])) is not None:
                self.end(run, Stop.LOST)
        for job_id, reason in pulse.cancelled.items():
            if (run := self._claimed(job_id, asked[job_id])) is not None:
                self.end(run, Stop.CANCEL, reason)
        if self._bus.wants(WorkerHeartbeat):
            stuck, halted = self.stuck.slots, self.system_halted
            event = WorkerHeartbeat(worker=self._worker, running=len(self.running), halted=halted, stuck=stuck)
            self._bus.emit(event)

    def _claimed(self, job_id: str, token: int) -> Run | None:
        run = self.held.get(job_id)
        return run if run is not None and run.claim.token == token else self.stuck.find(job_id, token)
