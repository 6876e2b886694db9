"""Bulk changes while the workers that carry them out are killed: each job is changed, and none twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from mainspring import ChangeFilter, ChangeKind, Mainspring
from mainspring.bulk.change import BulkChange, BulkState
from mainspring.job import Status
from mainspring.stores.protocol import Filter
from tests.chaos.conftest import Chaos, dynamodb_if_long
from tests.chaos.dynamodb import DynamoDatabase
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until
from tests.chaos.workers import WORKER, replace

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKERS = 2
CANARY = 15  # more than one step
SECONDS = 2.0  # that the whole change takes at its pace
KILLS = 8


@dynamodb_if_long
def test_a_bulk_change_changes_each_job_once_whatever_is_killed(nursery: Nursery, chaos: Chaos) -> None:
    rng = chaos.rng()
    lease = 5_000 if isinstance(nursery.database, DynamoDatabase) else 300  # milliseconds, longer than a step takes
    ids, others, bulk_id, cursor = asyncio.run(begin(nursery, chaos.size(200, 1_000)))

    def worker() -> Process:
        return nursery.start("bulk:work", settings=nursery.database.watchful, step_lease=lease, **WORKER)

    def progress() -> BulkChange:
        return asyncio.run(bulk(nursery, bulk_id))

    workers = [worker() for _ in range(WORKERS)]
    wait_until(lambda: progress().state is BulkState.WAITING, workers[0].said)
    assert progress().changed == CANARY
    asyncio.run(go_on(nursery, bulk_id))
    for enough in range(CANARY, len(ids), len(ids) // KILLS):
        wait_until(lambda: progress().changed >= enough, workers[0].said)  # noqa: B023
        replace(workers, rng.randrange(WORKERS), worker)
    wait_until(lambda: progress().ended, workers[0].said)
    asyncio.run(check(nursery, ids, others, bulk_id, cursor))


async def begin(nursery: Nursery, number: int) -> tuple[list[str], list[str], str, str]:
    """Enqueue jobs for later, and start to cancel those of one tag. Return also where the change feed is."""
    async with Mainspring(nursery.database.url) as app:
        changes = app.changes(where=ChangeFilter(kinds=(ChangeKind.CANCELLED,)))
        cursor = await changes.begin()
        ids, others = await enqueue(app, "doomed", number), await enqueue(app, "spared", 20)
        doomed = Filter(tags=("doomed",))
        while (await app.bulk.start("cancel", doomed, dry_run=True)).total < number:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # until the millisecond is over in which they were enqueued
        started = await app.bulk.start("cancel", doomed, canary=CANARY, pace=number / SECONDS)
        return ids, others, started.id, cursor


async def enqueue(app: Mainspring, tag: str, number: int) -> list[str]:
    jobs = [await app.prepare("quick", {}, allow_unknown=True, delay=3600, tags=[tag]) for _ in range(number)]
    return [handle.id for handle in await app.enqueue_all(jobs)]


async def bulk(nursery: Nursery, bulk_id: str) -> BulkChange:
    async with Mainspring(nursery.database.url) as app:
        return await app.bulk.get(bulk_id)


async def go_on(nursery: Nursery, bulk_id: str) -> None:
    async with Mainspring(nursery.database.url) as app:
        await app.bulk.go_on(bulk_id)


async def check(nursery: Nursery, ids: Sequence[str], others: Sequence[str], bulk_id: str, cursor: str) -> None:
    async with Mainspring(nursery.database.url) as app:
        ended = await app.bulk.get(bulk_id)
        assert (ended.state, ended.changed, ended.looked_at) == (BulkState.DONE, len(ids), len(ids))
        [entry] = await app.audit(operation=bulk_id, action="cancel")
        assert entry.count == len(ids)
        cancelled = [job.id async for job in app.jobs.all(Filter(statuses=(Status.CANCELLED,)))]
        assert Counter(cancelled) == Counter(ids)
        assert await app.jobs.count(Filter(tags=("spared",), statuses=(Status.PENDING,))) == len(others)
        told: Counter[str] = Counter()
        async for change in app.changes(after=cursor, where=ChangeFilter(kinds=(ChangeKind.CANCELLED,))):
            told[change.job_id or ""] += 1
            if told.total() == len(ids):
                break
        assert told == Counter(ids)
