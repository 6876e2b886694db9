"""Cancelling a parent job also cancels its children, unless they were spawned with cancel_children=False.

The parent's recorded steps name its children. If the process that cancels the parent dies before it has cancelled all
children, `ParentGuard` cancels the others: when a worker claims a child, it checks whether the parent was cancelled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis
from mainspring.features.durable.journal import kind_of
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Move, Status
from mainspring.stores.protocol import Filter

if TYPE_CHECKING:
    from mainspring.app import Mainspring

CHUNK = 500
KINDS_WITH_CHILDREN = frozenset({"spawn", "gather"})


class ParentGuard:
    """Cancels a claimed job whose parent was cancelled, before it starts."""

    option = "parent"

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        del now
        bound = {job.claim.id: job for job in jobs if job.option["cancel"]}
        if not bound:
            return {}
        parents = await self._app.store.get(sorted({job.option["id"] for job in bound.values()}))
        cancelled = {parent.id for parent in parents if parent.status is Status.CANCELLED}
        return {
            job_id: refuse(job.claim, Move.CANCEL, reason=reason_of(job.option["id"]))
            for job_id, job in bound.items()
            if job.option["id"] in cancelled
        }

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Do nothing: `admit` takes nothing that would have to be given back."""


async def cancel_children(app: Mainspring, parents: Sequence[str], actor: str) -> None:
    """Cancel the children of jobs that were cancelled, and in turn the children of those."""
    for parent in parents:
        children = await children_of(app, parent)
        for start in range(0, len(children), CHUNK):
            chunk = Filter(ids=tuple(children[start : start + CHUNK]))
            await app.jobs.cancel_where(chunk, reason=reason_of(parent), actor=actor)


async def children_of(app: Mainspring, parent: str) -> list[str]:
    """Return the ids of the children that are to be cancelled with their parent."""
    steps = await app.store.steps(parent)
    states: list[dict[str, Any]] = [
        json.loads(step.output or "{}") for step in steps if kind_of(step) in KINDS_WITH_CHILDREN
    ]
    return [child for state in states for child in state["children"]]


def reason_of(parent: str) -> str:
    return f"its parent, job {parent}, was cancelled"
