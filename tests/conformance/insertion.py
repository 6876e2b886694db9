"""How jobs come in, and when one counts as the same as another."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.clock import duration, to_datetime
from mainspring.errors import ConfigurationError
from mainspring.job import FINISHED, FOREVER, LIVE, Inserted, Move, Priority, Status
from mainspring.stores.protocol import Action, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    at,
    by_hand,
    claim,
    claim_one,
    end,
    found,
    job_in,
    look,
    new_job,
    put,
    put_many,
)

HOUR = 3_600_000


class InsertionTests(StoreScenario):
    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.url

    async def test_a_job_reads_back_as_it_went_in(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(
            store,
            task="welcome",
            payload='{"guest": {"id": 7, "name": "Zoë ✓"}}',
            queue="mail",
            priority=Priority.HIGH,
            max_attempts=5,
            timeout=1500,
            dedupe_key="welcome:7",
            target=("guest", "7"),
            tags=("vip", "spa"),
            options='{"deliver": {"tz": "UTC"}}',
        )
        job = await look(store, job_id)
        assert job.id == job_id
        assert job.payload == {"guest": {"id": 7, "name": "Zoë ✓"}}
        assert (job.task, job.queue, job.priority, job.status) == ("welcome", "mail", Priority.HIGH, Status.PENDING)
        assert (job.attempts, job.max_attempts, job.crashes, job.token) == (0, 5, 0, 0)
        assert (job.dedupe_key, job.target, set(job.tags)) == ("welcome:7", ("guest", "7"), {"vip", "spa"})
        assert (job.timeout, job.options) == (duration(1.5) / 1000, {"deliver": {"tz": "UTC"}})
        assert (job.created_at, job.run_at) == (at(clock), at(clock))

    async def test_a_new_job_has_no_past(self, store: Store) -> None:
        job = await look(store, await put(store))
        assert (job.started_at, job.finished_at, job.expires_at, job.worker) == (None, None, None, None)
        assert (job.progress, job.result, job.failure, job.reason) == (None, None, None, "")
        assert (job.timeout, job.dedupe_key, job.target, job.tags, job.options) == (None, None, None, (), {})
        assert not job.cancel_requested

    async def test_a_delay_counts_from_the_stores_now(self, store: Store, clock: ManualClock) -> None:
        job = await look(store, await put(store, delay=90_000))
        assert job.run_at == at(clock, 90)

    async def test_a_time_to_run_at_is_kept(self, store: Store, clock: ManualClock) -> None:
        job = await look(store, await put(store, run_at=clock.now() + HOUR))
        assert job.run_at == to_datetime(clock.now() + HOUR)

    async def test_new_jobs_are_answered_in_their_order(self, store: Store) -> None:
        jobs = [new_job() for _ in range(5)]
        assert await store.insert(jobs) == [Inserted(job.id, created=True) for job in jobs]

    async def test_an_empty_list_of_jobs_is_fine(self, store: Store) -> None:
        assert await store.insert([]) == []

    async def test_inserting_an_id_again_changes_nothing_and_is_answered_as_created(self, store: Store) -> None:
        job = new_job(dedupe_key="k")
        first = await store.insert([job])
        before = await look(store, job.id)
        assert await store.insert([job]) == first == [Inserted(job.id, created=True)]
        assert await look(store, job.id) == before
        assert await store.count(Filter()) == 1

    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.PENDING}))
    async def test_inserting_an_id_again_does_not_bring_a_job_back(self, store: Store, status: Status) -> None:
        job = new_job()
        await job_in(store, status, id=job.id)
        assert await store.insert([job]) == [Inserted(job.id, created=True)]
        assert (await look(store, job.id)).status is status
        waits = [job.id] if status is Status.RETRYING else []  # for its retry, which is due
        assert [held.id for held in await claim(store, queue="*")] == waits

    async def test_an_id_twice_in_one_call_is_one_job(self, store: Store) -> None:
        job = new_job()
        assert await store.insert([job, job]) == [Inserted(job.id, created=True)] * 2
        assert await store.count(Filter()) == 1

    async def test_a_connection_to_something_else_is_refused(self, store: Store) -> None:
        with pytest.raises(ConfigurationError):
            await store.insert([new_job()], connection=object())
        assert await store.count(Filter()) == 0

    # -- dedupe keys --------------------------------------------------------------------------

    @pytest.mark.parametrize("status", sorted(LIVE))
    async def test_a_live_job_holds_its_dedupe_key(self, store: Store, status: Status) -> None:
        holder = await job_in(store, status, dedupe_key="k")
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(holder, created=False)]
        assert await found(store) == [holder]

    @pytest.mark.parametrize("status", sorted(FINISHED))
    async def test_a_finished_job_frees_its_dedupe_key(self, store: Store, status: Status) -> None:
        await job_in(store, status, dedupe_key="k")
        again = new_job(dedupe_key="k")
        assert await store.insert([again]) == [Inserted(again.id, created=True)]

    async def test_a_deleted_job_frees_its_dedupe_key(self, store: Store) -> None:
        await by_hand(store, Action.DELETE, await put(store, dedupe_key="k"))
        await put(store, dedupe_key="k")

    async def test_the_end_of_a_finished_job_does_not_free_the_key_that_another_holds(
        self, store: Store, clock: ManualClock
    ) -> None:
        deleted = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        await job_in(store, Status.COMPLETED, dedupe_key="k", keep=1000)
        holder = await put(store, dedupe_key="k")
        await by_hand(store, Action.DELETE, deleted)
        clock.advance(60)
        assert await store.prune() == 1
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(holder, created=False)]

    async def test_a_job_retried_by_hand_holds_its_dedupe_key_again(self, store: Store) -> None:
        holder = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        await by_hand(store, Action.RETRY, holder)
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(holder, created=False)]

    async def test_a_dedupe_key_belongs_to_its_task(self, store: Store) -> None:
        await put(store, task="greet", dedupe_key="k")
        await put(store, task="remind", dedupe_key="k")

    async def test_a_dedupe_key_holds_across_queues(self, store: Store) -> None:
        holder = await put(store, queue="mail", dedupe_key="k")
        assert await store.insert([new_job(queue="sms", dedupe_key="k")]) == [Inserted(holder, created=False)]

    async def test_a_dedupe_key_holds_within_one_call(self, store: Store) -> None:
        first, second = new_job(dedupe_key="k"), new_job(dedupe_key="k")
        answers = await store.insert([first, second])
        assert answers == [Inserted(first.id, created=True), Inserted(first.id, created=False)]
        assert await found(store) == [first.id]

    async def test_each_job_of_a_call_is_answered_by_its_own_dedupe_key(self, store: Store) -> None:
        kept_for = await job_in(store, Status.COMPLETED, dedupe_key="kept", dedupe_for=FOREVER)
        live = await put(store, dedupe_key="live")
        again = new_job(dedupe_key="again")
        await store.insert([again])
        fresh = [new_job(dedupe_key=f"fresh {number}", dedupe_for=HOUR) for number in range(70)]
        plain, twice = new_job(), new_job(dedupe_key="fresh 7")
        answers = await store.insert([
            new_job(dedupe_key="live"), *fresh, again, plain, twice, new_job(dedupe_key="kept"),
        ])  # fmt: skip
        assert answers == [
            Inserted(live, created=False),
            *(Inserted(job.id, created=True) for job in (*fresh, again, plain)),
            Inserted(fresh[7].id, created=False),
            Inserted(kept_for, created=False),
        ]
        ids = {live, again.id, plain.id, *(job.id for job in fresh)}
        assert {held.id for held in await claim(store, limit=100)} == ids

    async def test_every_key_of_a_call_is_kept_for_its_time(self, store: Store, clock: ManualClock) -> None:
        jobs = [new_job(dedupe_key=str(number), dedupe_for=HOUR if number % 2 else None) for number in range(6)]
        await store.insert(jobs)
        for held in await claim(store, limit=10):
            await end(store, held, Move.DONE)
        clock.advance(3599)
        answers = await store.insert([new_job(dedupe_key=str(number)) for number in range(6)])
        assert [answer.created for answer in answers] == [True, False] * 3
        assert [answer.id for answer in answers[1::2]] == [job.id for job in jobs[1::2]]

    async def test_an_insert_that_is_repeated_does_not_keep_its_key_any_longer(
        self, store: Store, clock: ManualClock
    ) -> None:
        job = new_job(dedupe_key="k", dedupe_for=HOUR)
        await store.insert([job])
        await end(store, await claim_one(store), Move.DONE)
        clock.advance(3601)
        assert await store.insert([job, new_job(dedupe_key="other")]) != []
        assert (await look(store, job.id)).status is Status.COMPLETED
        await put(store, dedupe_key="k")

    async def test_a_duplicate_does_not_affect_the_other_jobs(self, store: Store) -> None:
        await put(store, dedupe_key="k")
        fresh = new_job()
        _, inserted = await store.insert([new_job(dedupe_key="k"), fresh])
        assert inserted == Inserted(fresh.id, created=True)

    async def test_jobs_without_a_dedupe_key_never_collide(self, store: Store) -> None:
        assert len(set(await put_many(store, 3))) == 3

    async def test_a_dedupe_key_kept_forever_outlives_its_job(self, store: Store, clock: ManualClock) -> None:
        held_by = await put(store, dedupe_key="k", dedupe_for=FOREVER, keep=1000)
        await end(store, await claim_one(store), Move.DONE)
        clock.advance(10 * 365 * 86_400)
        while await store.prune():
            pass
        assert await store.get([held_by]) == []
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(held_by, created=False)]

    @pytest.mark.parametrize("status", [Status.PENDING, Status.COMPLETED, Status.DEAD_LETTER])
    @pytest.mark.parametrize("length", [FOREVER, HOUR])
    async def test_a_job_deleted_by_hand_frees_a_dedupe_key_that_outlives_jobs(
        self, store: Store, status: Status, length: int
    ) -> None:
        await by_hand(store, Action.DELETE, await job_in(store, status, dedupe_key="k", dedupe_for=length))
        fresh = new_job(dedupe_key="k")
        assert await store.insert([fresh]) == [Inserted(fresh.id, created=True)]

    async def test_deleting_a_job_by_hand_leaves_a_key_that_is_kept_for_another(self, store: Store) -> None:
        dead = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        kept_for = await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
        await by_hand(store, Action.RETRY, dead)
        await by_hand(store, Action.DELETE, dead)
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(kept_for, created=False)]
        await by_hand(store, Action.DELETE, kept_for)
        await put(store, dedupe_key="k")

    async def test_deleting_the_job_that_a_key_is_kept_for_leaves_it_to_the_live_one(self, store: Store) -> None:
        dead = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        kept_for = await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
        await by_hand(store, Action.RETRY, dead)
        await by_hand(store, Action.DELETE, kept_for)
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(dead, created=False)]
        await end(store, await claim_one(store), Move.DONE)
        await put(store, dedupe_key="k")

    async def test_a_dedupe_key_kept_for_a_time_outlives_its_job_that_long(
        self, store: Store, clock: ManualClock
    ) -> None:
        held_by = await put(store, dedupe_key="k", dedupe_for=HOUR)
        await end(store, await claim_one(store), Move.DONE)
        clock.advance(3599)
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(held_by, created=False)]
        clock.advance(2)
        await put(store, dedupe_key="k")

    async def test_a_live_job_holds_its_dedupe_key_beyond_the_time_it_was_kept_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        holder = await put(store, dedupe_key="k", dedupe_for=1000)
        clock.advance(3600)
        assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(holder, created=False)]

    async def test_the_time_a_dedupe_key_is_kept_for_starts_anew_with_the_next_job(
        self, store: Store, clock: ManualClock
    ) -> None:
        for _ in range(2):
            holder = await put(store, dedupe_key="k", dedupe_for=HOUR)
            await end(store, await claim_one(store), Move.DONE)
            clock.advance(3000)
            assert await store.insert([new_job(dedupe_key="k")]) == [Inserted(holder, created=False)]
            clock.advance(601)

    async def test_a_race_for_a_dedupe_key_has_one_winner(self, store: Store) -> None:
        answers = await asyncio.gather(*(store.insert([new_job(dedupe_key="k")]) for _ in range(20)))
        assert sum(inserted.created for (inserted,) in answers) == 1
        assert len({inserted.id for (inserted,) in answers}) == 1
        assert len(await claim(store)) == 1
