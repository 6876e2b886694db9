"""Connections break, servers restart: the store goes on by itself, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.events import StoreBack, StoreLost
from mainspring.job import Move, ProgressReport, Status
from mainspring.stores.numbers import Measure
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.store import BUSY_CLAIM
from mainspring.stores.protocol import Filter, Severity
from tests.conformance.numbers import total
from tests.conformance.scenario import (
    claim,
    claim_one,
    end,
    join,
    new_job,
    outcome,
    put,
    put_many,
    running,
    status_of,
)
from tests.postgres import Server, installed
from tests.stores.postgres.cutting import Line, cut_line
from tests.stores.postgres.several import Stores
from tests.worker.working import all_logs, ended, eventually, fields_of, record, working

ours = pytest.mark.skipif("MAINSPRING_TEST_PG" in os.environ, reason="that server is not ours to stop, or far away")


async def is_sound(store: PostgresStore) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in await store.diagnose())


# -- cut while idle -------------------------------------------------------------------------------


async def test_connections_that_were_cut_while_idle_are_not_noticed(store: PostgresStore, stores: Stores) -> None:
    await join(store, "w1")
    assert stores.terminate() >= 1
    await put(store, dedupe_key="a")
    stores.terminate()
    await put(store)
    stores.terminate()
    first, second = await claim(store)
    stores.terminate()
    assert await end(store, first, Move.DONE) is Status.COMPLETED
    stores.terminate()
    assert not (await store.heartbeat("w1", {second.id: second.token})).lost
    stores.terminate()
    assert await end(store, second, Move.RETRY) is Status.RETRYING
    stores.terminate()
    assert await store.count(Filter()) == 2
    assert await is_sound(store)


def test_connections_of_a_process_with_many_files_are_known_too(stores: Stores) -> None:
    """select() takes no number above 1023."""
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]

    async def main() -> None:
        store = await stores.another()
        await put(store)
        assert len(await claim(store)) == 1
        await stores.close()

    try:
        asyncio.run(main())
    finally:
        for file in files:
            os.close(file)


# -- cut in the middle ----------------------------------------------------------------------------

LOCK = "LOCK TABLE {s}.jobs IN ACCESS EXCLUSIVE MODE"
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"


async def cut_in_the_middle(stores: Stores, work: Awaitable[Any]) -> Any:
    """End its connection while it waits for a locked table."""
    with stores.connect() as other:
        other.execute(LOCK.replace("{s}", stores.schema).encode())
        running = asyncio.ensure_future(work)
        await eventually(lambda: stores.ask(WAITING, stores.schema))
        stores.terminate()
    return await running


async def test_an_enqueue_that_was_cut_is_repeated(store: PostgresStore, stores: Stores) -> None:
    await cut_in_the_middle(stores, put(store))
    await cut_in_the_middle(stores, put(store, dedupe_key="a"))
    assert len(await claim(store)) == 2
    assert await is_sound(store)


async def test_other_calls_that_were_cut_are_repeated_at_once(store: PostgresStore, stores: Stores) -> None:
    """On a fresh connection: the caller does not notice."""
    await join(store, "w1")
    job = await put(store)
    (held,) = await cut_in_the_middle(stores, claim(store))
    assert held.id == job
    mine = {held.id: held.token}
    assert not (await cut_in_the_middle(stores, store.heartbeat("w1", mine))).lost
    assert (await cut_in_the_middle(stores, store.reap())).takeovers == []
    assert await cut_in_the_middle(stores, store.report([ProgressReport(held.id, held.token, 0.5, "")])) == {held.id}
    assert await cut_in_the_middle(stores, store.wake({"nothing": 1})) == {"nothing": 0}
    assert await cut_in_the_middle(stores, end(store, held, Move.DONE)) is Status.COMPLETED
    assert await is_sound(store)


async def test_a_read_that_was_cut_is_repeated_at_once(store: PostgresStore, stores: Stores) -> None:
    job = await put(store)
    assert [found.id for found in await cut_in_the_middle(stores, store.get([job]))] == [job]
    assert len((await cut_in_the_middle(stores, store.find(Filter()))).jobs) == 1
    assert await cut_in_the_middle(stores, store.count(Filter())) == 1
    assert (await cut_in_the_middle(stores, store.stats())).due == {"default": 1}


async def test_connections_that_break_one_by_one_are_not_an_outage(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs go on, and neither log nor events speak of a store that is away."""
    app = Mainspring(await stores.another())
    lost = record(app, StoreLost, StoreBack)

    @app.task()
    async def work(n: int) -> int:
        await asyncio.sleep(0.005)
        return n

    with all_logs(caplog):
        async with working(app, concurrency=4, prefetch=0) as worker:
            jobs = [(await work.enqueue(n=n)).id for n in range(40)]
            for _ in range(30):
                await cut_one(stores)
                jobs.append((await work.enqueue(n=0)).id)
            await ended(app, *jobs)
            await eventually(lambda: not worker.parts.runs.held)
        await app.runtime.bus.flush()
    for event in ("store_unavailable", "store_back", "heartbeat_failed", "loop_failed", "ack_failed"):
        assert not fields_of(caplog, event), event
    assert lost == []


