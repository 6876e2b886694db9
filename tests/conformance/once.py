"""Changes that bring the document of a key: one commit with it, and refused if another request has used the key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from mainspring.errors import AlreadyDone
from mainspring.ids import new_version
from mainspring.job import Status
from mainspring.stores.documents import ABSENT, Bundle, By, Key, Note, Write, current_once, using_key
from mainspring.stores.protocol import Action, Edit, Filter, Halt, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import StoreScenario, at, job_in, new_job, put, put_many, status_of

USED = Key("keys", "caller", "k1")
REQUESTS = 8  # at the same time
CHANGES = [
    (Status.PENDING, Action.CANCEL, None),
    (Status.RUNNING, Action.CANCEL, None),
    (Status.SUSPENDED, Action.CANCEL, None),
    (Status.DEAD_LETTER, Action.RETRY, None),
    (Status.RETRYING, Action.RETRY, None),
    (Status.PENDING, Action.EDIT, Edit(priority=3)),
    (Status.COMPLETED, Action.DELETE, None),
]


def once(clock: ManualClock, lasts: int = 60_000, **about: Any) -> Write:
    """What a request writes for its key; each call is another request."""
    return Write(USED, f'"{about}"', expected=ABSENT, expires_at=clock.now() + lasts, version=new_version())


def by(write: Write) -> By:
    return By("ben", "ticket 42", once=write)


def bundle(write: Write, name: str = "a", **more: Any) -> Bundle:
    return Bundle((Write(Key("things", "", name), "1", expected=ABSENT),), once=write, **more)


async def user_of_key(store: Store) -> str | None:
    """The version of the key's document, which is that of the request."""
    found = await store.documents([USED])
    return found[0].version if found else None


async def refused(work: Awaitable[Any]) -> None:
    with pytest.raises(AlreadyDone):
        await work


