"""Decides whether claimed jobs may run, and passes those that may on to the slots.

What can keep a job from running are halts and pauses (see `Gate`), features (see mainspring.feature), and a worker that
stops. A job may wait for a slot after that, so the gate checks once more when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, cast

from mainspring.feature import HANDOVER_WAIT, Refusal
from mainspring.job import Claim
from mainspring.runtime import Runtime
from mainspring.task import Task
from mainspring.worker.acker import AfterAck
from mainspring.worker.chunks import Chunker
from mainspring.worker.gate import Gate, log_failure
from mainspring.worker.run import SEALED, Run, Stop, outcome_of_unknown_task, outcome_of_unreadable
from mainspring.worker.slots import Runs, SlotPool
from mainspring.worker.unreadable_jobs import Unreadable


class Admission:
    """Asks the features about each claim and passes admitted runs to the slots. Belongs to one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate,
        runs: Runs,
        slots: SlotPool,
        *,
        after_ack: AfterAck,
        unreadable: Unreadable,
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.store.clock
        self._gate = gate
        self._runs = runs
        self._slots = slots
        self._after_ack = after_ack
        self._unreadable = unreadable
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self.chunker = Chunker(slots.put)
        self.may_stand_by = False  # whether refused runs may wait here, in case their features let them pass after all
        self.standing_by = 0  # runs that do so

    def take(self, claims: list[Claim]) -> None:
        """Hold claimed jobs, and pass each on: to its features, to its chunk, or to the slots."""
        now, settings = self._loop.time(), self._runtime.live_settings.snapshot  # before features are asked
        guarded: list[Run] = []
        for_chunks: list[Run] = []
        concerned, held, tasks = self._concerned(claims), self._runs.held, self._runtime.tasks
        for claim in claims:
            task = tasks.get(claim.task) or self._runtime.internal_task(claim.task)
            if task is None:  # it was removed while the claim was under way; the next claim will not ask for it
                run = Run(claim, cast("Task[..., Any, Any]", None), now)
                self._runs.acker.add(run, outcome_of_unknown_task(run, self._clock.now()))
                continue
            run = Run(claim, task, now)
            run.settings = settings
            if claim.payload.startswith(SEALED):
                self._runs.acker.add(run, outcome_of_unreadable(run, self._clock.now()))
                self._unreadable.met(run)
                continue
            before, held[claim.id] = held.get(claim.id), run
            if before is not None:
                self._runs.replaced(before)
            if task.chunk is not None:
                for_chunks.append(run)
            if claim.id in concerned:
                run.admitted = True
                guarded.append(run)
            else:
                self._let_in(run)
        if for_chunks or self.chunker.is_used:
            self.chunker.claimed(for_chunks, of=len(claims))
        if guarded:
            self._start(self._admit(guarded))
        self._pass_on()
        self._runs.note_idle()

    def _concerned(self, claims: list[Claim]) -> Collection[str]:
        """Return the ids of the jobs that features must admit. Most jobs have no options and concern none."""
        features = self._runtime.features
        with_options = [claim for claim in claims if claim.options is not None]
        return features.concern(claims) if with_options or features.choosing else ()

    async def settled(self) -> None:
        """Wait until all features have answered."""
        await asyncio.gather(*self._under_way)

    def cancel(self) -> None:
        for admission in self._under_way:
            admission.cancel()

    @property
    def waiting(self) -> list[Run]:
        """Return the runs that wait for a slot, or for others to fill their chunk."""
        return [*(run for run in self._runs.ready if isinstance(run, Run)), *self.chunker.waiting]

    # -- features -------------------------------------------------------------------------------

    def _start(self, admission: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(admission, name="mainspring-admission")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _admit(self, runs: list[Run]) -> None:
        """Let in the runs that their features admit. If asking fails, hand all runs back for other workers."""
        try:
            refusals = await self._runtime.features.admit([run.claim for run in runs], self._clock.now())
        except Exception as error:  # noqa: BLE001 - whatever failed, the jobs must not stay in this worker
            log_failure(runs, error)
            for run in runs:
                self._runs.end(run, Stop.CROWDED)
            return
        for run in runs:
            self._answer(run, refusals.get(run.claim.id))
        self._pass_on()

    def _answer(self, run: Run, refusal: Refusal | None) -> None:
        if run.ended:  # cancelled, lost or handed back meanwhile, perhaps before its features had let it pass
            if refusal is not None:
                refusal.cancel_wait()
            self._after_ack.ended(run.claim)
        elif refusal is None:
            self._let_in(run)
        elif refusal.pending is not None and self.may_stand_by and not self._gate.is_shut:
            self._start(self._stand_by(run, refusal, refusal.pending))
        elif refusal.cancel_wait():  # it was granted in the meantime
            self._let_in(run)
        else:
            self._turn_away(run, refusal)

    async def _stand_by(self, run: Run, refusal: Refusal, pending: asyncio.Future[bool]) -> None:
        """Wait shortly for a pending grant. The run takes no slot meanwhile, so the worker can claim others."""
        self.standing_by += 1
        try:
            await asyncio.wait([pending], timeout=HANDOVER_WAIT)
        finally:
            self.standing_by -= 1
            granted = refusal.cancel_wait()
        if run.ended:
            if granted:
                self._after_ack.ended(run.claim)
        elif granted:
            self._let_in(run)
            self._pass_on()
        else:
            self._turn_away(run, refusal)

    def _turn_away(self, run: Run, refusal: Refusal) -> None:
        run.admitted = False
        self._runs.refuse(run, refusal)

    # -- to the slots ---------------------------------------------------------------------------

    def _let_in(self, run: Run) -> None:
        """Put a run where the slots find it, unless it was halted or the worker stops."""
        if not self._gate.clear and (self._gate.is_shut or self._gate.stops(run.claim.queue)):
            self._runs.end(run, Stop.SHUTDOWN if self._gate.is_shut else Stop.HALTED)
        elif run.task.chunk is None:
            self._runs.ready.append(run)
        else:
            self.chunker.add(run)

    def _pass_on(self) -> None:
        if self.chunker.is_used:
            self.chunker.settle()
        self._slots.feed()