async def cut_one(stores: Stores) -> None:
    """End one session, if possible in the middle of a statement."""
    pids = stores.ask(f"{SESSIONS} ORDER BY state = 'active' DESC, random() LIMIT 1", stores.schema)
    for pid in pids:
        stores.ask("SELECT pg_terminate_backend(%s)", pid)
    await asyncio.sleep(0.02)


# -- cut at the worst moment ----------------------------------------------------------------------


@pytest.fixture
async def line(stores: Stores, store: PostgresStore, tmp_path: Path) -> AsyncIterator[Line]:
    async with cut_line(stores, tmp_path) as line:
        yield line


@pytest.fixture
async def far(line: Line, stores: Stores) -> AsyncIterator[PostgresStore]:
    """At the other end of the line."""
    store = PostgresStore(line.dsn, schema_name=stores.schema)
    await store.open()
    yield store
    await store.close()


Cut = Callable[[Line], None]


def before_the_commit(line: Line) -> None:
    line.before = b"COMMIT"


def before_its_answer(line: Line) -> None:
    line.after = b"COMMIT"


def before_the_statement(line: Line) -> None:
    """That commits by itself."""
    line.before = b"CALL"


def before_the_answer_of_the_statement(line: Line) -> None:
    line.after = b"CALL"


@ours
@pytest.mark.parametrize(
    ("cut", "options"),
    [
        (before_the_statement, {}),
        (before_the_answer_of_the_statement, {}),
        (before_the_commit, {"dedupe_key": "a"}),
        (before_its_answer, {"dedupe_key": "a"}),
    ],
)
async def test_an_enqueue_with_a_lost_answer_counts_once(
    store: PostgresStore, far: PostgresStore, line: Line, cut: Cut, options: dict[str, Any]
) -> None:
    cut(line)
    job = await put(far, **options)
    assert (line.before, line.after) == (None, None)
    assert [held.id for held in await claim(store)] == [job]
    assert (await store.stats()).queues[0].by_status == {Status.RUNNING: 1}


@ours
async def test_a_claim_that_did_not_get_through_is_repeated(
    store: PostgresStore, far: PostgresStore, line: Line
) -> None:
    await join(far, "w1")
    job = await put(store)
    line.before = b".take("
    assert [held.id for held in await claim(far)] == [job]
    assert line.before is None


@ours
async def test_a_claim_with_a_lost_answer_is_given_back(store: PostgresStore, far: PostgresStore, line: Line) -> None:
    await join(far, "w1")
    job = await put(store)
    line.after = b"options_"
    assert await claim(far) == []  # the second try finds nothing: the first one has it
    assert line.after is None
    await far.heartbeat("w1", {})
    assert Measure.STARTED not in await total(store)
    assert [held.id for held in await claim(far)] == [job]
    assert (await total(store))[Measure.STARTED] == 1
    assert await is_sound(store)


