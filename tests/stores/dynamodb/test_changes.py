"""The change feed on DynamoDB, where a transaction appears item by item to reads that are not transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from mainspring.clock import to_datetime
from mainspring.errors import Failure, StoreUnavailable
from mainspring.job import Claim, Move, Outcome, ProgressReport
from mainspring.stores.documents import Bundle, By, Key, Write
from mainspring.stores.dynamodb import DynamoStore, changes, halts, journal
from mainspring.stores.dynamodb.client import Cancelled
from mainspring.stores.dynamodb.items import key
from mainspring.stores.dynamodb.values import Row
from mainspring.stores.feed import RETENTION, ChangeKind, Entry
from mainspring.stores.protocol import Action, Filter, Halt
from mainspring.testing.clock import ManualClock
from tests.chaos.programs.unreliable import remove_guard
from tests.conformance.feed import Reader, from_now
from tests.conformance.scenario import by_silence, claim, end, join, new_job, put, put_many, running
from tests.dynamodb import FreshStore
from tests.stores.dynamodb.conftest import Programs

pytestmark = pytest.mark.slow  # a real server

Answer = dict[str, Any]
Twist = Callable[[Mapping[str, Any], Answer], Awaitable[Answer]]  # the request and its answer -> what is answered


@pytest.fixture
async def reader(store: FreshStore) -> Reader:
    await join(store, "w1")
    return await from_now(store)


def twist_once(store: DynamoStore, operation: str, partition: str, twist: Twist) -> list[str]:
    """Have the next call of this kind about this partition answered differently; return where it is noted."""
    whole, met = store.client.call, list[str]()

    async def call(called: str, request: Mapping[str, Any]) -> Answer:
        answer = await whole(called, request)
        if called != operation or met or partition not in str(request):
            return answer
        met.append(called)
        return await twist(request, answer)

    store.client.call = call  # type: ignore[method-assign, assignment]
    return met


async def without_items(_: Mapping[str, Any], answer: Answer) -> Answer:
    return {**answer, "Items": [], "Responses": {}}


async def report_progress(store: DynamoStore, held: Claim, times: int, note: str = "") -> None:
    await store.report([ProgressReport(held.id, held.token, number / times, note) for number in range(times)])


async def all_hints(store: DynamoStore) -> list[Row]:
    parts = [await store.table.rows(f"hints#{number}") for number in range(journal.HINT_PARTITIONS)]
    return [row for rows in parts for row in rows]


# -- more than one transaction can take ---------------------------------------------------------------------


@pytest.mark.parametrize("number", [41, 60, 97])
async def test_many_follow_ups_of_one_job_are_all_read(store: FreshStore, reader: Reader, number: int) -> None:
    """One hint names more jobs than one transaction moves."""
    held = await running(store)
    jobs = [new_job() for _ in range(number)]
    await end(store, held, Move.DONE, follow_ups=tuple(jobs))
    created = {change.job_id for change in await reader.read() if change.kind is ChangeKind.CREATED}
    assert created == {held.id, *(job.id for job in jobs)}
    assert await all_hints(store) == []


async def test_a_transaction_takes_the_hints_of_a_busy_job_and_the_journals_of_others(
    store: FreshStore, reader: Reader
) -> None:
    held = await running(store)
    await report_progress(store, held, 110)
    jobs = await put_many(store, 30)
    found = await reader.read()
    assert [change.job_id for change in found].count(held.id) == 112
    assert {change.job_id for change in found} == {held.id, *jobs}


async def test_a_job_that_changed_very_often_does_not_hold_up_others(store: FreshStore, reader: Reader) -> None:
    """A job remembers fewer hints than it had changes."""
    held = await running(store)
    await report_progress(store, held, 150)
    assert len(await reader.read()) == 152
    assert await all_hints(store) == []
    job_id = await put(store)
    assert [change.job_id for change in await reader.read()] == [job_id]


async def test_old_hints_stay_until_their_changes_are_moved(
    store: FreshStore, reader: Reader, clock: ManualClock
) -> None:
    """No process has read for a while, and there is more than one transaction can move."""
    jobs = await put_many(store, 60)
    clock.advance(changes.HINT_PATIENCE / 1000 + 1)
    assert [change.job_id for change in await reader.read()] == jobs


async def test_a_journal_may_be_larger_than_an_item_of_the_log(store: FreshStore, reader: Reader) -> None:
    """Each entry of the log has the job's target, which the journal does not repeat. JSON has six bytes for an é."""
    held = await running(store, target=("order", "é" * 490))
    await report_progress(store, held, 80, "é" * 500)
    assert len(await reader.read()) == 82


