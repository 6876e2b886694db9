"""Revisions: a change by hand that expects a revision overwrites nothing that its caller has not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Changed, Edit, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import StoreScenario, by_hand, claim, claim_one, end, job_in, look, put, running

ROUNDS = 5
MOVES = {
    Action.CANCEL: Status.PENDING,
    Action.RETRY: Status.DEAD_LETTER,
    Action.DELETE: Status.COMPLETED,
    Action.EDIT: Status.RETRYING,
}
"""Each action, and a status in which a job allows it."""


async def change(store: Store, action: Action, job_id: str, expect: str, **edit: Any) -> Changed:
    given = Edit(**edit) if edit else None
    return await store.change(action, Filter(ids=(job_id,)), By("ana"), edit=given, expect=expect)


async def revision(store: Store, job_id: str) -> str:
    return (await look(store, job_id)).revision


class RevisionTests(StoreScenario):
    @pytest.mark.parametrize(("action", "status"), MOVES.items())
    async def test_a_job_of_the_expected_revision_is_changed(
        self, store: Store, action: Action, status: Status
    ) -> None:
        job_id = await job_in(store, status)
        edit = {"payload": '{"n": 1}'} if action is Action.EDIT else {}
        changed = await change(store, action, job_id, await revision(store, job_id), **edit)
        assert (changed.ids, changed.stale) == ((job_id,), ())

    @pytest.mark.parametrize(("action", "status"), MOVES.items())
    async def test_a_job_of_another_revision_stays_as_it_is(self, store: Store, action: Action, status: Status) -> None:
        job_id = await job_in(store, status)
        before, edit = await look(store, job_id), {"payload": '{"n": 1}'} if action is Action.EDIT else {}
        changed = await change(store, action, job_id, "0-pending-0", **edit)
        assert (changed.ids, changed.requested, changed.stale) == ((), (), (job_id,))
        assert (await look(store, job_id), await store.audit()) == (before, [])

    async def test_every_change_gives_a_job_another_revision(self, store: Store) -> None:
        """Even if all of them are made in the same millisecond, and lead to the status that the job had before."""
        job_id = await put(store)
        seen = [await revision(store, job_id)]
        for number in range(3):
            await by_hand(store, Action.EDIT, job_id, payload=f'{{"n": {number}}}')
            seen.append(await revision(store, job_id))
        for _ in range(2):
            for action in (Action.CANCEL, Action.RETRY):
                await by_hand(store, action, job_id)
                seen.append(await revision(store, job_id))
            await by_hand(store, Action.EDIT, job_id, delay=0)
            seen.append(await revision(store, job_id))
        for move in (Move.SNOOZE, Move.RETRY, Move.SUSPEND, Move.DONE):
            held = await claim_one(store)
            seen.append(await revision(store, job_id))
            await end(store, held, move)
            seen.append(await revision(store, job_id))
        assert len(set(seen)) == len(seen)

    async def test_a_running_job_is_asked_to_stop_only_at_the_expected_revision(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store)
        read = await revision(store, held.id)
        clock.advance(1)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        assert (await change(store, Action.CANCEL, held.id, read)).stale == (held.id,)
        assert not (await look(store, held.id)).cancel_requested
        asked = await change(store, Action.CANCEL, held.id, await revision(store, held.id))
        assert (asked.requested, (await look(store, held.id)).cancel_requested) == ((held.id,), True)

    @pytest.mark.parametrize("action", [Action.EDIT, Action.CANCEL, Action.DELETE])
    async def test_of_two_changes_at_once_one_wins(self, store: Store, action: Action) -> None:
        """Both have read the same job. The later one changes nothing, and leaves no entry in the audit log."""
        for number in range(ROUNDS):
            job_id = await put(store)
            read = await revision(store, job_id)
            edits: list[dict[str, Any]] = [{}, {}]
            if action is Action.EDIT:
                edits = [{"payload": f'{{"who": {who}}}'} for who in (1, 2)]
            both = await asyncio.gather(*(change(store, action, job_id, read, **edit) for edit in edits))
            assert sorted(len(changed.ids) for changed in both) == [0, 1]
            if action is Action.EDIT:
                winner = next(who for who, changed in enumerate(both, 1) if changed.ids)
                assert (await look(store, job_id)).payload == {"who": winner}
            assert len(await store.audit()) == number + 1

    async def test_an_edit_and_a_claim_at_once_do_not_mix(self, store: Store) -> None:
        for _ in range(ROUNDS):
            job_id = await put(store)
            read = await revision(store, job_id)
            edited, claimed = await asyncio.gather(
                change(store, Action.EDIT, job_id, read, payload='{"new": 1}'), claim(store)
            )
            held = claimed[0] if claimed else await claim_one(store)  # a claim may skip a job that is being changed
            assert held.payload == ('{"new": 1}' if edited.ids else "{}")
            await end(store, held, Move.DONE)

    async def test_in_a_dry_run_the_revision_counts_too(self, store: Store) -> None:
        job_id = await put(store)
        where = Filter(ids=(job_id,))
        wrong = await store.change(Action.CANCEL, where, By("ana"), dry_run=True, expect="0-pending-0")
        right = await store.change(Action.CANCEL, where, By("ana"), dry_run=True, expect=await revision(store, job_id))
        assert (wrong.ids, wrong.stale, right.ids, right.stale) == ((), (job_id,), (job_id,), ())
