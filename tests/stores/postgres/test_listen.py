"""Idle workers, and only those, are notified of what other programs do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from mainspring.job import Move
from mainspring.stores.documents import By
from mainspring.stores.postgres import PostgresStore, listen
from mainspring.stores.postgres.listen import channel, describe
from mainspring.stores.protocol import Action, Wake
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    a_halt,
    by_hand,
    by_silence,
    claim,
    claim_one,
    end,
    join,
    put,
    put_many,
    running,
)
from tests.postgres import fresh_schema
from tests.stores.postgres.processes import start
from tests.stores.postgres.several import Ear, Stores, listening
from tests.worker.working import all_logs, eventually, fields_of

ANYTHING = Wake.ALL


async def idle(stores: Stores, store: PostgresStore, worker: str = "w1", queues: tuple[str, ...] = ("default",)) -> Ear:
    """A worker that looked, found nothing, and sleeps."""
    ear = await listening(stores, store, worker, queues)
    assert await claim(store, queue=queues[0], worker=worker) == []
    return ear


class Overheard:
    """All notices that are sent, to whichever worker."""

    def __init__(self, stores: Stores, connection: psycopg.Connection[Any]) -> None:
        self._channel = channel(stores.schema)
        self._connection = connection
        connection.execute(f"LISTEN {self._channel}".encode())

    def so_far(self) -> list[Any]:
        self._connection.execute("SELECT pg_notify(%s, 'marker')", (self._channel,))
        notices = [notice.payload for notice in self._connection.notifies(timeout=0)]
        assert notices.pop() == "marker"
        return [json.loads(notice)["queues"] for notice in notices]


@pytest.fixture
def overheard(stores: Stores, store: PostgresStore) -> Iterator[Overheard]:
    with stores.connect(autocommit=True) as connection:
        yield Overheard(stores, connection)


# -- notices sent ---------------------------------------------------------------------------------


async def test_an_idle_worker_hears_of_a_job_from_another_program(store: PostgresStore, stores: Stores) -> None:
    ear = await idle(stores, store)
    other = await stores.another()
    job = await put(other)
    assert await ear.so_far() == [Wake.JOBS]
    assert (await claim_one(store)).id == job


@pytest.mark.slow
async def test_an_idle_worker_hears_of_a_job_from_another_process(store: PostgresStore, stores: Stores) -> None:
    ear = await idle(stores, store)
    with start("insert", stores) as process:
        await eventually(lambda: ear.heard == [Wake.JOBS])
        printed, _ = process.communicate()
    assert (await claim_one(store)).id == printed.strip()


async def test_workers_look_for_themselves_after_another_has_died(stores: Stores) -> None:
    """It may have died after a commit, before it told them of the jobs that became due by it."""
    clock = ManualClock()
    store = await stores.another(clock=clock)
    ear = await idle(stores, store)
    await join(store, "w2")
    await by_silence(store, clock, "w2")
    assert Wake.ALL in await ear.so_far()


async def test_an_idle_worker_hears_only_of_jobs_of_its_queues(store: PostgresStore, stores: Stores) -> None:
    mail = await idle(stores, store, "w1", ("mail", "post"))
    every = await idle(stores, store, "w2", ("*",))
    await put(store, queue="video")
    await put(store, queue="post")
    assert await mail.so_far() == [Wake.JOBS]
    assert await every.so_far() == [Wake.JOBS, Wake.JOBS]


async def test_names_too_long_for_a_notice_wake_all() -> None:
    assert json.loads(describe(Wake.JOBS, ["a" * 100, *(f"{n:0100}" for n in range(100))]))["queues"] == ["*"]


async def test_every_worker_is_notified_of_a_cancellation(store: PostgresStore, stores: Stores) -> None:
    busy = await listening(stores, store)
    held = await running(store)
    await by_hand(await stores.another(), Action.CANCEL, held.id)
    await eventually(lambda: busy.heard == [Wake.CANCELLATIONS])


async def test_an_idle_worker_hears_of_retries_and_of_the_end_of_a_halt(store: PostgresStore, stores: Stores) -> None:
    held = await running(store, worker="w2")
    ear = await idle(stores, store)
    await end(store, held, Move.RETRY, delay=1000)
    assert await ear.so_far() == [Wake.JOBS]
    await store.halt(a_halt(ManualClock()))
    assert await ear.so_far() == [Wake.HALTS]
    await store.resume(By("ana"))
    assert await ear.so_far() == [Wake.JOBS | Wake.HALTS]


# -- notices not sent-----------------------------------------------------------------------------


async def test_no_notice_is_sent_while_no_worker_is_idle(
    store: PostgresStore, stores: Stores, overheard: Overheard
) -> None:
    await put(store)
    await listening(stores, store)
    await put_many(store, 20)
    assert overheard.so_far() == []
    assert len(await claim(store)) == 21
    assert await claim(store) == []
    await put_many(await stores.another(), 20)
    assert overheard.so_far() == [["default"]]
    assert len(await claim(store)) == 20
    await put(store)
    assert overheard.so_far() == []


async def test_no_notice_is_sent_for_queues_without_workers(
    store: PostgresStore, stores: Stores, overheard: Overheard
) -> None:
    await idle(stores, store)
    await put(store, queue="video")
    await end(store, await claim_one(store, worker="w2", queue="video"), Move.DONE)
    assert overheard.so_far() == []
    await store.leave("w1")
    await put(store)
    assert overheard.so_far() == []


async def test_notices_do_not_reach_other_schemas(store: PostgresStore, stores: Stores) -> None:
    neighbours = Stores(stores.dsn, fresh_schema())
    neighbour = await neighbours.another()
    ear = await idle(neighbours, neighbour)
    await put(store)
    assert await claim(neighbour) == []
    assert await ear.so_far() == []
    assert (await neighbour.stats()).queues == []
    await neighbours.close()


# -- nothing is missed ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_job_that_comes_while_a_worker_falls_asleep_wakes_it(store: PostgresStore, stores: Stores) -> None:
    """Without any poll: a worker that misses one of these waits for ever."""
    ear = await listening(stores, store)
    other = await stores.another()

    async def work() -> None:
        while True:
            ear.heard.clear()
            if await claim(store):
                return
            await eventually(lambda: ear.heard)

    for round_ in range(60):
        await store.heartbeat("w1", {})
        if round_ % 3 == 0:
            await store._mark_idle("w1", idle=False)
        await asyncio.gather(work(), put(other))


async def test_a_worker_that_was_taken_for_dead_looks_again(store: PostgresStore, stores: Stores) -> None:
    """Its mark went with its row: a job inserted in between notified no worker."""
    ear = await idle(stores, store)
    stores.ask("DELETE FROM {s}.workers")
    await put(await stores.another())
    assert await ear.so_far() == []
    await store.heartbeat("w1", {})
    await eventually(lambda: ear.heard == [ANYTHING])
    assert len(await claim(store)) == 1
    assert await claim(store) == []
    ear.heard.clear()
    await put(await stores.another())
    assert await ear.so_far() == [Wake.JOBS]


@pytest.mark.parametrize("noise", ["", "hello", "7", "{}", '{"wake": 1}', '{"wake": 64, "queues": []}', "[1]"])
async def test_a_notice_that_makes_no_sense_wakes_to_be_sure(store: PostgresStore, stores: Stores, noise: str) -> None:
    ear = await idle(stores, store)
    stores.ask("SELECT pg_notify(%s, %s)", channel(stores.schema), noise)
    await put(store)
    assert await ear.so_far() == [ANYTHING, Wake.JOBS]


async def test_a_connection_that_is_lost_alone_is_replaced_at_once(
    stores: Stores, store: PostgresStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "STABLE_AFTER", 0.0)  # it has listened for long enough
    ears = Stores(stores.dsn, f"{stores.schema}_ears")
    worker = await stores.another(listen_dsn=f"{stores.dsn}&application_name={ears.schema}")
    ear = await idle(stores, worker)
    with all_logs(caplog):
        assert ears.terminate() == 1
        await eventually(lambda: ANYTHING in ear.heard)  # it listens again, and looks for what it has missed
        assert not fields_of(caplog, "not_listening")
    assert not any(info.polling for info in (await worker.stats()).workers)


async def test_a_worker_that_cannot_listen_polls_and_logs_it(
    stores: Stores, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    ears = Stores(stores.dsn, f"{stores.schema}_ears")
    worker = await stores.another(listen_dsn=f"{stores.dsn}&application_name={ears.schema}")
    ear = await idle(stores, worker)
    with all_logs(caplog):
        assert ears.terminate() == 1
        await eventually(lambda: fields_of(caplog, "not_listening"))
        job = await put(store)
        await eventually(lambda: ANYTHING in ear.heard)
        assert (await claim_one(worker)).id == job
        await eventually(lambda: fields_of(caplog, "listening_again"))
    (failure,) = fields_of(caplog, "not_listening")
    assert "terminat" in failure["error"]
    assert failure["polling_every"] == 1.0
    ear.heard.clear()
    assert await claim(worker) == []
    await put(store)
    assert await ear.so_far() == [Wake.JOBS]


async def test_a_worker_that_leaves_closes_its_connection(stores: Stores) -> None:
    store = await stores.another()
    await listening(stores, store)
    await listening(stores, store)  # again, as after a restart
    await store.leave("w1")
    await listening(stores, store, "w2")
    await store.close()
    await eventually(lambda: not stores.backends())  # the server takes a moment to see them off