# -- items that cannot be seen yet ---------------------------------------------------------------------------


async def test_a_hint_may_be_seen_before_its_new_job(store: FreshStore, reader: Reader) -> None:
    job_id = await put(store)
    met = twist_once(store, "BatchGetItem", "job#", without_items)
    assert await reader.read() == []
    assert met
    assert [change.job_id for change in await reader.read()] == [job_id]


async def test_hints_that_wait_hold_up_no_other_change(
    store: FreshStore, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_HINTS_READ", 2)
    for number in range(20):
        hint = journal.Hint(store.table)
        hint.journal(f"unseen-{number}", [Entry(ChangeKind.CREATED)])
        await store.table.transact(*hint.actions())
    job_id = await put(store)
    assert [change.job_id for change in await reader.read()] == [job_id]


async def test_hints_at_a_job_that_is_gone_are_deleted_in_the_end(
    store: FreshStore, reader: Reader, clock: ManualClock
) -> None:
    job_id = await put(store)
    await store.table.delete({"Key": store.table.job_key(job_id)})
    assert await reader.read() == []
    assert len(await all_hints(store)) == 1
    clock.advance(changes.HINT_PATIENCE / 1000 + 1)
    assert await reader.read() == []
    assert await all_hints(store) == []


async def test_an_item_of_the_log_may_be_seen_before_an_earlier_one(programs: Programs, reader: Reader) -> None:
    other = Reader(await programs.another(), reader.cursor)
    jobs = []
    for _ in range(3):
        jobs.append(await put(programs.first))
        await other.read()

    async def without_second(_: Mapping[str, Any], answer: Answer) -> Answer:
        return {**answer, "Items": [answer["Items"][0], answer["Items"][2]]}

    met = twist_once(programs.first, "Query", "'feed'", without_second)
    assert [change.job_id for change in await reader.read()] == jobs
    assert met


async def test_an_item_that_is_written_during_a_read_is_not_taken_for_an_expired_one(
    programs: Programs, reader: Reader
) -> None:
    other = Reader(await programs.another(), reader.cursor)
    jobs: list[str] = []

    async def then_another_reads(_: Mapping[str, Any], answer: Answer) -> Answer:
        jobs.append(await put(other.store))
        await other.read()
        return answer

    twist_once(programs.first, "Query", "'feed'", then_another_reads)
    assert [change.job_id for change in await reader.read()] == jobs
    assert len(jobs) == 1


async def test_a_missing_item_between_two_others_resets_the_reader(store: FreshStore, reader: Reader) -> None:
    """The service deletes expired items in any order."""
    start = reader.cursor
    for _ in range(3):
        await put(store)
        await reader.read()
    await store.table.delete({"Key": key(changes.LOG, f"{2:012d}")})
    first = await store.changes(start)
    assert len(first.entries) == 1
    assert (await store.changes(str(first.cursor))).reset


async def backup_of(store: FreshStore) -> list[dict[str, Any]]:
    """Return all items of the table."""
    request = {"TableName": store.table.name, "ConsistentRead": True}
    items: list[dict[str, Any]] = (await store.client.call("Scan", request))["Items"]
    return items


async def restore(store: FreshStore, backup: list[dict[str, Any]]) -> None:
    """Put the table back as it was. The service restores into a new table, which may have the old name."""
    kept = [(item["PK"], item["SK"]) for item in backup]
    newer = [item for item in await backup_of(store) if (item["PK"], item["SK"]) not in kept]
    await store.table.delete_many([{"PK": item["PK"], "SK": item["SK"]} for item in newer])
    for item in backup:
        await store.client.call("PutItem", {"TableName": store.table.name, "Item": item})


@pytest.mark.parametrize("ended", [True, False], ids=["at the end", "after a change"])
async def test_a_restored_backup_resets_readers(
    store: FreshStore, reader: Reader, clock: ManualClock, *, ended: bool
) -> None:
    """The numbers after the backup are given again, to other changes. A reader would pass over them."""
    await put(store)
    await reader.read()
    before, backup = reader.cursor, await backup_of(store)
    await put(store)
    await reader.read()
    after = str((await store.changes()).cursor) if ended else reader.cursor
    await restore(store, backup)
    assert (await store.changes(after)).reset
    clock.advance(1)
    job_id = await put(store)
    assert [change.job_id for change in await Reader(store, before).read()] == [job_id]
    assert (await store.changes(after)).reset


async def test_a_cursor_whose_item_has_expired_is_still_of_this_feed(
    store: FreshStore, reader: Reader, clock: ManualClock
) -> None:
    await put(store)
    await reader.read()
    await store.table.delete({"Key": key(changes.LOG, f"{await changes.last_number(store.table):012d}")})
    assert await reader.read() == []
    job_id = await put(store)
    assert [change.job_id for change in await reader.read()] == [job_id]


async def test_readers_that_begin_at_the_same_time_begin_the_same_feed(programs: Programs) -> None:
    stores = [await programs.another() for _ in range(4)]
    for store in stores:
        store.table.recording_age = 0.0
    pages = await asyncio.gather(*(store.changes() for store in stores))
    assert len({page.cursor.life for page in pages}) == 1


async def test_each_reader_waits_until_all_processes_record(programs: Programs) -> None:
    """Also a reader that comes while the one that began the recording is still waiting."""
    loop = asyncio.get_running_loop()

    async def time_of_first_read(store: DynamoStore) -> float:
        store.table.recording_age = 0.2
        began = loop.time()
        await store.changes(starts=True)
        return loop.time() - began

    first, second = await programs.another(), await programs.another()
    waiting = asyncio.create_task(time_of_first_read(first))
    while not await recording_of(second):  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)
    assert await time_of_first_read(second) >= 0.2
    assert await waiting >= 0.2


