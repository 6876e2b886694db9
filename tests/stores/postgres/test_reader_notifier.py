"""Idle readers of the change feed are notified, and commits that follow each other closely share a notification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mainspring.stores.feed import EVERY_CHANGE
from mainspring.stores.postgres import PostgresStore, listen
from tests.conformance.scenario import put_many
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

NEVER = 3600.0  # seconds


class IdleReader:
    """A reader in another program. It looks at the feed only when it is notified."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._notified = asyncio.Event()
        self._cursor = ""
        self.seen: list[str | None] = []

    async def follow(self) -> None:
        async with self._store.watching(self._notified.set):
            self._cursor = str((await self._store.changes()).cursor)
            while True:
                self._notified.clear()
                while (page := await self._store.changes(self._cursor)).entries:
                    self.seen += [change.job_id for change in page.changes(EVERY_CHANGE)]
                    self._cursor = str(page.cursor)
                await self._notified.wait()


@pytest.fixture
async def reader(stores: Stores) -> AsyncIterator[IdleReader]:
    reader = IdleReader(await stores.another())
    task = asyncio.create_task(reader.follow())
    await eventually(lambda: stores.ask("SELECT 1 FROM {s}.readers WHERE idle") == [1])
    yield reader
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_first_commit_is_announced_at_once_and_the_next_one_at_the_latest_when_the_store_is_closed(
    stores: Stores, reader: IdleReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "NOTIFY_INTERVAL", NEVER)
    writer = await stores.another()
    first = await put_many(writer, 2)
    await eventually(lambda: sorted(reader.seen, key=str) == sorted(first))
    await eventually(lambda: stores.ask("SELECT 1 FROM {s}.readers WHERE idle") == [1])
    second = await put_many(writer, 2)
    await writer.close()
    await eventually(lambda: sorted(reader.seen, key=str) == sorted(first + second))


async def test_the_commits_of_a_burst_reach_a_reader_that_looks_only_when_it_is_notified(
    stores: Stores, reader: IdleReader
) -> None:
    writer = await stores.another()
    jobs = [job for _ in range(30) for job in await put_many(writer, 2)]
    await eventually(lambda: sorted(reader.seen, key=str) == sorted(jobs))


async def test_a_busy_process_asks_for_idle_readers_less_often_than_it_commits(
    stores: Stores, reader: IdleReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def ask(transaction: object) -> None:
        asked.append("asked")

    monkeypatch.setattr(listen, "NOTIFY_INTERVAL", NEVER)
    monkeypatch.setattr(listen, "notify_readers", ask)
    writer = await stores.another()
    for _ in range(10):
        await put_many(writer, 2)
    assert asked == ["asked"]
    await writer.close()
    assert asked == ["asked"] * 2


async def test_a_program_that_ends_without_closing_the_store_announces_its_last_commit(
    stores: Stores, reader: IdleReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "NOTIFY_INTERVAL", NEVER)
    jobs: list[str] = []

    async def program() -> None:
        writer = await stores.another()
        jobs.extend(await put_many(writer, 2) + await put_many(writer, 2))

    await asyncio.to_thread(asyncio.run, program())
    await eventually(lambda: sorted(reader.seen, key=str) == sorted(jobs))
