"""Cancelling a parent job also cancels its children, unless they were spawned with cancel_children=False.

The parent's recorded steps name its children. If the process that cancels the parent dies before it has cancelled all
children, `DurableFeature` cancels the others: when a worker claims a child, it checks whether the parent was cancelled.
"""

from __future__ import annotations

import json
from typing import Any

from mainspring.features.durable.journal import kind_of
from mainspring.stores.protocol import Store

KINDS_WITH_CHILDREN = frozenset({"spawn", "gather"})


async def children_of(store: Store, parent: str) -> list[str]:
    """Return the ids of the children that are to be cancelled with their parent."""
    steps = await store.steps(parent)
    states: list[dict[str, Any]] = [
        json.loads(step.output or "{}") for step in steps if kind_of(step) in KINDS_WITH_CHILDREN
    ]
    return [child for state in states for child in state["children"]]


def reason_of(parent: str) -> str:
    return f"its parent, job {parent}, was cancelled"