async def recording_of(store: DynamoStore) -> Any:
    return (await store.table.get(halts.ours(store.table)) or {}).get(journal.RECORDING)


# -- the first reader begins while others write ---------------------------------------------------------------

PAUSE = 60.0  # seconds

Act = Callable[[DynamoStore], Awaitable[object]]


async def insert_one(store: DynamoStore) -> object:
    return await store.insert([new_job()])


async def insert_many(store: DynamoStore) -> object:
    return await store.insert([new_job() for _ in range(3)])


async def complete(store: DynamoStore) -> object:
    (held,) = await claim(store)
    return await store.ack([Outcome(held.id, held.token, Move.DONE, ref=held.ref)])


async def kill(store: DynamoStore) -> object:
    (held,) = await claim(store)
    return await store.ack([Outcome(held.id, held.token, Move.DEAD, failure=Failure("E", "no"), ref=held.ref)])


async def cancel_by_hand(store: DynamoStore) -> object:
    return await store.change(Action.CANCEL, Filter(), By("ana"))


async def write_document(store: DynamoStore) -> object:
    return await store.write([Bundle((Write(Key("schedules", "", "s"), "{}", recorded=True),))])


async def halt(store: DynamoStore) -> object:
    return await store.halt(Halt("ana", "incident", to_datetime(store.clock.now())))


WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchExecuteStatement")
LATE_ACTS: list[tuple[Act, str]] = [  # each with what names the write in its request
    (insert_one, "job#"), (insert_many, "job#"), (complete, "completed"), (kill, "dead_letter"),
    (cancel_by_hand, "cancelled"), (write_document, "schedules"), (halt, "incident"),
]  # fmt: skip


def pause_before(store: DynamoStore, write: str, pause: Callable[[], Awaitable[None]]) -> list[str]:
    """Pause this program before its next write of this kind: it has looked whether changes are recorded."""
    whole, met = store.client.call, list[str]()

    async def call(operation: str, request: Mapping[str, Any]) -> Answer:
        if operation in WRITES and write in str(request) and not met:
            met.append(operation)
            await pause()
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]
    return met


@pytest.mark.parametrize(("act", "write"), LATE_ACTS, ids=lambda given: getattr(given, "__name__", ""))
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_reader_is_told_of_a_write_that_was_paused_when_it_began(
    programs: Programs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, act: Act, write: str, *, guarded: bool
) -> None:
    """Without the second look of the writer, its change would be missing silently."""
    writer, readers = await programs.another(), list[Reader]()
    await join(writer, "w1")
    await put(writer)
    if not guarded:
        monkeypatch.setattr(changes, "LATE", float("inf"))

    async def pause() -> None:
        readers.append(await from_now(programs.first))
        clock.advance(PAUSE)

    met = pause_before(writer, write, pause)
    await act(writer)
    assert met
    page = await programs.first.changes(readers[0].cursor)
    assert page.entries == []
    assert page.reset == guarded


