"""Bundles that bring recorded steps of their new jobs, as a replay does."""

from __future__ import annotations

import pytest

from mainspring.errors import AlreadyDone
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Save, Step
from mainspring.stores.documents import Bundle, By, Key, Note, Write
from mainspring.stores.protocol import Action, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import StoreScenario, by_hand, claim_one, end, new_job, put

DAY = 86_400


def steps(number: int) -> tuple[Step, ...]:
    return tuple(Step(f"step {place}", place, output=f'"{place}"') for place in range(1, number + 1))


def bundle_of(job: NewJob, recorded: tuple[Step, ...], once: Write | None = None) -> Bundle:
    return Bundle((), (job,), Note(By("ana"), "replay", {"job": job.id}), once=once, steps={job.id: recorded})


class FirstStepTests(StoreScenario):
    @pytest.mark.parametrize("number", [1, 250])
    async def test_a_new_job_has_the_steps_that_came_with_it(self, store: Store, number: int) -> None:
        job = new_job()
        ((inserted,),) = [answer or [] for answer in await store.write([bundle_of(job, steps(number))])]
        assert (inserted.id, inserted.created) == (job.id, True)
        assert await store.steps(job.id) == list(steps(number))
        held = await claim_one(store)
        later = Step("later", number + 1)
        assert await store.save([Save(held.id, held.token, (later,), ref=held.ref)]) == [[]]
        assert await store.steps(job.id) == [*steps(number), later]

    async def test_a_repeated_bundle_does_not_bring_its_steps_back(self, store: Store) -> None:
        """Its answer was lost, and meanwhile the job has run, and was retried from its first step."""
        job = new_job()
        bundle = bundle_of(job, steps(2))
        await store.write([bundle])
        await end(store, await claim_one(store), Move.DEAD)
        await by_hand(store, Action.RETRY, job.id, from_step="step 1")
        assert await store.steps(job.id) == []
        await store.write([bundle])
        assert await store.steps(job.id) == []

    async def test_a_refused_bundle_leaves_no_steps(self, store: Store) -> None:
        """The request's key was used before."""
        key = Key("keys", "", new_id())
        await store.write([bundle_of(new_job(), (), Write(key, "{}"))])
        job = new_job()
        with pytest.raises(AlreadyDone):
            await store.write([bundle_of(job, steps(3), Write(key, "{}"))])
        assert await store.get([job.id]) == []

    async def test_the_steps_are_removed_with_their_job(self, store: Store, clock: ManualClock) -> None:
        job = new_job(keep=1_000)
        await store.write([bundle_of(job, steps(2))])
        await end(store, await claim_one(store), Move.DONE)
        clock.advance(3 * DAY)
        await store.prune()
        assert (await store.get([job.id]), await store.steps(job.id)) == ([], [])

    async def test_the_steps_of_a_waiting_job_stay(self, store: Store, clock: ManualClock) -> None:
        job = new_job(delay=10 * DAY * 1000)
        await store.write([bundle_of(job, steps(2))])
        await put(store, queue="other")
        clock.advance(5 * DAY)
        await store.prune()
        assert await store.steps(job.id) == list(steps(2))
