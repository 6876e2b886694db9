"""The writer thread: many requests in one commit, each answered for itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError, IllegalMove, StoreBusy, StoreError, SystemHalted
from mainspring.job import Inserted, Move, NewJob, Outcome, ProgressReport, Status
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.protocol import Filter, Severity, Store, Wake
from mainspring.stores.sqlite import SqliteStore, fork, writer
from mainspring.stores.sqlite.connection import WriteLock
from mainspring.stores.sqlite.insertion import LONG_PAYLOAD
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.sqlite.writer import Writer, WriteRequest
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    Bell,
    a_halt,
    claim,
    claim_one,
    end,
    found,
    join,
    look,
    new_job,
    outcome,
    put,
    put_many,
    running,
)

IN_ONE_COMMIT = 50
DEADLINE = 30.0  # seconds

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # from Python 3.12 on, with threads


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each transaction that was tried."""
    sizes: list[int] = []
    commit = Writer._commit

    def count(self: Writer, requests: list[WriteRequest], work: Callable[[Transaction], None]) -> None:
        sizes.append(len(requests))
        commit(self, requests, work)

    monkeypatch.setattr(Writer, "_commit", count)
    return sizes


async def test_jobs_with_dedupe_keys_take_as_few_statements_as_others(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute = Transaction.execute

    def count(self: Transaction, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        statements.append(statement)
        return execute(self, statement, parameters)

    monkeypatch.setattr(Transaction, "execute", count)
    jobs = [new_job(dedupe_key=str(number), dedupe_for=60_000) for number in range(512)]
    answers = await store.write([Bundle((Write(Key("c", "", job.id), "1"),), (job,)) for job in jobs])
    assert answers == [[Inserted(job.id, created=True)] for job in jobs]
    assert len(statements) < 20


@contextmanager
def held_up(store: SqliteStore) -> Iterator[None]:
    """Let requests pile up meanwhile, so that they come into one commit."""
    assert store._threads
    with store._threads.writer._write_connection._lock:
        yield


async def together(store: SqliteStore, *work: Any) -> list[Any]:
    """All of it in one commit; errors are results."""
    with held_up(store):
        first = asyncio.ensure_future(store.claim("w1", []))  # keeps the thread busy with a commit of its own
        await handed_over()
        tasks = [asyncio.ensure_future(call) for call in work]
        await handed_over()
    return (await asyncio.gather(first, *tasks, return_exceptions=True))[1:]


async def handed_over() -> None:
    """Wait until tasks that were just made have asked for their writes, and the loop has handed these over."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def consistent(store: Store) -> bool:
    """Whether the file is consistent, apart from claims of workers that have not joined."""
    findings = [finding for finding in await store.diagnose() if finding.check != "claims"]
    return all(finding.severity is Severity.OK for finding in findings)


# -- group commit ---------------------------------------------------------------------------------


async def test_waiting_requests_go_into_one_commit(store: SqliteStore, commits: list[int]) -> None:
    jobs = [new_job() for _ in range(IN_ONE_COMMIT)]
    answers = await together(store, *(store.insert([job]) for job in jobs))
    assert answers == [[Inserted(job.id, created=True)] for job in jobs]
    assert len(commits) <= 3
    assert await consistent(store)


async def test_requests_of_one_pass_of_the_loop_go_into_one_commit(store: SqliteStore, commits: list[int]) -> None:
    await asyncio.gather(*(put(store) for _ in range(IN_ONE_COMMIT)))
    assert commits == [IN_ONE_COMMIT]


async def test_callers_that_were_answered_together_write_together_again(
    store: SqliteStore, commits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back in different passes of the loop."""
    monkeypatch.setattr(writer, "GATHER_FOR", DEADLINE)

    async def write_again_and_again(passes: int) -> None:
        for _ in range(5):
            await put(store)
            for _ in range(passes):
                await asyncio.sleep(0)

    await asyncio.gather(*(write_again_and_again(number // 4) for number in range(8)))
    assert commits == [8] * 5


async def test_a_caller_does_not_wait_for_others_that_do_not_come(store: SqliteStore, commits: list[int]) -> None:
    await asyncio.gather(*(put(store) for _ in range(8)))
    for _ in range(3):
        await put(store)
    assert commits == [8, 1, 1, 1]


@pytest.mark.parametrize(("limit", "expected"), [(-1.0, 10), (DEADLINE, 1)])
async def test_a_caller_waits_for_others_for_a_limited_time(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, limit: float, expected: int
) -> None:
    """Others come in every pass, but not as many as before."""
    calls: list[object] = []
    hand_over = Writer.hand_over

    def counted(self: Writer, loop: asyncio.AbstractEventLoop) -> None:
        calls.append(loop)
        hand_over(self, loop)

    monkeypatch.setattr(Writer, "hand_over", counted)
    await asyncio.gather(*(put(store) for _ in range(IN_ONE_COMMIT)))
    monkeypatch.setattr(writer, "GATHER_FOR", limit)
    calls.clear()
    puts = []
    for _ in range(10):
        puts.append(asyncio.ensure_future(put(store)))
        await asyncio.sleep(0)
    await asyncio.gather(*puts)
    assert len(calls) == expected


async def test_one_commit_takes_a_limited_number_of_requests(
    store: SqliteStore, commits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_REQUESTS", 10)
    await together(store, *(put(store) for _ in range(35)))
    assert max(commits) == 10
    assert await store.count(Filter()) == 35


async def test_requests_of_one_commit_get_their_own_answers(store: SqliteStore) -> None:
    held = await running(store)
    lost = Outcome("unknown", 1, Move.DONE)
    results = await together(
        store,
        store.insert([new_job(dedupe_key="k"), new_job()]),
        store.ack([lost]),
        store.insert([new_job(dedupe_key="k")]),
        store.ack([outcome(held, Move.DONE), lost]),
        store.insert([]),
    )
    assert [len(result) for result in results] == [2, 1, 1, 2, 0]
    assert results[1] == [None]
    assert results[2] == [Inserted(results[0][0].id, created=False)]
    assert results[3] == [Status.COMPLETED, None]
    assert await consistent(store)


async def test_a_claim_gets_what_came_in_with_it(store: SqliteStore) -> None:
    store._idle = False  # else it would not ask the writer
    claimed, inserted = await together(store, claim(store), put(store))
    assert [held.id for held in claimed] == [inserted]


# -- one bad request ------------------------------------------------------------------------------


def unstorable() -> NewJob:
    return new_job(payload='"a lone surrogate: \ud800"')


async def test_a_bad_request_fails_alone(store: SqliteStore, commits: list[int]) -> None:
    good = [new_job() for _ in range(10)]
    held = await running(store)
    *inserts, bad, illegal, done = await together(
        store,
        *(store.insert([job]) for job in good),
        store.insert([new_job(), unstorable()]),
        store.ack([Outcome("x", 1, Move.CLAIM)]),
        store.ack([outcome(held, Move.DONE)]),
    )
    assert inserts == [[Inserted(job.id, created=True)] for job in good]
    assert isinstance(bad, UnicodeEncodeError)
    assert isinstance(illegal, IllegalMove)
    assert done == [Status.COMPLETED]
    assert sorted(await found(store)) == sorted([held.id, *(job.id for job in good)])
    assert await consistent(store)  # what the bad one had counted is taken back


async def test_an_error_of_sqlite_fails_alone_and_in_our_words(store: SqliteStore) -> None:
    held = await running(store)
    report = ProgressReport(held.id, held.token, cast("float", "half"), "")
    bad, good = await together(store, store.report([report]), put(store))
    assert type(bad) is StoreError
    assert "cannot store TEXT value in REAL column" in str(bad)
    assert set(await found(store)) == {held.id, good}


async def test_an_insert_refused_by_a_pause_does_not_fail_others(store: SqliteStore, clock: ManualClock) -> None:
    await store.halt(a_halt(clock, queue="mail", accept=False))
    refused, accepted = await together(store, put(store, queue="mail"), put(store, queue="sms"))
    assert isinstance(refused, SystemHalted)
    assert await found(store) == [accepted]
    assert await consistent(store)


async def test_a_locked_database_fails_all_alike_and_is_tried_once(
    store: SqliteStore, path: Path, commits: list[int]
) -> None:
    await put(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert {type(answer) for answer in await together(store, put(store), put(store))} == {StoreBusy}
        assert len(commits) <= 3
    assert await store.count(Filter()) == 1


# -- callers --------------------------------------------------------------------------------------


async def test_a_cancelled_caller_does_not_affect_others(store: SqliteStore) -> None:
    with held_up(store):
        impatient = [asyncio.ensure_future(put(store)) for _ in range(10)]
        patient = [asyncio.ensure_future(put(store)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in impatient:
            task.cancel()
    assert len(await asyncio.gather(*patient)) == 10
    assert await store.count(Filter()) == 20
    assert await consistent(store)


async def test_a_halt_of_a_file_that_stays_locked_is_an_error_and_the_store_can_be_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.halting.WRITE_WITHIN", 0.05)
    app = Mainspring(f"sqlite:///{path}")
    await app.store.open()
    write_lock = WriteLock(path)
    with write_lock:  # as by a process that was stopped in the middle of a commit
        with pytest.raises(StoreBusy, match="another process keeps the store locked"):
            await app.halt("incident", wait=0)
        assert await app.halts() == []
        await asyncio.wait_for(app.close(), DEADLINE)
    write_lock.close()


async def test_a_loop_that_closed_does_not_end_the_writer(store: SqliteStore) -> None:
    """It closes between our look at it and our call."""

    class Closed:
        def is_closed(self) -> bool:
            return False

        def get_debug(self) -> bool:
            return False

        def call_soon_threadsafe(self, *_: object) -> None:
            raise RuntimeError("Event loop is closed")

    assert store._threads
    future: asyncio.Future[list[Any]] = asyncio.Future(loop=cast("asyncio.AbstractEventLoop", Closed()))
    store._threads.writer._inbox.put([WriteRequest(lambda _, items: items, [], False, future)])
    assert await put(store)


async def test_a_wake_up_that_fails_does_not_fail_what_was_committed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_descriptors() -> None:
        raise OSError(24, "Too many open files")

    await join(store, "w1")
    monkeypatch.setattr("mainspring.stores.sqlite.liveness.datagram_socket", no_more_descriptors)
    job_id = await put(store)
    assert (await claim_one(store)).id == job_id


async def test_closing_finishes_what_was_asked_for(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    with held_up(store):
        tasks = [asyncio.ensure_future(put(store)) for _ in range(IN_ONE_COMMIT)]
        await asyncio.sleep(0)
        closing_ = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
    await closing_
    ids = await asyncio.gather(*tasks)
    assert sorted(await found(store)) == sorted(ids)  # and it opens again when asked
    await store.close()


async def test_closing_in_the_same_pass_finishes_what_was_asked_for(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    job_id, _ = await asyncio.gather(put(store), store.close())
    assert await found(store) == [job_id]
    await store.close()


async def test_a_call_after_the_end_raises(store: SqliteStore) -> None:
    threads = store._open()
    threads.writer._inbox.put(None)
    with pytest.raises(StoreError, match="closed"):
        await put(store)


@pytest.mark.parametrize("isolation_level", [None, "DEFERRED"])
async def test_jobs_on_the_callers_connection_are_all_there_or_none(
    store: SqliteStore, path: Path, isolation_level: Literal["DEFERRED"] | None
) -> None:
    with closing(sqlite3.connect(path, isolation_level=isolation_level)) as connection:
        if isolation_level:
            connection.execute("BEGIN")
        with pytest.raises(UnicodeEncodeError):
            await store.insert([new_job(), unstorable()], connection)
        connection.commit()
    assert await found(store) == []


async def test_closing_twice_is_fine(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    await store.open()
    await store.close()
    await store.close()


async def test_the_last_one_leaves_one_file(path: Path) -> None:
    store = SqliteStore(path)
    await put(store)
    await store.close()
    assert [entry.name for entry in path.parent.glob("jobs.db*") if entry.name != "jobs.db-lock"] == ["jobs.db"]


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LONG_PAYLOAD - 1, LONG_PAYLOAD, LONG_PAYLOAD + 1, 1_000_000])
@pytest.mark.parametrize("letter", ["x", "ß", "🦊"])
async def test_payloads_of_every_size_come_back(store: SqliteStore, size: int, letter: str) -> None:
    text = letter * (size - 2)
    job_id = await put(store, payload=f'"{text}"')
    assert (await look(store, job_id)).payload == text
    held = await claim_one(store)
    assert held.payload == f'"{text}"'
    await end(store, held, Move.DONE)
    assert (await look(store, job_id)).payload == text
    assert await consistent(store)


@pytest.mark.parametrize(
    "text", [r"a lone \ud800 surrogate", r"NUL \u0000 inside", "line\u2028end", "\u202eright to left"]
)
async def test_odd_characters_of_json_come_back(store: SqliteStore, text: str) -> None:
    await put(store, payload=f'"{text}"')
    held = await claim_one(store)
    assert held.payload == f'"{text}"'
    await end(store, held, Move.DONE, result=f'"{text}"')
    job = await look(store, held.id)
    assert job.payload == job.result
    assert len(job.payload) == len(job.result) > 5


@pytest.mark.parametrize("odd", ["quote ' and \"", "back\\slash", "new\nline", "%_*?", "🦊"])
async def test_odd_characters_of_names_come_back(store: SqliteStore, odd: str) -> None:
    job_id = await put(store, queue=odd, task=odd, dedupe_key=odd, target=(odd, odd), tags=(odd,))
    (again,) = await store.insert([new_job(queue=odd, task=odd, dedupe_key=odd)])
    assert again == Inserted(job_id, created=False)
    assert await found(store, queues=(odd,), tasks=(odd,), tags=(odd,), target_id=odd) == [job_id]
    held = await claim_one(store, queue=odd)
    assert (held.queue, held.task, held.dedupe_key, held.target, held.tags) == (odd, odd, odd, (odd, odd), (odd,))
    assert await end(store, held, Move.DONE) is Status.COMPLETED
    job = await look(store, job_id)
    assert (job.queue, job.task, job.dedupe_key, job.target, job.tags) == (odd, odd, odd, (odd, odd), (odd,))
    assert await consistent(store)


async def test_an_id_that_comes_twice_is_counted_once(store: SqliteStore) -> None:
    job, other = new_job(tags=("a",)), new_job()
    await store.insert([job, other, job])
    await together(store, store.insert([other]), store.insert([job]), store.insert([new_job()]))
    assert (await store.stats()).queues[0][Status.PENDING] == 3
    assert await consistent(store)


async def test_the_first_of_two_jobs_with_one_id_counts(store: SqliteStore) -> None:
    long = f'"{"x" * 2 * LONG_PAYLOAD}"'
    first, second = new_job(payload=long, queue="a"), new_job(payload='"short"', queue="b", tags=("b",))
    second.id = first.id
    await store.insert([first, second])
    assert (await claim_one(store, queue="*")).payload == long
    assert await found(store, tags=("b",)) == []
    assert await consistent(store)


async def test_a_finished_job_that_is_inserted_again_is_not_run_again(store: SqliteStore) -> None:
    job = new_job()
    await store.insert([job])
    await end(store, await claim_one(store), Move.DONE)
    others = [new_job(), new_job()]
    answers = await store.insert([others[0], job, others[1]])
    assert answers[1] == Inserted(job.id, created=True)
    assert {held.id for held in await claim(store)} == {other.id for other in others}
    assert await consistent(store)


async def test_a_claim_that_finds_nothing_writes_nothing(store: SqliteStore, path: Path) -> None:
    """Else each claim would wake every other worker's poll, and they each other, for ever."""
    await put(store, delay=60_000)
    with closing(sqlite3.connect(path)) as connection:
        before = connection.execute("PRAGMA data_version").fetchone()
        assert await claim(store) == []
        assert await claim(store, queue="*", solo=True) == []
        assert connection.execute("PRAGMA data_version").fetchone() == before


# -- forks ----------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Fork; the child does this and nothing else, least of all pytest's business."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def succeeded(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def insert_in_turns(store: SqliteStore, told: int, tell: int) -> None:
    for _ in range(2):
        asyncio.run(put_some(store))
        os.write(tell, b".")
        os.read(told, 1)
    asyncio.run(put_some(store))


async def put_some(store: Store) -> None:
    await put_many(store, 10)


def test_a_forked_child_writes_on_its_own_and_beyond_its_parents_end(path: Path) -> None:
    store = SqliteStore(path)
    asyncio.run(put_some(store))
    (told, tell_child), (heard, tell_parent) = os.pipe(), os.pipe()
    child = in_child(lambda: insert_in_turns(store, told, tell_parent))
    os.read(heard, 1)
    asyncio.run(put_some(store))
    os.write(tell_child, b".")
    os.read(heard, 1)
    asyncio.run(store.close())  # as if the last one: it would remove the write-ahead log
    os.write(tell_child, b".")
    assert succeeded(child)
    for descriptor in (told, tell_child, heard, tell_parent):
        os.close(descriptor)
    assert rows(path) == 50


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        number: int = connection.execute("SELECT count(*) FROM mainspring_jobs").fetchone()[0]
        return number


async def test_workers_of_the_parent_hear_on_after_a_fork(store: SqliteStore) -> None:
    bell = Bell()
    await join(store, "w1", bell)
    assert await bell.hears(Wake.JOBS)

    assert succeeded(in_child(lambda: asyncio.run(store.close())))
    await put(store)
    assert await bell.hears(Wake.JOBS)
    assert {worker.id for worker in (await store.stats()).workers} == {"w1"}


async def test_a_child_that_was_forked_inside_a_transaction_is_refused_the_database(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "FORK_WAIT", 0.01)
    held = await running(store)

    def try_it() -> None:
        with pytest.raises(ConfigurationError, match="in a transaction when this process was forked"):
            Context().run(asyncio.run, put(SqliteStore(store.file.path)))  # else it is told of the transaction itself

    async with store.completion(lambda: outcome(held, Move.DONE)):
        assert succeeded(in_child(try_it))
    assert (await look(store, held.id)).status is Status.COMPLETED
    await put(store)