async def test_a_claim_that_was_paused_when_starts_were_asked_for_costs_no_reader_its_place(
    programs: Programs, clock: ManualClock
) -> None:
    """Only its start is missing. A durable subscriber that wants no starts would lose changes by a reset."""
    modest = await from_now(programs.first, starts=False)
    writer, curious = await programs.another(), list[Reader]()
    await join(writer, "w1")
    job_id = await put(writer)

    async def pause() -> None:
        curious.append(await from_now(programs.first))
        clock.advance(PAUSE)

    met = pause_before(writer, "in_progress", pause)
    (held,) = await claim(writer)
    await writer.ack([Outcome(held.id, held.token, Move.DONE, ref=held.ref)])
    assert met
    assert [(change.kind, change.job_id) for change in await modest.read() if change.job_id] == [
        ("created", job_id), ("completed", job_id),
    ]  # fmt: skip
    assert [change.kind for change in await curious[0].read()] == ["completed"]


async def test_a_claim_without_an_answer_costs_no_reader_its_place_when_starts_are_asked_for(
    programs: Programs, clock: ManualClock
) -> None:
    """For example the claim of a worker that stops."""
    reader = await from_now(programs.first, starts=False)
    writer, held_up = await programs.another(), asyncio.Event()
    await join(writer, "w1")

    async def wait() -> None:
        held_up.set()
        await asyncio.Event().wait()

    pause_before(writer, "in_progress", wait)
    job_id = await put(writer)
    claiming = asyncio.create_task(claim(writer))
    await held_up.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await from_now(programs.first)
    clock.advance(PAUSE)  # its next write looks whether starts are recorded
    assert await put(writer)
    assert job_id in {change.job_id for change in await reader.read()}


async def test_a_write_that_was_in_time_resets_no_reader(programs: Programs, clock: ManualClock) -> None:
    """It took effect before the first reader had waited long enough, so it precedes the reader's cursor."""
    writer, readers = await programs.another(), list[Reader]()

    async def pause() -> None:
        readers.append(await from_now(programs.first))
        clock.advance(1.5 * writer.table.recording_age)

    assert pause_before(writer, "job#", pause) == []
    await put(writer)
    clock.advance(PAUSE)
    job_id = await put(writer)
    assert [change.job_id for change in await readers[0].read()] == [job_id]


async def test_a_write_without_an_answer_is_told_of_when_a_reader_has_begun(
    programs: Programs, clock: ManualClock
) -> None:
    """It may take effect at any time: for example it was held up on its way."""
    writer = await programs.another()
    whole = writer.client.call

    async def give_up(operation: str, request: Mapping[str, Any]) -> Answer:
        if operation == "PutItem" and "job#" in str(request):
            raise StoreUnavailable
        return await whole(operation, request)

    writer.client.call = give_up  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await put(writer)
    writer.client.call = whole  # type: ignore[method-assign]
    reader = await from_now(programs.first)
    clock.advance(PAUSE)
    await put(writer)
    assert (await programs.first.changes(reader.cursor)).reset


async def test_the_recording_has_ended_before_a_writer_with_a_fast_clock_ends_it(
    store: FreshStore, reader: Reader, clock: ManualClock
) -> None:
    """Otherwise a reader could extend a recording that the writer has left already."""
    clock.advance(RETENTION / 1000 - 1)
    job_id = await put(store)
    assert [change.job_id for change in await reader.read()] == [job_id]
    clock.advance(RETENTION / 1000 + 1)
    assert store.table.recording is not None
    assert (await store.changes(reader.cursor)).reset


# -- the guards -----------------------------------------------------------------------------------------------


