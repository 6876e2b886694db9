"""Does what is left to do once the store has an outcome.

It emits events at once, and tells the slots that wait for the write. In the background, for many jobs at a time, it
tells the features, re-checks the conditions that suspended jobs wait for, and cancels the children of cancelled jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from mainspring.feature import Ending, Recheck
from mainspring.job import Claim, Move, Outcome, Status
from mainspring.runtime import Runtime
from mainspring.worker.reporter import Reporter
from mainspring.worker.run import Run, Stop

ALL_WAITING = 1_000_000  # jobs to wake per key: more than ever wait


class AfterAck:
    """Follows up on the outcomes of one worker; belongs to one event loop.

    `confirmed`, `committed` and `lost` report and take note; `settle` does the work that needs the store.
    """

    def __init__(self, runtime: Runtime, reporter: Reporter) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._features = runtime.features
        self._reporter = reporter
        self._cancelled: list[str] = []
        self._ended: list[tuple[Claim, Ending | None]] = []
        self._suspended: dict[str, set[Recheck]] = {}
        self._some = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self.released = 0  # jobs handed back because the worker stops

    # -- what has happened ----------------------------------------------------------------------

    def confirmed(self, written: Sequence[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        """Follow up on outcomes that were written. A status is None if the claim was lost and nothing was changed."""
        all_wanted = self._reporter.hears_success()
        for (run, outcome), status in zip(written, statuses, strict=True):
            if all_wanted or status is not Status.COMPLETED:
                self._reporter.ended(run, outcome, status)
                self.released += run.stop is Stop.SHUTDOWN and outcome.move is Move.RELEASE
            if outcome.follow_ups and status is not None:
                self._runtime.pipeline.announce(outcome.follow_ups, outcome.inserted)
            if run.admitted:
                self.ended(run.claim, Ending(outcome, run.error))
            if status is Status.CANCELLED and (run.claim.token > 1 or (run.durable and run.durable.spawned)):
                self.cancelled(run.claim.id)
            if run.recheck is not None and outcome.waits_for is not None and status is Status.SUSPENDED:
                self._suspend(outcome.waits_for, run.recheck)
            if run.written is not None and not run.written.done():
                run.written.set_result(None)

    def committed(self, run: Run, outcome: Outcome) -> None:
        """Follow up on a run that wrote its own outcome, by `ctx.transaction()`."""
        assert run.context is not None  # noqa: S101 - without a context there is no transaction
        if run.admitted:
            self.ended(run.claim, Ending(outcome, run.error))
        self._reporter.ended(run, outcome, Status.COMPLETED)
        self._reporter.lost_result(run, outcome)
        if (written := run.context.effects.outcome) is not None:
            self._runtime.pipeline.announce(written.follow_ups, written.inserted)

    def lost(self, run: Run) -> None:
        """Follow up on a run whose claim is lost, and for which nothing is written."""
        if run.admitted:
            self.ended(run.claim)

    # -- what is left to do ---------------------------------------------------------------------

    def ended(self, claim: Claim, ending: Ending | None = None) -> None:
        """Tell the features that a run which had passed them is over."""
        self._ended.append((claim, ending))
        self._some.set()

    def cancelled(self, job_id: str) -> None:
        """Cancel the children of this job, if it has any."""
        self._cancelled.append(job_id)
        self._some.set()

    def _suspend(self, key: str, recheck: Recheck) -> None:
        """Check once more whether what the job waits for has happened: it may have, before the job was suspended."""
        self._suspended.setdefault(key, set()).add(recheck)
        self._some.set()

    async def step(self) -> None:
        """Do one turn of a supervised loop."""
        await self._some.wait()
        await self.settle()

    async def settle(self) -> None:
        """Do everything noted so far and wait for what is already being done. What fails is kept for the next call."""
        async with self._one_at_a_time:
            await self._settle()

    async def _settle(self) -> None:
        while self._ended or self._suspended or self._cancelled:
            ended, self._ended = self._ended, []
            cancelled, self._cancelled = self._cancelled, []
            suspended, self._suspended = self._suspended, {}
            self._some.clear()
            try:
                endings = {claim.id: ending for claim, ending in ended if ending is not None}
                await self._features.ended([claim for claim, _ in ended], endings)
                ended = []
                if happened := await all_that_happened(suspended):
                    await self._store.wake(dict.fromkeys(happened, ALL_WAITING))
                suspended = {}
                await self._runtime.jobs.cancel_children(cancelled, "mainspring")
            except BaseException:
                self._ended = ended + self._ended
                self._cancelled = cancelled + self._cancelled
                for key, looks in suspended.items():
                    self._suspended.setdefault(key, set()).update(looks)
                self._some.set()
                raise


async def all_that_happened(suspended: Mapping[str, Iterable[Recheck]]) -> set[str]:
    """Return the keys whose condition is met. All conditions are checked at once, as each may need the store."""
    asked = [(key, look) for key, looks in suspended.items() for look in looks]
    answers = await asyncio.gather(*(look() for _, look in asked), return_exceptions=True)
    for error in (answer for answer in answers if isinstance(answer, BaseException)):
        raise error
    return {key for (key, _), happened in zip(asked, answers, strict=True) if happened}
