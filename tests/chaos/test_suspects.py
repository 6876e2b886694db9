"""A job whose worker died is a suspect: what it may kill next is itself and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.app import Mainspring
from mainspring.job import Outcome, Status
from mainspring.stores.protocol import Filter
from mainspring.stores.sqlite import SqliteStore
from mainspring.worker import Worker


async def test_a_suspect_starts_when_all_that_ended_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    app = Mainspring(store)
    worker = Worker(app)
    completed_before: list[int] = []

    @app.task()
    async def suspect() -> None:
        completed_before.append(await store.count(Filter(statuses=(Status.COMPLETED,))))
        if len(completed_before) == 3:
            worker.stop()

    write = store.ack

    async def ack_slowly(outcomes: Sequence[Outcome]) -> list[Status | None]:
        await asyncio.sleep(0.05)
        return await write(outcomes)

    await suspect.enqueue_many([{}, {}, {}])
    make_suspects(tmp_path / "jobs.db")
    monkeypatch.setattr(store, "ack", ack_slowly)
    async with asyncio.timeout(30):
        await worker.serve()
    await app.close()
    assert completed_before == [0, 1, 2]


def make_suspects(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE mainspring_jobs SET crashes = 1")
