"""The store in memory: what differs from the store in a file."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, StoreError
from mainspring.job import Move, Outcome
from mainspring.stores.connect import connect
from mainspring.stores.protocol import Filter, Severity, Store, Wake
from mainspring.stores.sqlite import MemoryStore
from mainspring.stores.sqlite.memory import create_database
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, end, join, look, new_job, put, put_many, running
from tests.in_memory import execute


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


async def test_it_uses_the_machines_clock_by_default() -> None:
    store: Store = MemoryStore()
    await put(store)
    assert len(await claim(store)) == 1


async def test_it_creates_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = connect("memory://")
    await join(store, "w1")
    await end(store, await running(store), Move.DONE)
    await store.leave("w1")
    assert list(tmp_path.iterdir()) == []


async def test_two_stores_have_separate_jobs() -> None:
    first, second = connect("memory://"), connect("memory://")
    await put(first)
    assert [await store.count(Filter()) for store in (first, second)] == [1, 0]


async def test_two_stores_have_separate_change_feeds() -> None:
    first, second = connect("memory://"), connect("memory://")
    cursor = str((await first.changes()).cursor)
    await put(second)
    page = await second.changes(cursor)
    assert (page.reset, page.entries) == (True, [])


async def test_jobs_stay_after_it_is_closed(store: MemoryStore) -> None:
    await put(store)
    await store.close()
    await store.open()
    assert await store.count(Filter()) == 1


async def test_a_connection_of_the_caller_is_refused(store: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match="sqlite"):
        await store.insert([new_job()], connection=object())
    with pytest.raises(ConfigurationError, match="sqlite"):
        store.completion(lambda: Outcome("x", 1, Move.DONE))


async def test_diagnose_warns_that_nothing_is_durable(store: MemoryStore) -> None:
    (finding,) = await store.diagnose()
    assert finding.severity is Severity.WARNING
    assert "memory" in finding.message


async def test_changing_a_job_object_after_its_insert_changes_nothing(store: MemoryStore) -> None:
    job = new_job(queue="mail")
    await store.insert([job])
    job.queue = "sms"
    assert (await look(store, job.id)).queue == "mail"


async def test_a_job_does_not_wake_workers_of_other_queues(store: MemoryStore) -> None:
    woken: list[Wake] = []
    await join(store, "w1", woken.append, ("mail",))
    await put(store, queue="sms")
    await asyncio.sleep(0)
    assert woken == []


async def test_jobs_of_one_call_wake_a_worker_once(store: MemoryStore) -> None:
    woken: list[Wake] = []
    await join(store, "w1", woken.append)
    await put_many(store, 100)
    await asyncio.sleep(0)
    assert woken == [Wake.JOBS]


async def test_a_worker_whose_loop_is_closed_does_not_disturb_others(store: MemoryStore) -> None:
    thread = threading.Thread(target=asyncio.run, args=(join(store, "w1"),))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert await put(store)


async def test_threads_with_their_own_loops_share_it(store: MemoryStore) -> None:
    async def run_jobs(worker: str) -> int:
        await join(store, worker)
        await put_many(store, 20)
        done = 0
        for held in await claim(store, 20, worker=worker):
            done += await end(store, held, Move.DONE) is not None
        return done

    numbers = await asyncio.gather(
        *(asyncio.to_thread(lambda worker: asyncio.run(run_jobs(worker)), f"w{number}") for number in range(4))
    )
    await run_jobs("last")
    assert sum(numbers) <= 80
    assert await store.count(Filter()) == 100
    assert await store.under_way() == 0


async def test_an_error_of_sqlite_names_the_store_and_changes_nothing(store: MemoryStore) -> None:
    job_id = await put(store)
    with pytest.raises(StoreError, match="memory://: no such column: missing"):
        execute(store, "UPDATE mainspring_jobs SET status = missing")
    assert [held.id for held in await claim(store)] == [job_id]


def test_a_forked_child_has_its_own_copy(store: MemoryStore) -> None:
    asyncio.run(put(store))
    if (child := os.fork()) == 0:
        asyncio.run(put(store))
        os._exit(asyncio.run(store.count(Filter())))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert asyncio.run(store.count(Filter())) == 1


class WithoutCopies(sqlite3.Connection):
    """As of a build of SQLite that cannot copy a database from and to bytes."""

    @property
    def deserialize(self) -> Any:
        raise AttributeError


@pytest.mark.parametrize("connection", [sqlite3.Connection, WithoutCopies])
def test_it_has_the_same_tables_on_every_build_of_sqlite(
    connection: type[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(create_database()) as database:
        tables = database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    monkeypatch.setattr("sqlite3.connect", partial(sqlite3.connect, factory=connection))
    with closing(create_database()) as database:
        assert database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall() == tables
    assert "mainspring_jobs" in dict(tables)


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_it_is_freed_with_its_last_reference() -> None:
    store = MemoryStore()
    await put(store)
    del store
    gc.collect()
