"""Finds jobs that must not be dropped although they are outdated: they have begun, or an operator asked for them."""

from __future__ import annotations

from mainspring.job import Claim, Move
from mainspring.stores.documents import Key
from mainspring.stores.protocol import Action, Store

RECOVERED = "recovered"  # the collection with a document for each job that its task's recovery has retried


def was_tried(claim: Claim) -> bool:
    return claim.attempts > 0 or claim.crashes > 0


async def goes_on(store: Store, claim: Claim) -> bool:
    """Return whether it is a durable function with finished steps, or a job that was retried or edited on purpose."""
    return await has_steps(store, claim) or await was_recovered(store, claim) or await touched_by_hand(store, claim)


async def has_steps(store: Store, claim: Claim) -> bool:
    return not is_first(claim) and bool(await store.steps(claim.id))


async def was_recovered(store: Store, claim: Claim) -> bool:
    """Return whether its task's recovery has retried the job."""
    return not is_first(claim) and bool(await store.documents([Key(RECOVERED, claim.task, claim.id)]))


async def touched_by_hand(store: Store, claim: Claim) -> bool:
    """Return whether an operator retried or edited the job."""
    return any(entry.what in {Action.EDIT, Move.MANUAL_RETRY} for entry in await store.timeline(claim.id))


def is_first(claim: Claim) -> bool:
    """Return whether the job was never claimed before."""
    return claim.token == 1
