"""Sorted lists, their cursors, and capped counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, Failure, InvalidCursor
from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, CappedCount, Completable, Filter, Sort, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BELL,
    StoreScenario,
    at,
    by_hand,
    claim_one,
    crashed,
    end,
    job_in,
    look,
    new_job,
    one_of_each,
    put,
    put_many,
    running,
)


async def listed(store: Store, sort: Sort, *, descending: bool = True, size: int = 3, **where: Any) -> list[str]:
    """Return the ids of all pages of a sorted list."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.find(Filter(**where), sort=sort, descending=descending, limit=size, cursor=cursor)
        ids += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            return ids


async def ran(store: Store, clock: ManualClock, seconds: float, **fields: Any) -> str:
    """Complete a new job after a run of this length."""
    job_id = await put(store, **fields)
    held = await claim_one(store)
    began = clock.now()
    clock.advance(seconds)
    held_end = {"started_at": began, "finished_at": clock.now()}
    await end(store, held, Move.DONE, **held_end)
    return job_id


async def cancelled(store: Store, **fields: Any) -> str:
    """Cancel a job that has never run."""
    job_id = await put(store, **fields)
    await by_hand(store, Action.CANCEL, job_id)
    return job_id


async def equal_jobs(store: Store, now: int) -> None:
    """Make jobs of two queues that differ little in what lists are sorted by."""
    for number in range(9):
        queue = "mail" if number % 3 else "other"
        await put(store, queue=queue, priority=number % 2, delay=60_000)
        failed = await running(store, queue=queue, max_attempts=9)
        await end(store, failed, Move.RETRY, delay=60_000 + number % 2)
        for seconds in (0, 1):
            held = await running(store, queue=queue)
            await end(store, held, Move.DONE, started_at=now - 1000 * seconds, finished_at=now)
        await cancelled(store, queue=queue, delay=60_000)


