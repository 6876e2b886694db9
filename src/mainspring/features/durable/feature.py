"""A child does not start if its parent was cancelled; signals whose sender has died wake the waiting jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.clock import Millis
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.features.durable.cancel_children import reason_of
from mainspring.features.durable.signals import SignalTimer
from mainspring.job import Move, Status
from mainspring.services import Services


class DurableFeature(Feature):
    """Cancels a claimed job whose parent was cancelled, before it starts."""

    option = "parent"

    def __init__(self, services: Services) -> None:
        self._services = services
        self.timers = (SignalTimer(services),)

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        bound = {job.claim.id: job for job in jobs if job.option["cancel"]}
        if not bound:
            return {}
        parents = await self._services.store.get(sorted({job.option["id"] for job in bound.values()}))
        cancelled = {parent.id for parent in parents if parent.status is Status.CANCELLED}
        return {
            job_id: refuse(job.claim, Move.CANCEL, reason=reason_of(job.option["id"]))
            for job_id, job in bound.items()
            if job.option["id"] in cancelled
        }
