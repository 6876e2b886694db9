"""Jobs of tasks that declare a breaker do not start while it is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mainspring.clock import Millis
from mainspring.feature import Candidate, Feature, Recheck, Refusal, refuse
from mainspring.features.breakers.api import BreakerAdmission, Breakers, reason_of
from mainspring.features.breakers.options import OPTION
from mainspring.features.breakers.rules import Phase
from mainspring.features.breakers.storage import waiting_key
from mainspring.job import Claim, Move


class BreakersFeature(Feature):
    """Holds back tasks that declare a breaker: their jobs do not start while it is open."""

    option = OPTION

    def __init__(self, breakers: Breakers) -> None:
        self._breakers = breakers

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        refused: dict[str, Refusal] = {}
        for name in dict.fromkeys(job.option for job in jobs):
            ours = [job.claim for job in jobs if job.option == name]
            admission = await self._breakers.admit(name, [claim.id for claim in ours])
            refused |= self._refuse(name, [claim for claim in ours if claim.id not in admission.granted], admission)
        return refused

    async def recheck(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Refuse jobs whose breaker has opened since they were admitted."""
        del now
        refused: dict[str, Refusal] = {}
        for name in dict.fromkeys(job.option for job in jobs):
            admission = await self._breakers.recheck(name)
            ours = [job.claim for job in jobs if job.option == name and not self.permits(job)]
            refused |= self._refuse(name, ours, admission)
        return refused

    def permits(self, job: Candidate) -> bool:
        return self._breakers.permits(job.option, job.claim.id)

    def _refuse(self, name: str, claims: Sequence[Claim], admission: BreakerAdmission) -> dict[str, Refusal]:
        recheck: Recheck = partial(self._is_closed, name)
        return {claim.id: self._suspend(name, claim, admission.delay(), recheck) for claim in claims}

    def _suspend(self, name: str, claim: Claim, delay: Millis, recheck: Recheck) -> Refusal:
        return refuse(
            claim, Move.SUSPEND, delay=delay, waits_for=waiting_key(name), reason=reason_of(name),
            recheck=recheck,
        )  # fmt: skip

    async def _is_closed(self, name: str) -> bool:
        return (await self._breakers.get(name)).phase is Phase.CLOSED

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        for job in jobs:
            await self._breakers.note(job.option, job.claim.id, well=self._verdict(job))

    def _verdict(self, job: Candidate) -> bool | None:
        if job.run_result is None or job.run_result.outcome.move not in {Move.DONE, Move.RETRY, Move.DEAD}:
            return None
        if job.run_result.error is None and job.run_result.outcome.move is not Move.DONE:
            return None  # for example, the result could not be stored
        return self._breakers.verdict(job.option, job.run_result.error)

    def disown(self, jobs: Sequence[Candidate]) -> None:
        for job in jobs:
            self._breakers.disown(job.option, [job.claim.id])

    async def adopt(self, jobs: Sequence[Candidate]) -> None:
        for name in dict.fromkeys(job.option for job in jobs):
            await self._breakers.adopt(name, [job.claim.id for job in jobs if job.option == name])

    async def state_changed(self) -> None:
        await self._breakers.circuits.refresh()

    async def clock_went_back(self, by: Millis) -> None:
        del by
        await self._breakers.circuits.rewind()
