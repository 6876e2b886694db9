"""Documents: what is kept beside jobs, by version, and comes due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.errors import SystemHalted
from mainspring.job import Inserted
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Listing, Note, Write
from mainspring.stores.protocol import Store, Wake
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import PATIENCE, StoreScenario, a_halt, at, claim, join, new_job

ODD = 'naïve "quotes" \\ back, tab\t and \n line, {braces}, 日本'


def key(name: str = "a", group: str = "", collection: str = "things") -> Key:
    return Key(collection, group, name)


def a_write(name: str = "a", data: str | None = '{"n": 1}', **options: Any) -> Write:
    group, collection = options.pop("group", ""), options.pop("collection", "things")
    return Write(key(name, group, collection), data, **options)


def a_note(action: str = "thing.put", **detail: Any) -> Note:
    return Note(By("ben", "ticket 42"), action, {"thing": ODD, **detail})


async def wrote(store: Store, *writes: Write) -> bool:
    (answer,) = await store.write([Bundle(writes)])
    return answer is not None


async def read(store: Store, name: str = "a", **where: str) -> Document | None:
    found = await store.documents([key(name, **where)])
    return found[0] if found else None


async def data_of(store: Store, name: str = "a") -> str | None:
    found = await read(store, name)
    return None if found is None else found.data


async def names(store: Store, *args: Any, **options: Any) -> list[tuple[str, str]]:
    return [(document.key.group, document.key.id) for document in await store.browse(Listing(*args, **options))]


async def due(store: Store, limit: int = 100) -> list[str]:
    return [document.key.id for document in (await store.due("things", limit)).documents]


class DocumentTests(StoreScenario):
    # -- one document ---------------------------------------------------------------------------------

    async def test_a_written_document_can_be_read(self, store: Store, clock: ManualClock) -> None:
        write = a_write(ODD, f'"{ODD}"', group=ODD, due_at=clock.now() + 1, expires_at=clock.now() + 2)
        assert await wrote(store, write)
        (found,) = await store.documents([write.key, key("another")])
        assert found == Document(write.key, f'"{ODD}"', write.version, clock.now() + 1, clock.now() + 2)

    async def test_a_document_that_was_not_written_is_absent(self, store: Store) -> None:
        assert await store.documents([key()]) == []
        assert await store.documents([]) == []
        assert await store.browse(Listing("things")) == []
        assert (await store.due("things")).documents == []

    async def test_a_large_document_comes_back_whole(self, store: Store) -> None:
        text = '"' + "ü" * 100_000 + '"'
        assert await wrote(store, a_write(data=text))
        assert await data_of(store) == text

    async def test_a_write_replaces_the_whole_document(self, store: Store, clock: ManualClock) -> None:
        await wrote(store, a_write(due_at=clock.now(), expires_at=clock.now() + 1000))
        second = a_write(data="2")
        assert await wrote(store, second)
        assert await read(store) == Document(key(), "2", second.version)
        assert await due(store) == []

    async def test_a_document_can_be_deleted_and_made_again(self, store: Store) -> None:
        await wrote(store, a_write())
        assert await wrote(store, a_write(data=None))
        assert await read(store) is None
        assert await wrote(store, a_write(data=None))
        assert await wrote(store, a_write(data="3", expected=ABSENT))
        assert await data_of(store) == "3"

    # -- versions -------------------------------------------------------------------------------------

    async def test_only_the_version_that_was_seen_is_replaced(self, store: Store) -> None:
        first, second = a_write(expected=ABSENT), a_write(data="2")
        assert await wrote(store, first)
        assert not await wrote(store, a_write(data="0", expected=ABSENT))
        assert await wrote(store, Write(first.key, "2", expected=first.version, version=second.version))
        assert not await wrote(store, a_write(data="3", expected=first.version))
        assert not await wrote(store, a_write(data=None, expected=first.version))
        assert await read(store) == Document(key(), "2", second.version)
        assert await wrote(store, a_write(data=None, expected=second.version))

    async def test_a_version_never_comes_back(self, store: Store) -> None:
        first = a_write()
        await wrote(store, first)
        await wrote(store, a_write(data=None))
        await wrote(store, a_write())
        assert not await wrote(store, a_write(data="2", expected=first.version))

    async def test_a_write_that_is_repeated_is_answered_alike(self, store: Store) -> None:
        """Its first answer may have got lost."""
        bundle = Bundle((a_write(expected=ABSENT), a_write("b", expected=ABSENT)), (new_job(),))
        first = await store.write([bundle])
        assert await store.write([bundle]) == first
        assert first == [[_created(bundle)]]
        assert len(await claim(store)) == 1
        assert await store.write([bundle]) == first
        assert await claim(store) == []

    async def test_one_of_many_concurrent_writes_wins(self, store: Store) -> None:
        first = a_write()
        await wrote(store, first)
        writes = [a_write(data=str(number), expected=first.version) for number in range(10)]
        answers = await asyncio.gather(*(wrote(store, write) for write in writes))
        assert sum(answers) == 1
        assert await data_of(store) == str(answers.index(True))

    async def test_one_of_many_concurrent_inserts_wins(self, store: Store) -> None:
        writes = [a_write(data=str(number), expected=ABSENT) for number in range(10)]
        answers = await asyncio.gather(*(wrote(store, write) for write in writes))
        assert sum(answers) == 1

    # -- bundles --------------------------------------------------------------------------------------

    async def test_a_bundle_is_written_as_a_whole_or_not_at_all(self, store: Store) -> None:
        await wrote(store, a_write("b", data="old"))
        refused = Bundle((a_write("a"), a_write("b", data="new", expected=ABSENT), a_write("c")), (new_job(),))
        assert await store.write([refused]) == [None]
        assert [(document.key.id, document.data) for document in await store.browse(Listing("things"))] == [
            ("b", "old")
        ]
        assert await claim(store) == []

    async def test_bundles_succeed_and_fail_by_themselves(self, store: Store) -> None:
        await wrote(store, a_write("b"))
        bundles = [Bundle((a_write(name, expected=ABSENT),), (new_job(),)) for name in "abc"]
        answers = await store.write(bundles)
        assert answers == [[_created(bundles[0])], None, [_created(bundles[2])]]
        assert {job.id for job in await claim(store)} == {bundles[0].jobs[0].id, bundles[2].jobs[0].id}

    async def test_bundles_see_those_before_them(self, store: Store) -> None:
        first = a_write(expected=ABSENT)
        bundles = [
            Bundle((first,)),
            Bundle((a_write(data="2", expected=ABSENT),)),
            Bundle((a_write(data="3", expected=first.version),)),
        ]
        assert await store.write(bundles) == [[], None, []]
        assert await data_of(store) == "3"

    async def test_many_bundles_in_one_call_are_all_written(self, store: Store) -> None:
        bundles = [Bundle((a_write(f"{n:04}", due_at=n),), (new_job(),)) for n in range(300)]
        assert await store.write(bundles) == [[_created(bundle)] for bundle in bundles]
        assert len(await claim(store, 1000)) == 300
        assert await due(store, 5) == ["0000", "0001", "0002", "0003", "0004"]

    async def test_a_bundles_job_whose_key_is_taken_is_answered_with_the_holder(self, store: Store) -> None:
        (first,) = await store.insert([new_job(dedupe_key="k")])
        (answer,) = await store.write([Bundle((a_write(),), (new_job(dedupe_key="k"), new_job()))])
        assert answer is not None
        assert [(inserted.created, inserted.id == first.id) for inserted in answer] == [(False, True), (True, False)]
        assert await read(store) is not None

    async def test_jobs_that_are_refused_keep_the_documents_back(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, accept=False))
        with pytest.raises(SystemHalted):
            await store.write([Bundle((a_write(),), (new_job(),))])
        assert await read(store) is None
        assert await wrote(store, a_write())

    # -- by hand --------------------------------------------------------------------------------------

    async def test_a_bundle_may_have_nothing_but_a_note(self, store: Store) -> None:
        assert await store.write([Bundle((), note=a_note("thing.read"))]) == [[]]
        assert [entry.action for entry in await store.audit()] == ["thing.read"]

    async def test_a_bundles_note_is_in_the_audit_log(self, store: Store, clock: ManualClock) -> None:
        await store.write([Bundle((a_write(),), (new_job(),), a_note("thing.put", n=1)), Bundle((a_write("b"),))])
        await store.write([Bundle((a_write(data=None),), note=a_note("thing.delete"))])
        deleted, made = await store.audit()
        assert (made.at, made.actor, made.action, made.reason) == (at(clock), "ben", "thing.put", "ticket 42")
        assert (made.detail, made.count) == ({"thing": ODD, "n": 1}, 0)
        assert (deleted.action, deleted.detail) == ("thing.delete", {"thing": ODD})

    async def test_a_bundle_that_is_not_written_leaves_no_note(self, store: Store, clock: ManualClock) -> None:
        await wrote(store, a_write())
        assert await store.write([Bundle((a_write(expected=ABSENT),), note=a_note())]) == [None]
        await store.halt(a_halt(clock, accept=False))
        with pytest.raises(SystemHalted):
            await store.write([Bundle((a_write("b"),), (new_job(),), a_note())])
        assert [entry.action for entry in await store.audit()] == ["halt"]

    @pytest.mark.parametrize("expected", [None, ABSENT])
    async def test_a_bundle_that_is_repeated_is_noted_once(
        self, store: Store, clock: ManualClock, expected: str | None
    ) -> None:
        bundle = Bundle((a_write(expected=expected),), (new_job(), new_job(dedupe_key="k")), a_note())
        first = await store.write([bundle])
        clock.advance(1)
        assert await store.write([bundle]) == first
        (entry,) = await store.audit()
        assert entry.at == at(clock, -1)

    async def test_bundles_of_one_operation_are_noted_once(self, store: Store) -> None:
        note = a_note()
        await store.write([Bundle((a_write(name),), note=note) for name in "abc"])
        assert await names(store, "things") == [("", "a"), ("", "b"), ("", "c")]
        assert len(await store.audit()) == 1

    # -- waking ---------------------------------------------------------------------------------------

    async def test_jobs_of_a_bundle_wake_workers(self, store: Store) -> None:
        woken = asyncio.Event()
        await join(store, "w3", lambda wake: woken.set() if Wake.JOBS in wake else None)
        await claim(store, worker="w3")
        woken.clear()
        await store.write([Bundle((a_write(),), (new_job(),))])
        await asyncio.wait_for(woken.wait(), PATIENCE)

    async def test_a_document_that_is_due_soon_wakes_workers(self, store: Store, clock: ManualClock) -> None:
        woken = asyncio.Event()
        await join(store, "w3", lambda wake: woken.set() if Wake.DOCUMENTS in wake else None)
        woken.clear()
        await wrote(store, a_write(due_at=clock.now() + 1000))
        await asyncio.wait_for(woken.wait(), PATIENCE)

    async def test_a_bundle_that_is_to_be_spread_wakes_workers(self, store: Store) -> None:
        woken = asyncio.Event()
        await join(store, "w3", lambda wake: woken.set() if Wake.STATE in wake else None)
        await claim(store, worker="w3")
        woken.clear()
        (written,) = await store.write([Bundle((a_write(),), spread=True)])
        assert written == []
        await asyncio.wait_for(woken.wait(), PATIENCE)

    # -- in order -------------------------------------------------------------------------------------

    async def test_documents_are_browsed_by_group_and_name(self, store: Store) -> None:
        everything = [("", "b"), ("", "é"), ("B", "x"), ("a", "1"), ("a", "10"), ("a", "2"), ("b", "")]
        await store.write([Bundle((a_write(name, group=group),)) for group, name in reversed(everything)])
        await wrote(store, a_write("elsewhere", collection="others"))
        assert await names(store, "things") == everything
        assert await names(store, "things", backwards=True) == everything[::-1]
        assert await names(store, "things", "a") == everything[3:6]
        assert await names(store, "things", "") == everything[:2]
        assert await names(store, "things", "a", backwards=True, limit=2) == [("a", "2"), ("a", "10")]

    @pytest.mark.parametrize("backwards", [False, True])
    async def test_documents_whose_ids_begin_alike_are_browsed(self, store: Store, backwards: bool) -> None:
        ids = ["p/a", "p/a/", "p/a/1", "p/a/2", "p/a/_%", "p/a/\U0010fffe", "p/a0", "p/b/1"]
        await store.write([Bundle((a_write(name, group=group),)) for name in ids for group in ("", "g")])
        wanted = [("g", name) for name in ids[1:6]][:: -1 if backwards else 1]
        found = await names(store, "things", "g", prefix="p/a/", backwards=backwards)
        assert found == wanted
        rest = await names(store, "things", "g", wanted[1], 2, prefix="p/a/", backwards=backwards)
        assert rest == wanted[2:4]
        assert await names(store, "things", "g", prefix="p/c/") == []

    @pytest.mark.parametrize("backwards", [False, True])
    async def test_browsing_continues_after_the_last_page(self, store: Store, backwards: bool) -> None:
        keys = [(group, f"{number}") for group in ("", "g", "h") for number in range(3)]
        await store.write([Bundle((a_write(name, group=group),)) for group, name in keys])
        seen: list[tuple[str, str]] = []
        while page := await names(store, "things", after=seen[-1] if seen else None, limit=2, backwards=backwards):
            seen += page
        assert seen == (keys[::-1] if backwards else keys)

    # -- time -----------------------------------------------------------------------------------------

    async def test_due_documents_are_returned_in_order_of_their_time(self, store: Store, clock: ManualClock) -> None:
        now = clock.now()
        for name, moment in {"later": 2000, "now": 0, "overdue": -5000, "never": None}.items():
            await wrote(store, a_write(name, due_at=None if moment is None else now + moment))
        await wrote(store, a_write("elsewhere", due_at=now, collection="others"))
        found = await store.due("things")
        assert [document.key.id for document in found.documents] == ["overdue", "now"]
        assert (found.now, found.next_at) == (now, now + 2000)
        soon = await store.due("things", ahead=1999)
        assert ([document.key.id for document in soon.documents], soon.next_at) == (["overdue", "now"], now + 2000)
        soon = await store.due("things", ahead=2000)
        assert ([document.key.id for document in soon.documents], soon.now) == (["overdue", "now", "later"], now)
        clock.advance(2)
        assert await due(store) == ["overdue", "now", "later"]
        assert (await store.due("things")).next_at is None

    async def test_due_returns_no_more_documents_than_the_limit(self, store: Store, clock: ManualClock) -> None:
        for number in range(5):
            await wrote(store, a_write(f"{number}", due_at=clock.now() - 10 + number))
        found = await store.due("things", 2)
        assert [document.key.id for document in found.documents] == ["0", "1"]
        assert found.next_at == clock.now() - 8

    async def test_a_new_time_replaces_the_old_one(self, store: Store, clock: ManualClock) -> None:
        await wrote(store, a_write(due_at=clock.now()))
        await wrote(store, a_write(due_at=clock.now() + 1000))
        assert await due(store) == []
        clock.advance(1)
        assert await due(store) == ["a"]
        await wrote(store, a_write(data=None))
        assert await due(store) == []

    async def test_expired_documents_cannot_be_read(self, store: Store, clock: ManualClock) -> None:
        await wrote(store, a_write("short", due_at=clock.now(), expires_at=clock.now() + 1000), a_write("long"))
        clock.advance(1)
        assert await read(store, "short") is None
        assert await names(store, "things") == [("", "long")]
        found = await store.due("things")
        assert (found.documents, found.next_at) == ([], None)
        assert await wrote(store, a_write("short", data="2", expected=ABSENT))
        assert await data_of(store, "short") == "2"

    async def test_expired_documents_are_pruned(self, store: Store, clock: ManualClock) -> None:
        for name in "abc":
            await wrote(store, a_write(name, expires_at=clock.now() + 1000))
        await wrote(store, a_write("d"))
        assert await store.prune() == 0
        clock.advance(1)
        assert await store.prune(2) == 2
        assert await store.prune() == 1
        assert await names(store, "things") == [("", "d")]


def _created(bundle: Bundle) -> Inserted:
    return Inserted(bundle.jobs[0].id, created=True)
