"""What can be read: jobs by id and by filter, their history, and the state of the whole system."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import Failure
from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.protocol import DUE_CAP, Action, Filter, Severity, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    a_halt,
    at,
    by_hand,
    claim,
    claim_one,
    crashed,
    end,
    found,
    job_in,
    look,
    new_job,
    one_of_each,
    put,
    put_many,
    running,
)

BY_FIELD: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what is asked for: a job that fits, one that does not
    "queue": ({"queues": ("mail", "sms")}, {"queue": "sms"}, {"queue": "other"}),
    "task": ({"tasks": ("greet", "remind")}, {"task": "remind"}, {"task": "other"}),
    "target type": ({"target_type": "guest"}, {"target": ("guest", "1")}, {"target": ("room", "1")}),
    "target id": ({"target_id": "7"}, {"target": ("guest", "7")}, {"target": ("guest", "8")}),
    "target": ({"target_type": "guest", "target_id": "7"}, {"target": ("guest", "7")}, {"target": ("room", "7")}),
    "no target": ({"target_type": "guest"}, {"target": ("guest", "1")}, {}),
    "one tag": ({"tags": ("vip",)}, {"tags": ("spa", "vip")}, {"tags": ("spa",)}),
    "all tags": ({"tags": ("vip", "spa")}, {"tags": ("spa", "x", "vip")}, {"tags": ("vip",)}),
    "part of a tag": ({"tags": ("vip",)}, {"tags": ("vip",)}, {"tags": ("vipp",)}),
    "dedupe key": ({"dedupe_key": "k"}, {"dedupe_key": "k"}, {"dedupe_key": "kk"}),
    "several at once": ({"queues": ("mail",), "tasks": ("greet",)}, {"queue": "mail"}, {"queue": "mail", "task": "x"}),
    "payload text": ({"payload": {"name": "Zoë"}}, {"payload": '{"name": "Zoë"}'}, {"payload": '{"name": "Zoe"}'}),
    "payload number": ({"payload": {"n": 7}}, {"payload": '{"n": 7}'}, {"payload": '{"n": "7"}'}),
    "payload path": ({"payload": {"guest.id": 7}}, {"payload": '{"guest": {"id": 7}}'}, {"payload": '{"id": 7}'}),
    "payload true": ({"payload": {"vip": True}}, {"payload": '{"vip": true}'}, {"payload": '{"vip": 1}'}),
    "payload false": ({"payload": {"vip": False}}, {"payload": '{"vip": false}'}, {"payload": '{"vip": null}'}),
    "payload paths": ({"payload": {"a": 1, "b.c": "x"}}, {"payload": '{"a":1,"b":{"c":"x"}}'}, {"payload": '{"a":1}'}),
    "payload list": ({"payload": {"n": 1}}, {"payload": '{"n": 1}'}, {"payload": "[1]"}),
    "payload depth": ({"payload": {"a.b": 1}}, {"payload": '{"a": {"b": 1}}'}, {"payload": '{"a": 1}'}),
    "payload quotes": ({"payload": {"a": 'it\'s "x"'}}, {"payload": '{"a": "it\'s \\"x\\""}'}, {"payload": "{}"}),
    "payload umlaut": ({"payload": {"größe": 7}}, {"payload": '{"größe": 7}'}, {"payload": '{"grosse": 7}'}),
    "payload escaped": ({"payload": {"größe": 7}}, {"payload": '{"gr\\u00f6\\u00dfe": 7}'}, {"payload": "{}"}),
    "payload script": ({"payload": {"имя.имя": "я"}}, {"payload": '{"имя": {"имя": "я"}}'}, {"payload": '{"имя": 1}'}),
    "payload emoji": ({"payload": {"👩": None}}, {"payload": '{"👩": null}'}, {"payload": '{"x": null}'}),
    "payload quoted name": ({"payload": {'a"b': 1}}, {"payload": '{"a\\"b": 1}'}, {"payload": '{"a": 1}'}),
    "payload backslash": ({"payload": {"a\\b": 1}}, {"payload": '{"a\\\\b": 1}'}, {"payload": '{"ab": 1}'}),
    "payload dollar": ({"payload": {"$": 1}}, {"payload": '{"$": 1}'}, {"payload": "{}"}),
    "payload empty name": ({"payload": {"": 1}}, {"payload": '{"": 1}'}, {"payload": "{}"}),
    "payload one": ({"payload": {"n": 1}}, {"payload": '{"n": 1}'}, {"payload": '{"n": true}'}),
    "payload big": ({"payload": {"n": 2**70}}, {"payload": f'{{"n": {2**70}}}'}, {"payload": '{"n": 1}'}),
    "payload object": ({"payload": {"a": {"b": "ö"}}}, {"payload": '{"a":{"b":"ö"}}'}, {"payload": '{"a":{"b":"o"}}'}),
    "payload number name": ({"payload": {"a.0": 1}}, {"payload": '{"a": {"0": 1}}'}, {"payload": '{"a": [1]}'}),
    "payload in array": ({"payload": {"a.0.b": 1}}, {"payload": '{"a":{"0":{"b":1}}}'}, {"payload": '{"a":[{"b":1}]}'}),
    "payload array": ({"payload": {"0": 1}}, {"payload": '{"0": 1}'}, {"payload": "[1]"}),
    "payload beside nul": ({"payload": {"a": 1}}, {"payload": '{"a": 1}'}, {"payload": '{"a": "\\u0000"}'}),
}

BY_TIME = [(f"{what}_after", f"{what}_before") for what in ("created", "due", "finished", "changed")]

Tally = dict[tuple[str, Status], int]


async def tally_of_stats(store: Store) -> Tally:
    counts = (await store.stats()).queues
    return {(each.queue, status): each[status] for each in counts for status in Status if each[status]}


async def tally_of_find(store: Store) -> Tally:
    jobs = (await store.find(Filter(), limit=1000)).jobs
    return {
        key: sum((job.queue, job.status) == key for job in jobs) for key in {(job.queue, job.status) for job in jobs}
    }


async def pages(store: Store, size: int, **fields: Any) -> list[list[str]]:
    result: list[list[str]] = []
    cursor: str | None = None
    while cursor or not result:
        page = await store.find(Filter(**fields), limit=size, cursor=cursor)
        result.append([job.id for job in page.jobs])
        cursor = page.cursor
    return result


class ReadTests(StoreScenario):
    async def test_a_job_has_a_timeout_in_sight_only_while_it_runs(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store, timeout=90_000)
        assert (await look(store, job_id)).timeout_at is None
        clock.advance(10)
        held = await claim_one(store)
        assert (await look(store, job_id)).timeout_at == at(clock, 90)
        await end(store, held, Move.DONE)
        assert (await look(store, job_id)).timeout_at is None
        assert (await look(store, (await running(store)).id)).timeout_at is None

    # -- by id --------------------------------------------------------------------------------

    async def test_jobs_are_read_in_the_order_asked_for(self, store: Store) -> None:
        first, second, third = await put_many(store, 3)
        assert [job.id for job in await store.get([second, third, first])] == [second, third, first]

    async def test_unknown_jobs_are_left_out(self, store: Store) -> None:
        job_id = await put(store)
        assert [job.id for job in await store.get([new_job().id, job_id])] == [job_id]
        assert await store.get([]) == []

    async def test_an_unknown_job_has_no_history(self, store: Store) -> None:
        assert await store.attempts(new_job().id) == []
        assert await store.timeline(new_job().id) == []

    # -- by filter ----------------------------------------------------------------------------

    @pytest.mark.parametrize("case", BY_FIELD)
    async def test_a_filter_finds_what_fits(self, store: Store, case: str) -> None:
        where, fitting, other = BY_FIELD[case]
        job_id = await put(store, **fitting)
        await put(store, **other)
        assert await found(store, **where) == [job_id]
        assert await store.count(Filter(**where)) == 1

    @pytest.mark.parametrize("case", BY_FIELD)
    async def test_a_filter_finds_finished_jobs_too(self, store: Store, case: str) -> None:
        where, fitting, other = BY_FIELD[case]
        job_id = await job_in(store, Status.COMPLETED, **fitting)
        await job_in(store, Status.DEAD_LETTER, **other)
        assert await found(store, **where) == [job_id]
        assert await store.count(Filter(**where)) == 1

    async def test_an_empty_filter_finds_all(self, store: Store) -> None:
        ids = await one_of_each(store)
        assert sorted(await found(store)) == sorted(ids.values())
        assert await store.count(Filter()) == len(ids)

    async def test_a_filter_by_ids_finds_those_jobs(self, store: Store) -> None:
        first, _, third = await put_many(store, 3)
        assert await found(store, ids=(first, third, new_job().id)) == [third, first]

    @pytest.mark.parametrize("status", list(Status))
    async def test_a_filter_by_status_finds_jobs_in_it(self, store: Store, status: Status) -> None:
        ids = await one_of_each(store)
        assert await found(store, statuses=(status,)) == [ids[status]]
        assert await found(store, statuses=tuple(set(Status) - {status}), ids=(ids[status],)) == []

    async def test_a_filter_by_several_statuses_finds_jobs_in_any_of_them(self, store: Store) -> None:
        running_one, done = await job_in(store, Status.RUNNING), await job_in(store, Status.COMPLETED)
        await job_in(store, Status.CANCELLED)
        assert await found(store, statuses=(Status.RUNNING, Status.COMPLETED)) == [done, running_one]

    async def test_a_filter_by_worker_finds_jobs_that_it_runs_or_ran(self, store: Store) -> None:
        await put_many(store, 2)
        mine, others = await claim_one(store, worker="w1"), await claim_one(store, worker="w2")
        await put(store)
        assert await found(store, worker="w1") == [mine.id]
        await end(store, others, Move.DONE)
        assert await found(store, worker="w2") == [others.id]

    async def test_a_filter_by_error_type_finds_jobs_that_failed_with_it(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        await end(store, first, Move.RETRY, failure=Failure("ValueError", "boom"))
        await end(store, second, Move.DEAD, failure=Failure("OSError", "bang"))
        assert await found(store, error_type="ValueError") == [first.id]
        assert await found(store, error_type="OSError") == [second.id]

    @pytest.mark.parametrize(("after", "before"), BY_TIME)
    async def test_a_filter_by_time_includes_its_start_and_not_its_end(
        self, store: Store, clock: ManualClock, after: str, before: str
    ) -> None:
        ids = []
        for _ in range(3):
            ids.append(await job_in(store, Status.COMPLETED))
            clock.advance(1)
        assert await found(store, **{after: at(clock, -2)}) == [ids[2], ids[1]]
        assert await found(store, **{before: at(clock, -2)}) == [ids[0]]
        assert await found(store, **{after: at(clock, -2), before: at(clock, -1)}) == [ids[1]]

    async def test_a_filter_by_due_time_sees_the_future(self, store: Store, clock: ManualClock) -> None:
        await put(store)
        later = await put(store, delay=60_000)
        assert await found(store, due_after=at(clock, 1)) == [later]

    @pytest.mark.parametrize("field", ["finished_after", "finished_before"])
    async def test_a_filter_by_finishing_time_finds_only_finished_jobs(
        self, store: Store, clock: ManualClock, field: str
    ) -> None:
        await put(store)
        assert await found(store, **{field: at(clock, -60 if field == "finished_after" else 60)}) == []

    # -- pages --------------------------------------------------------------------------------

    async def test_the_newest_come_first(self, store: Store, clock: ManualClock) -> None:
        ids = []
        for status in (Status.COMPLETED, Status.RUNNING, Status.RETRYING, Status.CANCELLED):
            ids.append(await job_in(store, status, delay=0, queue=status))
            clock.advance(1)
        assert await found(store) == ids[::-1]

    @pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 6), (4, [4, 2]), (3, [3, 3]), (6, [6]), (10, [6])])
    async def test_pages_cover_all_once_and_the_last_says_so(self, store: Store, size: int, sizes: list[int]) -> None:
        ids = [await job_in(store, Status.COMPLETED if n % 2 else Status.RUNNING) for n in range(6)]
        got = await pages(store, size)
        assert [len(page) for page in got] == sizes
        assert [job_id for page in got for job_id in page] == ids[::-1]

    async def test_pages_of_a_filter_contain_only_matching_jobs(self, store: Store) -> None:
        ids = await put_many(store, 5, queue="mail")
        await put_many(store, 5, queue="sms")
        assert await pages(store, 2, queues=("mail",)) == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]

    async def test_a_new_job_does_not_disturb_the_pages_behind_it(self, store: Store) -> None:
        ids = await put_many(store, 4)
        first = await store.find(Filter(), limit=2)
        await put(store)
        rest = await store.find(Filter(), limit=10, cursor=first.cursor)
        assert [job.id for job in first.jobs + rest.jobs] == ids[::-1]

    async def test_a_job_that_moves_on_between_pages_is_neither_skipped_nor_repeated(self, store: Store) -> None:
        ids = await put_many(store, 6)
        first = await store.find(Filter(), limit=2)
        for held in await claim(store):
            await end(store, held, Move.DONE)
        rest = await store.find(Filter(), limit=10, cursor=first.cursor)
        assert [job.id for job in first.jobs + rest.jobs] == ids[::-1]

    async def test_nothing_found_is_an_empty_last_page(self, store: Store) -> None:
        page = await store.find(Filter(queues=("nowhere",)))
        assert (page.jobs, page.cursor) == ([], None)

    # -- a job's life -------------------------------------------------------------------------

    async def test_a_timeline_tells_a_jobs_life_in_order(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        clock.advance(1)
        held = await claim_one(store)
        clock.advance(1)
        await end(store, held, Move.RETRY, failure=Failure("ValueError", "boom"))
        clock.advance(1)
        await by_hand(store, Action.RETRY, job_id)
        clock.advance(1)
        held = await claim_one(store, worker="w2")
        clock.advance(1)
        await end(store, held, Move.DONE)
        timeline = await store.timeline(job_id)
        assert [entry.what for entry in timeline] == ["created", "claimed", "retry", "manual_retry", "claimed", "done"]
        assert [entry.at for entry in timeline] == [at(clock, seconds) for seconds in range(-5, 1)]
        assert [timeline[n].actor for n in (1, 3, 4)] == ["w1", "ana", "w2"]
        assert "by hand" in timeline[3].detail

    async def test_a_timeline_shows_the_claim_of_a_running_job(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        clock.advance(1)
        await claim_one(store)
        assert [entry.what for entry in await store.timeline(job_id)] == ["created", "claimed"]

    async def test_a_timeline_shows_what_was_done_by_hand(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        clock.advance(1)
        await by_hand(store, Action.EDIT, job_id, priority=0)
        clock.advance(1)
        await by_hand(store, Action.CANCEL, job_id)
        assert [entry.what for entry in await store.timeline(job_id)] == ["created", "edit", "cancel"]

    async def test_a_timeline_shows_crashes(self, store: Store) -> None:
        job_id = await crashed(store)
        assert "crash" in [entry.what for entry in await store.timeline(job_id)]

    # -- statistics ---------------------------------------------------------------------------

    async def test_an_empty_store_has_empty_statistics(self, store: Store) -> None:
        stats = await store.stats()
        assert await tally_of_stats(store) == {}
        assert not any(stats.due.values())
        assert (dict(stats.oldest_due), stats.halts) == ({}, [])

    async def test_counts_equal_what_is_found_at_every_step(self, store: Store, clock: ManualClock) -> None:
        async def check() -> None:
            assert await tally_of_stats(store) == await tally_of_find(store)

        for queue in ("q0", "q1"):
            await one_of_each(store, queue=queue, timeout=1000)
            await check()
        await put_many(store, 3, queue="q0", keep=1000, delay=1000)
        await check()
        for action in (Action.RETRY, Action.CANCEL, Action.RETRY, Action.DELETE):
            await by_hand(store, action, *(await found(store))[:5])
            await check()
        await put(store, queue="q0")
        await by_hand(store, Action.EDIT, *await found(store, statuses=(Status.PENDING,)), queue="q9")
        await check()
        clock.advance(90 * 86_400)
        await store.reap()
        await check()
        await store.prune()
        await check()

    async def test_due_counts_waiting_jobs_whose_time_has_come(self, store: Store, clock: ManualClock) -> None:
        await crashed(store, queue="mail")
        await job_in(store, Status.RETRYING, queue="mail")
        await job_in(store, Status.COMPLETED, queue="sms")
        await job_in(store, Status.RUNNING, queue="sms")
        await put(store, queue="sms", delay=60_000)
        stats = await store.stats()
        assert (stats.due.get("mail", 0), stats.due.get("sms", 0)) == (2, 0)
        clock.advance(60)
        assert (await store.stats()).due.get("sms", 0) == 1

    async def test_statistics_know_since_when_the_oldest_is_due(self, store: Store, clock: ManualClock) -> None:
        await put(store)
        clock.advance(5)
        await put(store, priority=0)
        await put(store, queue="later", delay=60_000)
        assert dict((await store.stats()).oldest_due) == {"default": at(clock, -5)}

    @pytest.fixture
    def due_cap(self) -> int:
        """A store that takes long to be filled may be given a lower one."""
        return DUE_CAP

    async def test_the_number_of_due_jobs_is_capped(self, store: Store, due_cap: int) -> None:
        await put_many(store, due_cap + 1)
        stats = await store.stats()
        assert stats.due["default"] == due_cap
        assert await store.count(Filter()) == due_cap + 1

    async def test_statistics_list_the_halts(self, store: Store, clock: ManualClock) -> None:
        halt = a_halt(clock, queue="mail")
        await store.halt(halt)
        assert (await store.stats()).halts == [halt]

    # -- doctor -------------------------------------------------------------------------------

    async def test_a_healthy_store_has_no_errors(self, store: Store) -> None:
        await job_in(store, Status.COMPLETED)
        assert [each for each in await store.diagnose() if each.severity is Severity.ERROR] == []

    async def test_reading_does_not_change_a_running_job(self, store: Store) -> None:
        held = await running(store)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        before = await look(store, held.id)
        await store.stats()
        await store.timeline(held.id)
        await store.diagnose()
        assert await look(store, held.id) == before

    async def test_stats_show_the_oldest_dead_letter_of_each_queue(self, store: Store, clock: ManualClock) -> None:
        assert (await store.stats()).oldest_dead == {}
        await job_in(store, Status.COMPLETED, queue="sms")
        for queue in ("mail", "mail", "default"):
            await job_in(store, Status.DEAD_LETTER, queue=queue)
            clock.advance(10)
        assert (await store.stats()).oldest_dead == {"mail": at(clock, -30), "default": at(clock, -10)}

    async def test_stats_count_jobs_that_run_too_long(self, store: Store, clock: ManualClock) -> None:
        await running(store, timeout=5_000)
        await running(store)
        clock.advance(4)
        assert (await store.stats()).stalled == 0
        clock.advance(2 + store.stall_grace / 1000)
        assert (await store.stats()).stalled == 1
