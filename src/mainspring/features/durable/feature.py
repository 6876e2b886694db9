"""How durable functions take part: children end with their parent, and signals wake jobs even if their sender died.

Cancelling a parent job also cancels its children, unless they were spawned with cancel_children=False. The parent's
recorded steps name its children. If the process that cancels the parent dies before it has cancelled all children, the
others are cancelled when a worker claims them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.features.durable.journal import KINDS_WITH_CHILDREN, kind_of
from mainspring.features.durable.timer import SignalTimer
from mainspring.job import Move, Status
from mainspring.services import Services
from mainspring.stores.protocol import Store


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


async def children_of(store: Store, parent: str) -> list[str]:
    """Return the ids of the children that are to be cancelled with their parent."""
    steps = await store.steps(parent)
    states: list[dict[str, Any]] = [
        json.loads(step.output or "{}") for step in steps if kind_of(step) in KINDS_WITH_CHILDREN
    ]
    return [child for state in states for child in state["children"]]


def reason_of(parent: str) -> str:
    return f"its parent, job {parent}, was cancelled"
