"""The state machine of `mainspring.job.TRANSITIONS`: every legal move is made, every other is refused."""

from __future__ import annotations

import pytest

from mainspring.errors import IllegalMove
from mainspring.job import TRANSITIONS, Claim, Move, Outcome, Status
from mainspring.stores.protocol import Action, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    A_NAP,
    BELL,
    StoreScenario,
    by_hand,
    claim,
    end,
    job_in,
    look,
    outcome,
    put,
    running,
)

BY_HAND = {Move.CANCEL: Action.CANCEL, Move.EDIT: Action.EDIT, Move.MANUAL_RETRY: Action.RETRY}
BY_WORKER = frozenset(TRANSITIONS[Status.RUNNING])

LEGAL = [
    pytest.param(status, move, then, id=f"{status}-{move}")
    for status, moves in TRANSITIONS.items()
    for move, then in moves.items()
]
ILLEGAL = [
    pytest.param(status, move, id=f"{status}-{move}")
    for status in Status
    for move in Move
    if move not in TRANSITIONS[status]
]


async def attempt(store: Store, clock: ManualClock, job_id: str, move: Move) -> None:
    """Try the move in every way that the protocol has for it."""
    job = await look(store, job_id)
    if move is Move.WAKE:
        await store.wake({BELL: 10})
    if move is Move.CLAIM:
        clock.advance(A_NAP / 1000)
        await claim(store, queue="*")
        await claim(store, queue="*", solo=True)
    if move in BY_WORKER and (job.status is Status.RUNNING or move not in TRANSITIONS[job.status]):
        await store.ack([Outcome(job_id, job.token, move)])
    if move in BY_HAND and job.status is not Status.RUNNING:
        await by_hand(store, BY_HAND[move], job_id, **({"priority": 0} if move is Move.EDIT else {}))


class TransitionTests(StoreScenario):
    @pytest.mark.parametrize(("status", "move", "then"), LEGAL)
    async def test_a_legal_move_is_made(
        self, store: Store, clock: ManualClock, status: Status, move: Move, then: Status
    ) -> None:
        job_id = await job_in(store, status)
        await attempt(store, clock, job_id, move)
        assert (await look(store, job_id)).status is then

    @pytest.mark.parametrize(("status", "move"), ILLEGAL)
    async def test_an_illegal_move_changes_nothing(
        self, store: Store, clock: ManualClock, status: Status, move: Move
    ) -> None:
        job_id = await job_in(store, status)
        before = await look(store, job_id)
        await attempt(store, clock, job_id, move)
        assert await look(store, job_id) == before

    @pytest.mark.parametrize("action", [Action.EDIT, Action.RETRY])
    async def test_a_running_job_is_not_edited_or_retried(self, store: Store, action: Action) -> None:
        job_id = await job_in(store, Status.RUNNING)
        before = await look(store, job_id)
        changed = await by_hand(store, action, job_id, **({"priority": 0} if action is Action.EDIT else {}))
        assert (changed.ids, changed.requested) == ((), ())
        assert await look(store, job_id) == before

    @pytest.mark.parametrize("move", sorted(set(Move) - BY_WORKER))
    async def test_an_outcome_with_a_move_that_cannot_end_a_run_is_an_error(self, store: Store, move: Move) -> None:
        good: Claim = await running(store)
        bad: Claim = await running(store)
        with pytest.raises(IllegalMove):
            await store.ack([outcome(good, Move.DONE), outcome(bad, move)])
        assert [(await look(store, held.id)).status for held in (good, bad)] == [Status.RUNNING] * 2
        assert await end(store, good, Move.DONE) is Status.COMPLETED

    @pytest.mark.parametrize("status", list(Status))
    async def test_only_waiting_jobs_are_claimed(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status)
        other = await put(store)
        clock.advance(A_NAP / 1000)
        expected = {job_id, other} if Move.CLAIM in TRANSITIONS[status] else {other}
        assert {held.id for held in await claim(store)} == expected
