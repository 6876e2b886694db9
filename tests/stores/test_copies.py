"""From every real store into every other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from mainspring import copying
from mainspring.copying import Copy, Step
from mainspring.errors import Failure
from mainspring.job import Move, Outcome, Status
from mainspring.stores.protocol import COPIER, Filter, Severity, Store
from mainspring.stores.records import Kind
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, end, new_job, put, put_many, running
from tests.conformance.transfer import all_of, everything, fill
from tests.dynamodb import FreshStore
from tests.postgres import RecycledStore, dsn, servers
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow  # real servers

Make = Callable[[ManualClock], Store]


def sqlite(clock: ManualClock) -> Store:
    return SqliteStore(fresh_database(), clock=clock)


def postgres(name: str) -> Make:
    return lambda clock: RecycledStore(name, clock=clock)


def dynamodb(clock: ManualClock) -> Store:
    return FreshStore(clock=clock)


SQL: dict[str, Make] = {"sqlite": sqlite, **{f"postgres {name}": postgres(name) for name in servers()}}
MAKERS: dict[str, Make] = {**SQL, "dynamodb": dynamodb}
PAIRS = [(source, target) for source in SQL for target in SQL] + [("sqlite", "dynamodb"), ("dynamodb", "sqlite")]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
async def pair(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[tuple[Store, Store]]:
    source, target = (MAKERS[name](clock) for name in request.param)
    await source.open()
    await target.open()
    yield source, target
    await source.close()
    await target.close()


async def test_all_of_it_arrives_and_the_target_is_sound(pair: tuple[Store, Store], clock: ManualClock) -> None:
    source, target = pair
    await fill(source, clock)
    held = [record for record in await all_of(source, Kind.LIVE) if record["status"] == Status.RUNNING]
    await source.ack([Outcome(record["id"], record["token"], Move.RELEASE) for record in held])
    broken = await running(source, queue="broken", payload=json.dumps("x" * 50_000))
    nul = "\0" if isinstance(source, SqliteStore) else "0"  # PostgreSQL cannot keep it
    await end(source, broken, Move.RETRY, failure=Failure("OSError", f"b{nul}d", f"tr{nul}ce"), delay=10**6)
    many = 60 if {type(source), type(target)} & {FreshStore} else 1200  # more than a page; the local DynamoDB is slow
    await put_many(source, many, queue="many", tags=("bulk",))
    report = await Copy(source, target, history=True).run()
    assert report.done
    assert {kind: tally.differing for kind, tally in report.kinds.items() if tally.differing} == {}
    before, after = await everything(source), await everything(target)
    for kind in set(Kind) - {Kind.AUDIT}:
        assert after[kind] == {key: copying.portable(record) for key, record in before[kind].items()}
    assert (await target.stats()).queues == (await source.stats()).queues
    assert [finding for finding in await target.diagnose() if finding.severity is Severity.ERROR] == []
    assert await claim(source, queue="*") == []
    runs = await claim(target, 5000, queue="many")
    assert len({job.id for job in runs}) == len(runs) == many
    assert await target.count(Filter(tags=("bulk",))) == many


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
async def test_a_transaction_that_has_enqueued_is_waited_for(level: str) -> None:
    """Its job was accepted before the halt could refuse it; it must not stay behind in a halted store."""
    source, target = RecycledStore(), SqliteStore(fresh_database())
    await source.open()
    waited = asyncio.Event()

    def tell(step: Step) -> None:
        if step.what.startswith("waiting"):
            waited.set()

    async with await psycopg.AsyncConnection.connect(dsn()) as connection:
        await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        job = new_job()
        await source.insert([job], connection=connection)
        await put(source)
        task = asyncio.create_task(Copy(source, target, tell=tell).run())
        await waited.wait()
        assert await target.count(Filter()) == 0
        await connection.commit()
    report = await task
    assert report.done
    assert [copied.id for copied in await target.get([job.id])] == [job.id]
    halt = await copying.system_halt(source)
    assert halt is not None
    assert halt.actor == COPIER
    await source.close()
    await target.close()
