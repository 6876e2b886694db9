"""Drops a job that was not started by a certain time. Once it has started, it goes on to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mainspring.clock import Millis, to_datetime
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.features.expiry.options import OPTION, REASON, of_claim
from mainspring.features.resumption import goes_on, was_tried
from mainspring.job import Move
from mainspring.services import Services


class ExpiryFeature(Feature):
    """Cancels jobs that were not started in time."""

    option = OPTION

    def __init__(self, services: Services) -> None:
        self._services = services

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        ends = [(job.claim, of_claim(job.claim, job.option)) for job in jobs]
        late = [(claim, end) for claim, end in ends if now > end and not was_tried(claim)]
        kept = await asyncio.gather(*(goes_on(self._services.store, claim) for claim, _ in late))
        return {
            claim.id: refuse(claim, Move.CANCEL, reason=f"{REASON} {shown(end)}")
            for (claim, end), keep in zip(late, kept, strict=True)
            if not keep
        }

    async def recheck(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Refuse jobs that have expired while they waited in the worker, say in a chunk."""
        return await self.admit(jobs, now)


def shown(moment: Millis) -> str:
    return f"{to_datetime(moment):%Y-%m-%d %H:%M:%S} UTC"
