"""What a claim reads and how many jobs come in: what only this store does in its own way."""

from __future__ import annotations

import pytest

from mainspring.job import Move, Status
from mainspring.stores.postgres import PostgresStore, insertion
from mainspring.stores.postgres.claims import LowWater
from mainspring.stores.protocol import Filter, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, new_job, outcome, put
from tests.stores.postgres.several import Stores, read_so_far
from tests.worker.working import eventually

ODD = 'tab\there, line\nthere\r, back\\slash, "quotes", {braces}, \\N and \\. and ünïcödé'


async def test_many_jobs_come_in_as_they_are(store: PostgresStore) -> None:
    jobs = [
        new_job(
            queue="odd" if number % 2 else "even", target=("guest", ODD), tags=(ODD, "", "null"), options='{"a": 1}'
        )
        for number in range(insertion.COPY_THRESHOLD)
    ]
    assert all(inserted.created for inserted in await store.insert(jobs))
    taken = (await store.claim("w1", [Want("odd", 1000), Want("even", 1000)])).jobs
    assert {claimed.id for claimed in taken} == {job.id for job in jobs}
    assert {(job.target, job.tags, job.options) for job in taken} == {(("guest", ODD), (ODD, "", "null"), '{"a": 1}')}
    counts = {counts.queue: counts.by_status for counts in (await store.stats()).queues}
    assert counts == {queue: {Status.RUNNING: insertion.COPY_THRESHOLD // 2} for queue in ("odd", "even")}


async def test_many_jobs_that_are_inserted_again_come_in_once(store: PostgresStore) -> None:
    jobs = [new_job() for _ in range(insertion.COPY_THRESHOLD)]
    await store.insert(jobs[: insertion.COPY_THRESHOLD // 2])
    await store.insert(jobs)
    ended = await claim(store, 10)
    await store.ack([outcome(job, Move.DONE) for job in ended])
    await store.insert(jobs)
    assert await store.count(Filter(statuses=(Status.PENDING,))) == insertion.COPY_THRESHOLD - len(ended)
    assert await store.count(Filter()) == insertion.COPY_THRESHOLD


async def test_many_jobs_refused_by_the_server_leave_nothing_behind(store: PostgresStore) -> None:
    jobs = [new_job() for _ in range(insertion.COPY_THRESHOLD)] + [new_job(task="nul \0 in its name")]
    with pytest.raises(Exception, match=r"NUL|0x00"):
        await store.insert(jobs)
    assert await store.count(Filter()) == 0


# -- rows that a long transaction keeps ---------------------------------------------------------------


GONE, CLAIMS = 10_000, 40


async def pages_per_claim(stores: Stores) -> float:
    """Of a store that begins anew."""
    store = await stores.another()
    await store.insert([new_job() for _ in range(CLAIMS)])
    before = sum(pages for pages, _ in read_so_far(stores).values())
    for _ in range(CLAIMS):
        assert len(await claim(store, 1)) == 1
    await store.close()
    await eventually(lambda: not stores.backends())  # the server counts when a connection ends
    return (sum(pages for pages, _ in read_so_far(stores).values()) - before) / CLAIMS


async def test_claims_do_not_pass_over_what_a_long_transaction_keeps(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await stores.another()
    await store.insert([new_job() for _ in range(GONE)])
    with stores.connect() as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1 FROM pg_class LIMIT 1")
        while taken := await claim(store, 1000):
            await store.ack([outcome(job, Move.DONE) for job in taken])
        await store.close()
        bounded = await pages_per_claim(stores)
        monkeypatch.setattr(LowWater, "MAX_PAUSE", 0.0)  # always from the very beginning
        assert bounded < await pages_per_claim(stores) / 3


async def test_a_job_for_an_earlier_time_is_found_all_the_same(stores: Stores) -> None:
    """It comes in after the claims have moved on."""
    clock = ManualClock()
    store = await stores.another(clock=clock)
    clock.advance(60)
    late, jobs = clock.now() - 1000, [new_job(run_at=clock.now()) for _ in range(3)]
    await store.insert(jobs)
    slow = LowWater(clock, cost=10.0)
    store._waters["w1"] = slow
    assert [job.id for job in await claim(store, 1)] == [jobs[0].id]
    slow.cost = 10.0  # as if the look had taken so long
    earlier = await put(store, run_at=late)
    assert [job.id for job in await claim(store, 1)] == [jobs[1].id]
    clock.advance(LowWater.MAX_PAUSE)
    assert [job.id for job in await claim(store, 1)] == [earlier]
