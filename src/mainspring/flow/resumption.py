"""Jobs that are not given up for what has come since: they have begun, or somebody wants them all the same."""

from __future__ import annotations

from collections import Counter

from mainspring.job import Claim, Move
from mainspring.stores.protocol import Action, Store


def was_tried(claim: Claim) -> bool:
    return claim.attempts > 0 or claim.crashes > 0


async def goes_on(store: Store, claim: Claim) -> bool:
    """A durable function with steps behind it; or a job that was retried or moved by hand."""
    if claim.token == 1:  # nobody had it before
        return False
    return bool(await store.steps(claim.id)) or await touched_by_hand(store, claim.id)


async def touched_by_hand(store: Store, job_id: str) -> bool:
    """A run that failed is called the same as a retry by hand, and is in the history as well."""
    told = Counter(entry.what for entry in await store.timeline(job_id))
    failed = sum(run.move is Move.RETRY for run in await store.attempts(job_id))
    return told[Action.EDIT] > 0 or told[Action.REPLAY] > failed
