"""Parents and children: who cancels a parent cancels its children, unless they were spawned to outlast it.

The children are found in the parent's steps. Should the canceller die before it has come to them, a child that is
claimed later looks whether its parent was cancelled, and is cancelled too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis
from mainspring.durable.journal import kind_of
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Move, Status
from mainspring.stores.protocol import Filter

if TYPE_CHECKING:
    from mainspring.app import Mainspring

CHUNK = 500
WITH_CHILDREN = frozenset({"spawn", "gather"})


class ParentGuard:
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
        """Nothing was given out."""


async def cancel_children(app: Mainspring, parents: Sequence[str], actor: str) -> None:
    """Of jobs that were cancelled; their own children go with them."""
    for parent in parents:
        children = await children_of(app, parent)
        for start in range(0, len(children), CHUNK):
            some = Filter(ids=tuple(children[start : start + CHUNK]))
            await app.jobs.cancel_where(some, reason=reason_of(parent), actor=actor)


async def children_of(app: Mainspring, parent: str) -> list[str]:
    """Those that end with it."""
    steps = await app.store.steps(parent)
    states: list[dict[str, Any]] = [json.loads(one.output or "{}") for one in steps if kind_of(one) in WITH_CHILDREN]
    return [child for state in states for child in state["children"]]


def reason_of(parent: str) -> str:
    return f"its parent, job {parent}, was cancelled"
