"""The list of the jobs that an operation has changed: written with each change, and kept when the jobs are gone."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.errors import InvalidCursor
from mainspring.job import Status
from mainspring.stores import affected
from mainspring.stores.documents import By, Listing
from mainspring.stores.protocol import Action, Edit, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import BY, StoreScenario, job_in, put, put_many

DAY = 86_400_000
CHANGES = [
    (Status.PENDING, Action.CANCEL, None),
    (Status.RUNNING, Action.CANCEL, None),
    (Status.DEAD_LETTER, Action.RETRY, None),
    (Status.RETRYING, Action.RETRY, None),
    (Status.PENDING, Action.EDIT, Edit(priority=3)),
    (Status.PENDING, Action.DELETE, None),
    (Status.COMPLETED, Action.DELETE, None),
]


def listing() -> By:
    return By("ben", list_for=DAY)


async def ids_of(store: Store, by: By, size: int = 100) -> list[str]:
    """Return the whole list, read in pages."""
    ids, cursor = await affected.read(store, by.operation, size, None)
    while cursor is not None:
        more, cursor = await affected.read(store, by.operation, size, cursor)
        assert 0 < len(more) <= size
        ids += more
    return ids


async def change_all(store: Store, action: Action, by: By, size: int) -> None:
    cursor = None
    while True:
        cursor = (await store.change(action, Filter(), by, limit=size, cursor=cursor)).cursor
        if cursor is None:
            return


class AffectedTests(StoreScenario):
    @pytest.mark.parametrize(("status", "action", "edit"), CHANGES)
    async def test_a_changed_job_is_listed_and_stays_listed_when_it_is_deleted(
        self, store: Store, status: Status, action: Action, edit: Edit | None
    ) -> None:
        job_id, by = await job_in(store, status), listing()
        await store.change(action, Filter(ids=(job_id,)), by, edit=edit)
        assert await ids_of(store, by) == [job_id]
        await store.change(Action.DELETE, Filter(ids=(job_id,)), BY)
        assert await ids_of(store, by) == [job_id]

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
    @pytest.mark.parametrize("size", [1, 3, 10])
    async def test_the_list_is_read_page_by_page(self, store: Store, action: Action, size: int) -> None:
        ids, by = await put_many(store, 10), listing()
        await change_all(store, action, by, 4)
        assert await ids_of(store, by, size) == sorted(ids)
        assert [await affected.count(store, by.operation, most) for most in (7, 100)] == [7, len(ids)]

    async def test_a_page_that_is_repeated_lists_no_job_twice(self, store: Store) -> None:
        """A process died after the page, and before it had noted so."""
        ids, by = await put_many(store, 6), listing()
        await store.change(Action.CANCEL, Filter(), by, limit=4)
        await store.change(Action.CANCEL, Filter(), by, limit=4)
        assert await ids_of(store, by) == sorted(ids)

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
    async def test_processes_that_make_the_same_change_at_once_list_each_job_once(
        self, store: Store, action: Action
    ) -> None:
        ids, by = await put_many(store, 12), listing()
        await asyncio.gather(*(change_all(store, action, by, 5) for _ in range(4)))
        assert sorted(await ids_of(store, by)) == sorted(ids)

    async def test_only_changed_jobs_are_listed(self, store: Store) -> None:
        dead = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        other, by = await job_in(store, Status.DEAD_LETTER), listing()
        await put(store, dedupe_key="k")
        assert (await store.change(Action.RETRY, Filter(), by, dry_run=True)).ids == (other,)
        assert await ids_of(store, by) == []
        assert (await store.change(Action.RETRY, Filter(), by)).conflicts.keys() == {dead}
        assert await ids_of(store, by) == [other]

    async def test_there_is_no_list_unless_it_is_asked_for(self, store: Store) -> None:
        await put(store)
        await store.change(Action.DELETE, Filter(), BY)
        assert await store.browse(Listing(affected.COLLECTION)) == []

    async def test_the_list_expires(self, store: Store, clock: ManualClock) -> None:
        job_id, by = await put(store), listing()
        await store.change(Action.DELETE, Filter(), by)
        clock.advance(DAY / 1000 - 1)
        assert await ids_of(store, by) == [job_id]
        clock.advance(1)
        assert await ids_of(store, by) == []

    @pytest.mark.parametrize("cursor", ["", "nothing", "a/b/c"])
    async def test_a_wrong_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidCursor):
            await affected.read(store, "operation", 10, cursor)
