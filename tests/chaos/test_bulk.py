"""Bulk changes while the workers that carry them out are killed: each job is changed, and none twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from mainspring import ChangeFilter, ChangeKind, Mainspring
from mainspring.bulk.api import ActionName
from mainspring.bulk.change import BulkChange, BulkState
from mainspring.errors import Failure
from mainspring.job import Move, Outcome, Status
from mainspring.stores.protocol import Filter, Want
from tests.chaos.conftest import Chaos, dynamodb_if_long
from tests.chaos.dynamodb import DynamoDatabase
from tests.chaos.processes import Nursery, Process
from tests.chaos.waiting import wait_until
from tests.chaos.workers import WORKER, replace
from tests.conformance.scenario import join

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKERS = 2
CANARY = 15  # more than one step
SECONDS = 2.0  # that the whole change takes at its pace
KILLS = 8
DOOMED, SPARED = Filter(tags=("doomed",)), Filter(tags=("spared",))
KINDS: dict[ActionName, ChangeKind] = {
    "cancel": ChangeKind.CANCELLED,
    "retry": ChangeKind.RETRIED,
    "delete": ChangeKind.DELETED,
}


@dataclass(frozen=True, slots=True)
class Begun:
    action: ActionName
    ids: Sequence[str]
    others: Sequence[str]
    bulk_id: str
    cursor: str  # where the change feed was


@dynamodb_if_long
@pytest.mark.parametrize("action", KINDS)
def test_a_bulk_change_changes_each_job_once_whatever_is_killed(
    nursery: Nursery, chaos: Chaos, action: ActionName
) -> None:
    """Jobs that are retried fail again at once, and would match again."""
    rng = chaos.rng()
    lease = 5_000 if isinstance(nursery.database, DynamoDatabase) else 300  # milliseconds, longer than a step takes
    begun = asyncio.run(begin(nursery, chaos.size(200, 1_000), action))
    ids = begun.ids

    def worker() -> Process:
        return nursery.start("bulk:work", settings=nursery.database.watchful, step_lease=lease, **WORKER)

    def progress() -> BulkChange:
        return asyncio.run(bulk(nursery, begun.bulk_id))

    workers = [worker() for _ in range(WORKERS)]
    wait_until(lambda: progress().state is BulkState.WAITING, workers[0].said)
    assert progress().changed == CANARY
    asyncio.run(go_on(nursery, begun.bulk_id))
    for enough in range(CANARY, len(ids), len(ids) // KILLS):
        wait_until(lambda: progress().changed >= enough, workers[0].said)  # noqa: B023
        replace(workers, rng.randrange(WORKERS), worker)
    wait_until(lambda: progress().ended, workers[0].said)
    asyncio.run(check(nursery, begun))


async def begin(nursery: Nursery, number: int, action: ActionName) -> Begun:
    """Enqueue jobs, and start to change those of one tag: jobs that wait, or that have failed."""
    async with Mainspring(nursery.database.url) as app:
        cursor = await app.changes(where=ChangeFilter(kinds=(KINDS[action],))).begin()
        if action != "retry":
            ids, others = await enqueue(app, "quick", "doomed", number), await enqueue(app, "quick", "spared", 20)
        else:
            ids, others = await enqueue(app, "failing", "doomed", number), await enqueue(app, "failing", "spared", 20)
            await fail_all(app, [*ids, *others])
        while (await app.bulk.start(action, DOOMED, dry_run=True)).total < number:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # until the millisecond is over in which they were enqueued
        started = await app.bulk.start(action, DOOMED, canary=CANARY, pace=number / SECONDS)
        return Begun(action, ids, others, started.id, cursor)


async def enqueue(app: Mainspring, task: str, tag: str, number: int) -> list[str]:
    delay = 3600 if task == "quick" else None
    jobs = [await app.prepare(task, {}, allow_unknown=True, delay=delay, tags=[tag]) for _ in range(number)]
    return [handle.id for handle in await app.enqueue_all(jobs)]


async def fail_all(app: Mainspring, ids: Sequence[str]) -> None:
    """Make half of the jobs dead letters. The others wait for their next attempt."""
    await join(app.store, "w1")
    failed = 0
    while failed < len(ids):
        claims = (await app.store.claim("w1", [Want("default", 100)])).jobs
        outcomes = [
            Outcome(
                claim.id, claim.token, (Move.RETRY, Move.DEAD)[number % 2],
                failure=Failure("RuntimeError", "always"), delay=3_600_000, ref=claim.ref,
            )
            for number, claim in enumerate(claims)
        ]  # fmt: skip
        await app.store.ack(outcomes)
        failed += len(outcomes)
    await app.store.leave("w1")


async def bulk(nursery: Nursery, bulk_id: str) -> BulkChange:
    async with Mainspring(nursery.database.url) as app:
        return await app.bulk.get(bulk_id)


async def go_on(nursery: Nursery, bulk_id: str) -> None:
    async with Mainspring(nursery.database.url) as app:
        await app.bulk.go_on(bulk_id)


async def check(nursery: Nursery, begun: Begun) -> None:
    async with Mainspring(nursery.database.url) as app:
        ended, number = await app.bulk.get(begun.bulk_id), len(begun.ids)
        assert (ended.state, ended.changed, ended.looked_at) == (BulkState.DONE, number, number)
        [entry] = await app.audit(operation=begun.bulk_id, action=begun.action)
        assert entry.count == number
        spared = {Status.RETRYING, Status.DEAD_LETTER} if begun.action == "retry" else {Status.PENDING}
        assert {job.status async for job in app.jobs.all(SPARED)} == spared
        left = [job.id async for job in app.jobs.all(DOOMED)]
        assert Counter(left) == Counter([] if begun.action == "delete" else begun.ids)
        if begun.action == "cancel":
            assert {job.status async for job in app.jobs.all(DOOMED)} == {Status.CANCELLED}
        assert Counter(await listed(app, begun.bulk_id)) == Counter(begun.ids)
        told: Counter[str] = Counter()
        async for change in app.changes(after=begun.cursor, where=ChangeFilter(kinds=(KINDS[begun.action],))):
            told[change.job_id or ""] += 1
            if told.total() == number:
                break
        assert told == Counter(begun.ids)


async def listed(app: Mainspring, bulk_id: str) -> list[str]:
    """Return the jobs that the change says it has changed."""
    page = await app.bulk.jobs(bulk_id, limit=7)
    ids = [affected.id for affected in page.jobs]
    while page.cursor is not None:
        page = await app.bulk.jobs(bulk_id, limit=7, cursor=page.cursor)
        ids += [affected.id for affected in page.jobs]
    return ids