@ours
async def test_a_claim_is_not_lost_because_its_worker_could_not_say_that_it_is_busy(
    store: PostgresStore, far: PostgresStore, line: Line
) -> None:
    await join(far, "w1")
    await eventually(lambda: far._is_notified("w1"))
    assert await claim(far, limit=BUSY_CLAIM) == []  # it is marked as idle now
    jobs = await put_many(store, BUSY_CLAIM)
    line.before = b"SET idle"
    assert [held.id for held in await claim(far, limit=BUSY_CLAIM)] == jobs
    assert line.before is None
    await far.leave("w1")


@ours
@pytest.mark.parametrize("way", ["before", "after"])
async def test_an_ack_with_a_lost_answer_is_recognised_when_repeated(
    store: PostgresStore, far: PostgresStore, line: Line, way: str
) -> None:
    held, failed = await running(far), await running(far)
    setattr(line, way, {"before": b".complete(", "after": b"SELECT 1"}[way])
    assert await end(far, held, Move.DONE) is Status.COMPLETED
    assert (line.before, line.after) == (None, None)
    setattr(line, way, b"COMMIT")
    follow_up = new_job()
    acks = [outcome(failed, Move.DONE, follow_ups=(follow_up,))]
    assert await far.ack(acks) == [Status.COMPLETED]
    assert (line.before, line.after) == (None, None)
    assert await far.ack(acks) == [None]
    assert (await claim_one(store)).id == follow_up.id
    assert await is_sound(store)


# -- a server that goes away and comes back -------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be stopped. What it has committed it keeps, whichever way it ends."""
    server = Server(installed()[0], settings=("fsync=off",))
    server.start()
    yield server
    server.remove()


@ours
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["in order", "in a crash"])
async def test_a_worker_goes_on_after_a_restart_of_the_server(server: Server, schema: str, how: signal.Signals) -> None:
    app = Mainspring(PostgresStore(server.dsn, schema_name=schema))
    ran: Counter[int] = Counter()
    accepted: dict[int, str] = {}

    @app.task()
    async def work(number: int) -> None:
        ran[number] += 1
        await asyncio.sleep(0.001)

    async def enqueue() -> None:
        for number in range(1_000_000):
            try:
                accepted[number] = (await work.enqueue(number=number)).id
            except StoreUnavailable:
                await asyncio.sleep(0.01)

    async def progress() -> None:
        before = len(ran)
        await eventually(lambda: len(ran) > before + 30, within=60)

    async with working(app, concurrency=5):
        enqueuing = asyncio.create_task(enqueue())
        await progress()
        await asyncio.to_thread(server.stop, how)
        await asyncio.to_thread(server.start)
        await progress()
        enqueuing.cancel()
        await asyncio.gather(enqueuing, return_exceptions=True)
        await eventually(lambda: accepted.keys() <= ran.keys(), within=60)
    assert set(ran.values()) == {1}
    assert await app.store.count(Filter(statuses=(Status.COMPLETED,))) == len(ran)
    await app.close()


@ours
@pytest.mark.slow
async def test_while_it_is_down_errors_say_so_and_no_secret(server: Server, schema: str) -> None:
    store = PostgresStore(server.dsn.replace("mainspring@", "mainspring:s3cret@"), schema_name=schema)
    await join(store, "w1")
    held = await running(store)
    await asyncio.to_thread(server.stop, signal.SIGINT)
    try:
        for work in (put(store), claim(store), end(store, held, Move.DONE), store.heartbeat("w1", {}), store.stats()):
            with pytest.raises(StoreUnavailable, match="the database cannot be reached") as down:
                await work
            assert "s3cret" not in f"{down.value}{down.value.__cause__}{store.url}"
    finally:
        await asyncio.to_thread(server.start)
    assert await end(store, held, Move.DONE) is Status.COMPLETED
    assert await status_of(store, held.id) is Status.COMPLETED
    await store.leave("w1")
    await store.close()


@pytest.mark.parametrize("url", ["postgresql://ana:s3cret@127.0.0.1:1/hotel", "host=127.0.0.1 port=1 password=s3cret"])
async def test_an_unreachable_server_raises_without_the_password(url: str) -> None:
    store = PostgresStore(url)
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*127\.0\.0\.1") as down:
        await store.open()
    assert "s3cret" not in f"{down.value}{down.value.__cause__!r}{store.url}"
