"""The change feed while transactions overlap: what they take early and commit late is neither lost nor reordered.

Two simpler ways to read the feed are here only to be refuted. Each of them fails in a scene that the store's own way
passes. So the scenes would notice if the guard were taken out.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from mainspring.errors import InvalidCursor
from mainspring.job import Move, ProgressReport
from mainspring.stores.documents import By
from mainspring.stores.feed import EVERY_CHANGE, ChangeKind, Cursor
from mainspring.stores.postgres import PostgresStore, changes
from mainspring.stores.protocol import Action, Filter
from tests.conformance.feed import Reader, from_now, ids, shape
from tests.conformance.scenario import join, new_job, outcome, put, running
from tests.postgres import dsn

Lend = psycopg.AsyncConnection[Any]


@pytest.fixture
async def lent() -> AsyncIterator[Lend]:
    """A connection of the application."""
    async with await psycopg.AsyncConnection.connect(dsn()) as connection:
        yield connection
        if not connection.closed:
            await connection.rollback()


@pytest.fixture
async def reader(store: PostgresStore) -> Reader:
    await join(store, "w1")
    return await from_now(store)


class ByNumber:
    """Broken: it remembers the highest number that it has read."""

    STATEMENT = "SELECT number, kind, ids::text[] FROM {schema}.changes WHERE number > %s ORDER BY number"

    def __init__(self, schema: str) -> None:
        self.statement = self.STATEMENT.format(schema=schema)
        self.last = 0

    async def read(self) -> list[tuple[str, str]]:
        async with await psycopg.AsyncConnection.connect(dsn(), autocommit=True) as connection:
            rows = await (await connection.execute(self.statement.encode(), (self.last,))).fetchall()
        self.last = rows[-1][0] if rows else self.last
        return [(kind, job_id) for _, kind, ids, *_ in rows for job_id in ids or ()]


class ByHorizon(ByNumber):
    """Broken: it reads what is older than every open transaction, in the order of the transactions."""

    STATEMENT = """
    SELECT txid::text::bigint, kind, ids::text[], number FROM {schema}.changes
    WHERE txid::text::bigint > %s AND txid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY txid, number
    """


# -- the guard ------------------------------------------------------------------------------------


async def test_an_entry_with_a_lower_number_that_is_committed_later_is_not_lost(
    store: PostgresStore, reader: Reader, lent: Lend
) -> None:
    broken = ByNumber(store.schema)
    await broken.read()
    slow = new_job()
    await store.insert([slow], lent)
    quick = await put(store)
    assert shape(await reader.read()) == [("created", quick)] == await broken.read()
    await lent.commit()
    assert shape(await reader.read()) == [("created", slow.id)]
    assert await broken.read() == []  # it has lost a change


async def test_an_older_transaction_that_changes_a_job_last_comes_last(store: PostgresStore, reader: Reader) -> None:
    broken = ByHorizon(store.schema)
    held = await running(store)
    await reader.read()
    await broken.read()
    async with store.completion(lambda: outcome(held, Move.DONE)) as connection:
        await connection.execute("SELECT pg_current_xact_id()")  # its transaction is the older one
        await store.report([ProgressReport(held.id, held.token, 0.5, "")])
        assert shape(await reader.read()) == [("progressed", held.id)]
        assert await broken.read() == []  # it is held up for as long as the transaction is open
        await store.report([ProgressReport(held.id, held.token, 0.7, "")])
    assert shape(await reader.read()) == [("progressed", held.id), ("completed", held.id)]
    assert await broken.read() == [
        ("completed", held.id), ("progressed", held.id), ("progressed", held.id),
    ]  # it has changed the order  # fmt: skip


async def test_a_read_after_both_transactions_has_them_in_order(store: PostgresStore, reader: Reader) -> None:
    held = await running(store)
    await reader.read()
    async with store.completion(lambda: outcome(held, Move.DONE)) as connection:
        await connection.execute("SELECT pg_current_xact_id()")
        await store.report([ProgressReport(held.id, held.token, 0.5, "")])
        await store.change(Action.CANCEL, Filter(ids=(held.id,)), By("ana"))
    kinds = [change.kind for change in await reader.read()]
    assert kinds == [ChangeKind.PROGRESSED, ChangeKind.CANCEL_REQUESTED, ChangeKind.COMPLETED]


async def test_a_reader_sees_the_others_while_a_transaction_is_open(
    store: PostgresStore, reader: Reader, lent: Lend
) -> None:
    slow = new_job()
    await store.insert([slow], lent)
    for _ in range(5):
        quick = await put(store)
        assert shape(await reader.read()) == [("created", quick)]
    await lent.commit()
    assert shape(await reader.read()) == [("created", slow.id)]
    assert await reader.read() == []


async def test_a_reader_that_resumes_within_a_read_finishes_that_read_first(
    store: PostgresStore, reader: Reader, lent: Lend
) -> None:
    """What was committed meanwhile, with a lower number, comes after it."""
    slow = new_job()
    await store.insert([slow], lent)
    quick = [await put(store) for _ in range(3)]
    page = await store.changes(reader.cursor, limit=1)
    await lent.commit()
    rest = Reader(store, str(page.cursor), page=1)
    assert [change.job_id for change in await rest.read()] == [*quick[1:], slow.id]


async def test_a_reader_meets_another_one_that_has_not_seen_the_same_transactions(
    store: PostgresStore, reader: Reader, lent: Lend
) -> None:
    """What was open for both comes after the meeting; what was open for one of them comes to it before."""
    other = Reader(store, reader.cursor)
    async with await psycopg.AsyncConnection.connect(dsn()) as second:
        slow, slower = new_job(), new_job()
        await store.insert([slow], lent)
        await store.insert([slower], second)
        early = await put(store)
        assert shape(await other.read()) == [("created", early)]
        await lent.commit()
        quick = await put(store)
        assert {change.job_id for change in await reader.read()} == {early, slow.id, quick}
        await second.commit()
    last = await put(store)
    assert {change.job_id for change in await other.read_until(reader.cursor)} == {slow.id, quick}
    assert shape(await other.read()) == [("created", slower.id), ("created", last)] == shape(await reader.read())


@pytest.mark.parametrize("mark", ["0:0:|", "5:3:|", "3:9:2|", "3:9:9|", "3:9:5,4|", f"1:{2**64}:|", "1:2:3:|", "1:٢:|"])
async def test_a_forged_snapshot_is_not_a_cursor(store: PostgresStore, reader: Reader, mark: str) -> None:
    forged = Cursor.parse(reader.cursor)._replace(mark=mark)
    with pytest.raises(InvalidCursor, match="not a cursor"):
        await store.changes(str(forged))


@pytest.mark.parametrize("seed", range(25))
async def test_random_interleavings_lose_and_repeat_nothing(store: PostgresStore, reader: Reader, seed: int) -> None:
    """Transactions begin, insert, set savepoints, commit and roll back at random; readers stop and resume anywhere."""
    rng = random.Random(seed)
    play = Play(store, rng, reader.cursor)
    async with AsyncExitStack() as stack:
        lent = [await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn())) for _ in range(4)]
        for _ in range(60):
            await rng.choice([play.insert, play.insert, play.insert_some, play.end, play.read, play.read])(
                rng.choice(lent)
            )
        for connection in lent:
            await play.end(connection)
    play.limit = 500
    await play.read(None)
    await play.read(None)
    assert sorted(play.seen) == sorted(play.committed)
    everything = await Reader(store, reader.cursor, page=3).read()
    assert sorted(ids(everything)) == sorted(play.ids)


class Play:
    """Overlapping transactions, one reader, and what was committed."""

    def __init__(self, store: PostgresStore, rng: random.Random, cursor: str) -> None:
        self.store, self.rng, self.cursor = store, rng, cursor
        self.limit = 0
        self.open: dict[Lend, list[str]] = {}
        self.committed: list[str] = []
        self.seen: list[str] = []
        self.ids: list[str] = []

    async def insert(self, connection: Lend) -> None:
        job = new_job()
        await self.store.insert([job], connection)
        self.open.setdefault(connection, []).append(job.id)

    async def insert_some(self, connection: Lend) -> None:
        """In a savepoint, which is rolled back or not."""
        jobs, kept = [new_job() for _ in range(3)], self.rng.random() < 0.5
        await connection.execute("SAVEPOINT s")
        await self.store.insert(jobs, connection)
        await connection.execute("RELEASE s" if kept else "ROLLBACK TO s")
        self.open.setdefault(connection, []).extend(job.id for job in jobs if kept)

    async def end(self, connection: Lend) -> None:
        jobs = self.open.pop(connection, [])
        if self.rng.random() < 0.3:
            await connection.rollback()
        else:
            await connection.commit()
            self.committed += jobs

    async def read(self, _: Lend | None) -> None:
        """One page of any size; then go on after any of its changes."""
        page = await self.store.changes(self.cursor, limit=self.limit or self.rng.choice((1, 2, 3, 50)))
        found = list(page.changes(EVERY_CHANGE, Cursor.parse(self.cursor)))
        self.cursor = str(page.cursor)
        if found and not self.limit and self.rng.random() < 0.5:  # it stops in the middle
            found = found[: self.rng.randint(1, len(found))]
            self.cursor = found[-1].cursor
        self.seen += [str(change.job_id) for change in found]
        self.ids += ids(found)


# -- callers' transactions ----------------------------------------------------------------------------


@pytest.mark.parametrize("undo", ["rollback", "savepoint", "close"])
async def test_what_the_caller_rolls_back_is_not_in_the_feed(
    store: PostgresStore, reader: Reader, lent: Lend, undo: str
) -> None:
    kept = new_job()
    if undo == "savepoint":
        await store.insert([kept], lent)
        await lent.execute("SAVEPOINT s")
    await store.insert([new_job(), new_job()], lent)
    if undo == "rollback":
        await lent.rollback()
    elif undo == "savepoint":
        await lent.execute("ROLLBACK TO s")
        await lent.commit()
    else:
        await lent.close()
    assert shape(await reader.read()) == ([("created", kept.id)] if undo == "savepoint" else [])


async def test_a_completion_is_recorded_with_its_commit(store: PostgresStore, reader: Reader) -> None:
    held, failed = await running(store), await running(store)
    await reader.read()
    async with store.completion(lambda: outcome(held, Move.DONE, follow_ups=(new_job(),))):
        assert await reader.read() == []
    assert {change.kind for change in await reader.read()} == {ChangeKind.COMPLETED, ChangeKind.CREATED}
    with pytest.raises(ZeroDivisionError):
        async with store.completion(lambda: outcome(failed, Move.DONE)):
            raise ZeroDivisionError
    assert await reader.read() == []


# -- deleted entries ------------------------------------------------------------------------------------


@pytest.fixture
def only_three(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the feed keep three entries."""
    return lambda: monkeypatch.setattr(changes, "MAX_ENTRIES", 3)


async def test_a_full_feed_loses_its_oldest_entries_and_says_so(
    store: PostgresStore, reader: Reader, only_three: Callable[[], None]
) -> None:
    jobs = [await put(store) for _ in range(6)]
    cursors = [change.cursor for change in await reader.read()]
    only_three()
    await store.prune()
    assert [(await store.changes(cursor)).reset for cursor in cursors] == [True, True, False, False, False, False]
    assert shape(await Reader(store, cursors[2]).read()) == [("created", job_id) for job_id in jobs[3:]]


async def test_a_late_commit_that_is_deleted_at_once_resets_its_readers(
    store: PostgresStore, reader: Reader, lent: Lend, only_three: Callable[[], None]
) -> None:
    """Its entries are older than all that the reader has read since."""
    await store.insert([new_job()], lent)
    for _ in range(6):
        await put(store)
    await reader.read()
    only_three()
    await store.prune()
    assert not (await store.changes(reader.cursor)).reset  # it was not committed yet
    await lent.commit()
    await store.prune()
    assert (await store.changes(reader.cursor)).reset