class SortingTests(StoreScenario):
    async def test_jobs_are_sorted_by_creation_in_both_directions(self, store: Store) -> None:
        ids = await put_many(store, 8)
        assert await listed(store, Sort.CREATED) == ids[::-1]
        assert await listed(store, Sort.CREATED, descending=False) == ids

    async def test_waiting_jobs_are_sorted_by_due_time(self, store: Store, clock: ManualClock) -> None:
        delays = [50, 10, 40, 20, 30]
        ids = [
            await put(store, run_at=clock.now() + 1000 * delay, queue=f"q{number % 2}", priority=number % 4)
            for number, delay in enumerate(delays)
        ]
        soonest = [job_id for _, job_id in sorted(zip(delays, ids, strict=True))]
        assert await listed(store, Sort.DUE, descending=False) == soonest
        assert await listed(store, Sort.DUE) == soonest[::-1]
        assert await listed(store, Sort.DUE, descending=False, queues=("q1",)) == [ids[1], ids[3]]

    async def test_only_waiting_and_suspended_jobs_are_due(self, store: Store) -> None:
        ids = await one_of_each(store)
        waiting = {Status.PENDING, Status.RETRYING, Status.SUSPENDED}
        assert set(await listed(store, Sort.DUE)) == {ids[status] for status in waiting}

    async def test_suspects_are_among_the_due_jobs(self, store: Store) -> None:
        later = await put(store, delay=60_000)
        suspect = await crashed(store)
        assert await listed(store, Sort.DUE, descending=False) == [suspect, later]

    async def test_finished_jobs_are_sorted_by_the_time_of_their_end(self, store: Store, clock: ManualClock) -> None:
        statuses = [Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED, Status.COMPLETED]
        ids = []
        for status in statuses:
            ids.append(await job_in(store, status))
            clock.advance(1)
        await put(store)
        assert await listed(store, Sort.FINISHED) == ids[::-1]
        assert await listed(store, Sort.FINISHED, descending=False) == ids
        assert await listed(store, Sort.FINISHED, statuses=(Status.DEAD_LETTER, Status.CANCELLED)) == ids[2:0:-1]

    async def test_jobs_that_finished_at_once_are_in_the_order_of_their_ids(self, store: Store) -> None:
        ids = [await job_in(store, Status.CANCELLED) for _ in range(5)]
        assert await listed(store, Sort.FINISHED, size=2) == sorted(ids, reverse=True)
        assert await listed(store, Sort.FINISHED, size=2, descending=False) == sorted(ids)

    async def test_finished_jobs_are_sorted_by_the_length_of_their_last_run(
        self, store: Store, clock: ManualClock
    ) -> None:
        seconds = [2, 0.5, 0.05, 7, 0.01]
        ids = [await ran(store, clock, length) for length in seconds]
        never_ran = await cancelled(store)
        quick = sorted([ids[2], ids[4], never_ran], reverse=True)  # under 0.1 s they are equal
        assert await listed(store, Sort.DURATION) == [ids[3], ids[0], ids[1], *quick]
        assert await listed(store, Sort.DURATION, descending=False) == [*quick[::-1], ids[1], ids[0], ids[3]]

    async def test_jobs_are_sorted_by_attempts(self, store: Store) -> None:
        tried: dict[str, int] = {}
        for failures in (2, 0, 1, 3):
            job_id = await put(store, max_attempts=9)
            for _ in range(failures):
                await end(store, await claim_one(store), Move.RETRY)
            held = await claim_one(store)
            await end(store, held, Move.DONE)
            tried[job_id] = failures + 1
        tried[await cancelled(store)] = 0
        tried[await job_in(store, Status.RETRYING)] = 1
        tried[await put(store, delay=60_000)] = 0
        most = sorted(tried, key=lambda job_id: (tried[job_id], job_id), reverse=True)
        assert {job_id: (await look(store, job_id)).attempts for job_id in tried} == tried
        assert await listed(store, Sort.ATTEMPTS) == most
        assert await listed(store, Sort.ATTEMPTS, descending=False) == most[::-1]

    @pytest.mark.parametrize("sort", Sort)
    async def test_filters_hold_in_every_sort(self, store: Store, sort: Sort) -> None:
        for status in (Status.COMPLETED, Status.PENDING):
            for number in range(4):
                await job_in(
                    store,
                    status,
                    queue=f"q{number % 2}",
                    tags=("vip",) if number < 2 else (),
                    target=("guest", str(number)),
                )
        jobs = (await store.find(Filter(), limit=100)).jobs
        for where in (
            {"queues": ("q1",)}, {"tags": ("vip",)}, {"target_type": "guest", "target_id": "1"}, {"tasks": ("none",)},
            {"statuses": (Status.COMPLETED,)}, {"ids": (jobs[0].id, jobs[-1].id)},
        ):  # fmt: skip
            matching = {job.id for job in (await store.find(Filter(**where), limit=100)).jobs}
            in_list = set(await listed(store, sort))
            assert set(await listed(store, sort, **where)) == matching & in_list

    async def test_pages_that_end_early_have_all_jobs(
        self, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await equal_jobs(store, clock.now())
        lists = {
            (sort, descending): (await store.find(Filter(), sort=sort, descending=descending, limit=100)).jobs
            for sort, descending in product(Sort, (True, False))
        }
        monkeypatch.setattr("mainspring.stores.sorting.LOOK", 4)
        monkeypatch.setattr("mainspring.stores.sorting.LEAST_LOOK", 2)
        for (sort, descending), jobs in lists.items():
            mail = [job.id for job in jobs if job.queue == "mail"]
            assert len(mail) >= 6
            assert await listed(store, sort, descending=descending, queues=("mail",)) == mail

    # -- cursors ------------------------------------------------------------------------------

    async def test_a_cursor_fits_only_its_filter_and_sort(self, store: Store) -> None:
        await put_many(store, 5)
        cursor = (await store.find(Filter(), limit=2)).cursor
        for other in (
            {"where": Filter(queues=("mail",))}, {"where": Filter(), "sort": Sort.ATTEMPTS},
            {"where": Filter(), "descending": False},
        ):  # fmt: skip
            with pytest.raises(ConfigurationError, match="another filter or sort"):
                await store.find(limit=2, cursor=cursor, **other)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "WzEsMl0", "e30", 7, "\ud800"])
    async def test_a_text_that_is_not_a_cursor_is_refused(self, store: Store, cursor: Any) -> None:
        with pytest.raises(InvalidCursor, match="is not a cursor"):
            await store.find(Filter(), cursor=cursor)

    async def test_the_id_of_a_job_is_a_cursor_in_the_list_by_creation(self, store: Store) -> None:
        ids = await put_many(store, 4)
        page = await store.find(Filter(), cursor=ids[2])
        assert [job.id for job in page.jobs] == ids[1::-1]

    # -- counts -------------------------------------------------------------------------------

    async def test_a_capped_count_stops_at_the_cap(self, store: Store, clock: ManualClock) -> None:
        await job_in(store, Status.COMPLETED, tags=("vip",))
        await running(store)
        await put_many(store, 5)
        for where in (Filter(tasks=("greet",)), Filter(created_after=at(clock, -60))):
            assert await store.count_up_to(where, 7) == CappedCount(7, exact=True)
            assert await store.count_up_to(where, 6) == CappedCount(6, exact=False)
        assert await store.count_up_to(Filter(tags=("vip",)), 10) == CappedCount(1, exact=True)
        assert await store.count_up_to(Filter(ids=(new_job().id,)), 10) == CappedCount(0, exact=True)
        with pytest.raises(ConfigurationError, match="cap is 0"):
            await store.count_up_to(Filter(), 0)

    # -- completion ---------------------------------------------------------------------------

    async def test_values_are_completed_from_the_jobs(self, store: Store) -> None:
        await job_in(store, Status.DEAD_LETTER, queue="mailing", task="greet", tags=("vip", "spa"))
        held = await running(store, queue="mail", task="remind", payload='{"guest": {"id": 7}, "group": 1}')
        await end(store, held, Move.DEAD, failure=Failure("ValueError", "boom", ""))
        await put(store, queue="sms", task="greet_all", tags=("vip2",))
        assert await store.complete(Completable.QUEUE, "ma") == ["mail", "mailing"]
        assert await store.complete(Completable.QUEUE, "", limit=2) == ["mail", "mailing"]
        assert await store.complete(Completable.TASK, "gr") == ["greet", "greet_all"]
        assert await store.complete(Completable.TAG, "v") == ["vip", "vip2"]
        assert await store.complete(Completable.TAG, "", limit=1) == ["spa"]
        assert await store.complete(Completable.ERROR_TYPE, "Val") == ["ValueError"]
        assert await store.complete(Completable.PAYLOAD_KEY, "g") == ["group", "guest", "guest.id"]
        assert await store.complete(Completable.PAYLOAD_KEY, "g", task="greet") == []
        assert await store.complete(Completable.QUEUE, "x") == []

    # -- changes ------------------------------------------------------------------------------

    async def test_a_job_shows_when_it_changed_last(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store, max_attempts=9)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        held = await claim_one(store)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await end(store, held, Move.RETRY, delay=60_000)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await by_hand(store, Action.EDIT, job_id, priority=0)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await by_hand(store, Action.CANCEL, job_id)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await by_hand(store, Action.RETRY, job_id)
        assert (await look(store, job_id)).updated_at == at(clock)
        clock.advance(1)
        await end(store, await claim_one(store), Move.DONE)
        assert (await look(store, job_id)).updated_at == at(clock)

    async def test_waking_and_asking_to_stop_are_changes(self, store: Store, clock: ManualClock) -> None:
        asleep = await job_in(store, Status.SUSPENDED)
        clock.advance(1)
        await store.wake({BELL: 1})
        assert (await look(store, asleep)).updated_at == at(clock)
        held = await claim_one(store)
        clock.advance(1)
        await by_hand(store, Action.CANCEL, held.id)
        assert (await look(store, held.id)).updated_at == at(clock)

    async def test_a_filter_finds_what_changed_since(self, store: Store, clock: ManualClock) -> None:
        await job_in(store, Status.COMPLETED)
        old = await put(store, delay=3_600_000)
        held = await running(store)
        clock.advance(60)
        since = at(clock)
        await end(store, held, Move.DONE)
        await by_hand(store, Action.EDIT, old, priority=0)
        new = await put(store)
        assert set(await listed(store, Sort.CREATED, changed_after=since)) == {held.id, old, new}
        assert await listed(store, Sort.FINISHED, changed_after=since) == [held.id]
        assert await store.count(Filter(changed_after=since)) == 3
        assert await store.count_up_to(Filter(changed_after=since), 2) == CappedCount(2, exact=False)

    async def test_a_filter_finds_what_has_not_changed_since(self, store: Store, clock: ManualClock) -> None:
        done, waiting = await job_in(store, Status.COMPLETED), await put(store, delay=3_600_000)
        edited, held = await put(store, delay=3_600_000), await running(store)
        clock.advance(60)
        since = at(clock)
        await by_hand(store, Action.EDIT, edited, priority=0)
        await end(store, held, Move.DONE)
        assert set(await listed(store, Sort.CREATED, changed_before=since)) == {done, waiting}
        assert await listed(store, Sort.FINISHED, changed_before=since) == [done]
        assert await store.count(Filter(changed_before=since)) == 2
        assert await store.count_up_to(Filter(changed_before=since), 2) == CappedCount(2, exact=True)
        changed = await store.change(Action.DELETE, Filter(changed_before=since), By("ana"))
        assert set(changed.ids) == {done, waiting}
