"""Jobs that are not given up for what has come since: they have begun, or somebody wants them all the same."""

from __future__ import annotations

from collections import Counter

from mainspring.job import Claim, Move
from mainspring.stores.protocol import Action, Store


def was_tried(claim: Claim) -> bool:
    return claim.attempts > 0 or claim.crashes > 0


async def goes_on(store: Store, claim: Claim) -> bool:
    """A durable function with steps behind it; or a job that was retried or moved by hand."""
    return (await has_steps(store, claim)) or await touched_by_hand(store, claim)


async def has_steps(store: Store, claim: Claim) -> bool:
    return not is_first(claim) and bool(await store.steps(claim.id))


async def touched_by_hand(store: Store, claim: Claim) -> bool:
    """A run that failed is called the same as a retry by hand, and is in the history as well."""
    told = Counter(entry.what for entry in await store.timeline(claim.id))
    history = [] if is_first(claim) else await store.attempts(claim.id)
    return told[Action.EDIT] > 0 or told[Action.REPLAY] > sum(run.move is Move.RETRY for run in history)


def is_first(claim: Claim) -> bool:
    """Nobody had it before."""
    return claim.token == 1