class OnceTests(StoreScenario):
    # -- changes by hand ------------------------------------------------------------------------------

    @pytest.mark.parametrize(("status", "action", "edit"), CHANGES)
    async def test_a_key_is_used_once_for_a_change(
        self, store: Store, clock: ManualClock, status: Status, action: Action, edit: Edit | None
    ) -> None:
        first, second = [await job_in(store, status, queue=queue) for queue in ("a", "b")]
        mine = once(clock)
        changed = await store.change(action, Filter(ids=(first,)), by(mine), edit=edit)
        assert [*changed.ids, *changed.requested] == [first]
        assert await user_of_key(store) == mine.version
        await refused(store.change(action, Filter(ids=(second,)), by(once(clock)), edit=edit))
        assert await status_of(store, second) is status
        assert await user_of_key(store) == mine.version
        (entry,) = [entry for entry in await store.audit() if entry.actor == "ben"]
        assert (entry.action, entry.count) == (action, 1)

    async def test_one_request_may_make_several_changes(self, store: Store, clock: ManualClock) -> None:
        jobs, mine = await put_many(store, 4), once(clock)
        for job_id in jobs[:2]:
            assert (await store.change(Action.CANCEL, Filter(ids=(job_id,)), by(mine))).ids == (job_id,)
        await store.change(Action.CANCEL, Filter(), by(mine))
        assert [await status_of(store, job_id) for job_id in jobs] == [Status.CANCELLED] * 4
        assert await user_of_key(store) == mine.version

    async def test_a_change_of_many_jobs_is_refused_as_a_whole(self, store: Store, clock: ManualClock) -> None:
        jobs, mine = await put_many(store, 5), once(clock)
        await store.change(Action.CANCEL, Filter(), by(mine), limit=3)
        left = {job_id for job_id in jobs if await status_of(store, job_id) is Status.PENDING}
        await refused(store.change(Action.CANCEL, Filter(), by(once(clock))))
        assert {job_id for job_id in jobs if await status_of(store, job_id) is Status.PENDING} == left
        assert len(left) == 2
        await store.change(Action.CANCEL, Filter(), by(mine))
        assert sum(entry.count for entry in await store.audit()) == 5

    async def test_a_change_of_nothing_does_not_use_the_key(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await store.change(Action.CANCEL, Filter(), by(once(clock)), dry_run=True)
        await store.change(Action.CANCEL, Filter(tasks=("other",)), by(once(clock)))
        await store.change(Action.RETRY, Filter(ids=(job_id,)), by(once(clock)))
        assert await user_of_key(store) is None
        assert await status_of(store, job_id) is Status.PENDING

    async def test_an_expired_key_may_be_used_again(self, store: Store, clock: ManualClock) -> None:
        first, second = await put_many(store, 2)
        await store.change(Action.CANCEL, Filter(ids=(first,)), by(once(clock, 1_000)))
        clock.advance(1)
        mine = once(clock)
        assert (await store.change(Action.CANCEL, Filter(ids=(second,)), by(mine))).ids == (second,)
        assert await user_of_key(store) == mine.version

    async def test_one_of_many_concurrent_changes_has_its_effect(self, store: Store, clock: ManualClock) -> None:
        jobs = await put_many(store, REQUESTS)
        changes = [store.change(Action.CANCEL, Filter(ids=(job_id,)), by(once(clock))) for job_id in jobs]
        answers = await asyncio.gather(*changes, return_exceptions=True)
        assert sum(isinstance(answer, AlreadyDone) for answer in answers) == REQUESTS - 1, answers
        cancelled = [job_id for job_id in jobs if await status_of(store, job_id) is Status.CANCELLED]
        assert len(cancelled) == 1
        assert sum(entry.count for entry in await store.audit()) == 1

    # -- halts ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("queue", [None, "mail"])
    async def test_a_key_is_used_once_for_a_halt(self, store: Store, clock: ManualClock, queue: str | None) -> None:
        mine = once(clock)
        halted = await store.halt(Halt("ben", "", at(clock), queue=queue, once=mine))
        assert halted.once is None
        await refused(store.halt(Halt("ana", "", at(clock), queue=queue, once=once(clock))))
        await refused(store.resume(by(once(clock)), queue))
        assert [halt.actor for halt in await store.halts()] == ["ben"]
        assert await store.resume(by(mine), queue)
        assert await user_of_key(store) == mine.version
        assert not await store.halts()

    async def test_one_of_many_concurrent_halts_has_its_effect(self, store: Store, clock: ManualClock) -> None:
        halts = [Halt("ben", "", at(clock), queue=f"q{number}", once=once(clock)) for number in range(REQUESTS)]
        answers = await asyncio.gather(*map(store.halt, halts), return_exceptions=True)
        assert sum(isinstance(answer, AlreadyDone) for answer in answers) == REQUESTS - 1, answers
        assert len(await store.halts()) == 1

    async def test_the_end_of_no_halt_does_not_use_the_key(self, store: Store, clock: ManualClock) -> None:
        assert not await store.resume(by(once(clock)))
        assert await user_of_key(store) is None

    # -- bundles --------------------------------------------------------------------------------------

    async def test_a_key_is_used_once_for_a_bundle(self, store: Store, clock: ManualClock) -> None:
        mine, job = once(clock), new_job()
        assert await store.write([bundle(mine, jobs=(job,))]) != [None]
        await refused(store.write([bundle(once(clock), "b", jobs=(new_job(),))]))
        assert await store.documents([Key("things", "", "b")]) == []
        assert await store.count(Filter()) == 1
        assert await store.write([bundle(mine, "c")]) == [[]]
        assert await user_of_key(store) == mine.version

    async def test_a_bundle_uses_the_key_of_its_note(self, store: Store, clock: ManualClock) -> None:
        for name, is_refused in (("a", False), ("b", True)):
            write = Write(Key("things", "", name), "1")
            work = store.write([Bundle((write,), note=Note(by(once(clock)), "thing.put", {}))])
            await (refused(work) if is_refused else work)
        assert [entry.action for entry in await store.audit()] == ["thing.put"]
        assert await store.documents([Key("things", "", "b")]) == []

    async def test_a_bundle_that_is_not_written_does_not_use_the_key(self, store: Store, clock: ManualClock) -> None:
        await store.write([bundle(once(clock, 0))])
        clock.advance(1)
        assert await store.write([bundle(once(clock))]) == [None]
        assert await user_of_key(store) is None

    async def test_a_bundle_with_a_key_may_be_repeated(self, store: Store, clock: ManualClock) -> None:
        new = bundle(once(clock), jobs=(new_job(),), note=Note(By("ben"), "thing.put", {}))
        first = await store.write([new])
        assert await store.write([new]) == first
        assert await store.count(Filter()) == len(await store.audit()) == 1

    async def test_the_answer_may_be_added_to_the_document(self, store: Store, clock: ManualClock) -> None:
        mine = once(clock)
        await store.write([bundle(mine)])
        answer = Write(USED, '"answer"', expected=mine.version, version=mine.version, expires_at=mine.expires_at)
        assert await store.write([Bundle((answer,))]) == [[]]
        await store.write([bundle(mine, "b")])  # a late commit of the same request leaves the answer as it is
        (found,) = await store.documents([USED])
        assert (found.data, found.version) == ('"answer"', mine.version)

    async def test_one_of_many_concurrent_bundles_is_written(self, store: Store, clock: ManualClock) -> None:
        bundles = [bundle(once(clock), str(number), jobs=(new_job(),)) for number in range(REQUESTS)]
        answers = await asyncio.gather(*(store.write([each]) for each in bundles), return_exceptions=True)
        assert sum(isinstance(answer, AlreadyDone) for answer in answers) == REQUESTS - 1, answers
        assert await store.count(Filter()) == 1

    # -- the key of the context -----------------------------------------------------------------------

    async def test_changes_use_the_key_of_their_context(self, store: Store, clock: ManualClock) -> None:
        job_id, mine = await put(store), once(clock)
        told: list[Any] = []

        def write(about: Mapping[str, Any]) -> Write:
            told.append(about)
            return mine

        with using_key(write):
            with using_key(None):
                assert By("ben").once is current_once() is None
            assert By("mainspring", audited=False).once is None
            changer = By("ben")
        assert By("ben").once is None
        await store.change(Action.CANCEL, Filter(ids=(job_id,)), changer)
        assert told == [{"operation": changer.operation}]
        assert await user_of_key(store) == mine.version
