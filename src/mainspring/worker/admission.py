"""Takes claimed runs through their guards before they start: see mainspring.guards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mainspring.app import Mainspring
from mainspring.guards import HANDOVER_WAIT, Refusal
from mainspring.log import get_log
from mainspring.worker.after_ack import AfterAck
from mainspring.worker.run import Run

log = get_log("mainspring.worker")


class Admissions:
    """Admits the runs of one worker; belongs to one event loop."""

    def __init__(
        self,
        app: Mainspring,
        after_ack: AfterAck,
        *,
        let_in: Callable[[list[Run]], None],
        turn_away: Callable[[Run, Refusal], None],
        hand_back: Callable[[Run], None],
        may_wait: Callable[[], bool],
    ) -> None:
        self._app = app
        self._after_ack = after_ack
        self._let_in = let_in
        self._refuse = turn_away
        self._hand_back = hand_back
        self._may_wait = may_wait
        self._under_way: set[asyncio.Task[None]] = set()
        self.standing_by = 0  # runs whose guards may let them pass in a moment

    def admit(self, runs: list[Run]) -> None:
        self._start(self._admit(runs))

    async def settled(self) -> None:
        await asyncio.gather(*self._under_way)

    def cancel(self) -> None:
        for admission in self._under_way:
            admission.cancel()

    def _start(self, admission: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(admission, name="mainspring-admission")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _admit(self, runs: list[Run]) -> None:
        """Start the runs that pass their guards. If asking the guards fails, hand all runs back for other workers."""
        try:
            refusals = await self._app.guards.admit([run.claim for run in runs], self._app.store.clock.now())
        except Exception as error:  # noqa: BLE001 - whatever failed, the jobs must not stay in this worker
            log.warning("admission_failed", jobs=len(runs), error=f"{type(error).__name__}: {error}")
            for run in runs:
                self._hand_back(run)
            return
        passed: list[Run] = []
        for run in runs:
            refusal = refusals.get(run.claim.id)
            if run.ended:  # cancelled, lost or handed back meanwhile, perhaps before its guards had let it pass
                if refusal is not None:
                    refusal.cancel_wait()
                self._after_ack.ended(run.claim)
            elif refusal is None:
                passed.append(run)
            elif refusal.pending is not None and self._may_wait():
                self._start(self._stand_by(run, refusal, refusal.pending))
            else:
                self._turn_away(run, refusal)
        self._let_in(passed)

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
            self._let_in([run])
        else:
            self._refuse(run, refusal)

    def _turn_away(self, run: Run, refusal: Refusal) -> None:
        """Refuse the run, unless it was granted in the meantime. It cannot wait here for a later grant."""
        if refusal.cancel_wait():
            self._let_in([run])
        else:
            self._refuse(run, refusal)