@pytest.fixture
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With "none", the test runs with the guard; otherwise without it."""
    for name in ("taken", "log_items", "HINT_PATIENCE"):
        monkeypatch.setattr(changes, name, getattr(changes, name))  # as it was, in the end
    remove_guard(request.param)
    return str(request.param)


@pytest.mark.parametrize("guard", ["none", "journal"], indirect=True)
async def test_a_change_during_a_move_is_not_lost(programs: Programs, reader: Reader, guard: str) -> None:
    """The mover has read the journal, then the job changes again, and then the mover empties the journal."""
    held = await running(programs.first)
    other = await programs.another()
    other.table.recording_age = 0.0

    async def then_it_changes(_: Mapping[str, Any], answer: Answer) -> Answer:
        await report_progress(other, held, 1)
        return answer

    met = twist_once(programs.first, "BatchGetItem", "'journal'", then_it_changes)
    kinds = [str(change.kind) for change in await reader.read()]
    assert met
    assert (kinds == ["created", "started", "progressed"]) == (guard == "none")


@pytest.mark.parametrize("guard", ["none", "number"], indirect=True)
async def test_a_journal_that_was_moved_and_has_the_same_length_again_is_read_again(
    programs: Programs, reader: Reader, guard: str
) -> None:
    """The mover has read the journal, then another one moves it, and the job changes again."""
    job_id = await put(programs.first)
    other = Reader(await programs.another(), reader.cursor)

    async def then_it_is_moved(_: Mapping[str, Any], answer: Answer) -> Answer:
        await other.read()
        assert [held.id for held in await claim(other.store)] == [job_id]
        return answer

    await join(other.store, "w1")
    met = twist_once(programs.first, "BatchGetItem", "'journal'", then_it_is_moved)
    kinds = [str(change.kind) for change in await reader.read() if change.job_id == job_id]
    assert met
    assert (kinds == ["created", "started"]) == (guard == "none")


@pytest.mark.parametrize("guard", ["none", "number"], indirect=True)
async def test_two_movers_do_not_give_the_same_number(store: FreshStore, reader: Reader, guard: str) -> None:
    """Both have read the last number. They move different jobs, because they have seen different hints."""
    table = store.table
    jobs, moves, seen = [], [], set[str]()
    for _ in range(2):
        jobs.append(await put(store))
        hints = [hint for hint in await all_hints(store) if hint["SK"] not in seen]
        seen.update(hint["SK"] for hint in hints)
        moves.append(await changes.plan(table, hints))
    with suppress(Cancelled):
        for move in moves:
            await table.transact(*changes.log_items(table, move), *move.actions)
    found = [change.job_id for change in await reader.read()]
    assert (found == jobs) == (guard == "none")


@pytest.mark.parametrize("guard", ["none", "hint"], indirect=True)
async def test_a_hint_stays_until_its_change_is_seen(store: FreshStore, reader: Reader, guard: str) -> None:
    job_id = await put(store)
    twist_once(store, "BatchGetItem", "job#", without_items)
    assert await reader.read() == []
    seen = [change.job_id for change in await reader.read()]
    assert (seen == [job_id]) == (guard == "none")


# -- a process that is killed -------------------------------------------------------------------------------


def kill_after(store: DynamoStore, writes: int) -> None:
    """Let the process write this often to workers and the feed; then no request of it arrives any more."""
    whole, left = store.client.call, [writes]

    async def call(operation: str, request: Mapping[str, Any]) -> Answer:
        is_write = operation not in {"GetItem", "BatchGetItem", "Query"}
        if is_write and ("workers#" in str(request) or "hints#" in str(request)):
            left[0] -= 1
        if left[0] < 0:
            raise StoreUnavailable
        return await whole(operation, request)

    store.client.call = call  # type: ignore[method-assign]


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_a_worker_joins_in_the_feed_exactly_if_it_is_there(
    programs: Programs, reader: Reader, writes: int
) -> None:
    writer = await programs.another()
    kill_after(writer, writes)
    with suppress(StoreUnavailable):
        await join(writer, "w2")
    is_there = "w2" in {worker.id for worker in (await programs.first.stats()).workers}
    assert [change.data["worker"] for change in await reader.read()] == ["w2"] * is_there
    assert is_there == (writes > 0)


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_a_worker_leaves_in_the_feed_exactly_if_it_is_gone(
    programs: Programs, clock: ManualClock, reader: Reader, writes: int
) -> None:
    """If it is not, it is found dead later, and must not have left before."""
    writer = await programs.another()
    await join(writer, "w2")
    await reader.read()
    kill_after(writer, writes)
    with suppress(StoreUnavailable):
        await writer.leave("w2")
    await by_silence(programs.first, clock, "w2")
    kinds = [change.kind for change in await reader.read()]
    assert kinds == [ChangeKind.WORKER_LEFT if writes else ChangeKind.WORKER_DIED]


async def test_a_worker_that_another_process_has_written_meanwhile_is_recorded_once(
    programs: Programs, reader: Reader
) -> None:
    writer, other = await programs.another(), await programs.another()

    async def join_first(_: Mapping[str, Any], answer: Answer) -> Answer:
        await join(other, "w2")
        return answer

    met = twist_once(writer, "GetItem", "workers#", join_first)
    await join(writer, "w2")
    assert met
    assert [change.kind for change in await reader.read()] == [ChangeKind.WORKER_JOINED]
