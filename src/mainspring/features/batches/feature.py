"""The job that follows a batch starts when the last job of the batch has finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.clock import Millis
from mainspring.errors import BatchNotFound
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.features.batches.api import COMING_IN_RECHECK, Batches
from mainspring.features.dependencies.feature import wait_for
from mainspring.job import Claim, Move


class BatchesFeature(Feature):
    """Holds back the job that waits for a batch until the last member has finished."""

    option = "members_of"

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        refusals = [(job.claim.id, await self._refusal(job.claim)) for job in jobs]
        return {job_id: refusal for job_id, refusal in refusals if refusal is not None}

    async def _refusal(self, claim: Claim) -> Refusal | None:
        try:
            awaited, soon = await self._batches.next_awaited(claim.id)
        except BatchNotFound:
            return refuse(claim, Move.CANCEL, reason="its batch is not known any more")
        if soon:
            reason = "jobs of its batch are still coming in"
            return refuse(claim, Move.SUSPEND, delay=COMING_IN_RECHECK, reason=reason)
        return None if awaited is None else wait_for(claim, awaited)
