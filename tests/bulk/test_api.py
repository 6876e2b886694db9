"""Changes of many jobs that run in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.bulk.api import ActionName
from mainspring.bulk.change import COLLECTION, BulkChange, BulkState, filter_data, filter_of, from_data, to_data
from mainspring.bulk.timer import COUNT_LEASE, STEP_LEASE, BulkTimer
from mainspring.errors import BulkNotFound, ConfigurationError, CountMoved, Failure, IllegalMove, StoreUnavailable
from mainspring.job import TRANSITIONS, Claim, Move, Outcome, Status
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.protocol import Action, CappedCount, Changed, Filter, Store, Want
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import join
from tests.dynamodb import FreshStore
from tests.postgres import RecycledStore

JOBS = 120
PAGE_SIZE = 50
STORES = ["memory", "sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "dynamodb"))]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Store:
    match request.param:
        case "memory":
            return MemoryStore(clock=clock)
        case "sqlite":
            return SqliteStore(tmp_path / "jobs.db", clock=clock)
        case "postgres":
            return RecycledStore(clock=clock)
        case _:
            return FreshStore(clock=clock)


@pytest.fixture
async def app(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mainspring]:
    monkeypatch.setattr("mainspring.bulk.change.PAGE_SIZE", PAGE_SIZE)
    app = Mainspring(store)

    @app.task
    def greet(name: str) -> None: ...

    async with app:
        await greet.using(delay=60).enqueue_many([{"name": str(number)} for number in range(JOBS)])
        clock.advance(1)
        yield app


async def step(app: Mainspring) -> None:
    """Let a worker do all steps that are due."""
    await app.runtime.timers.run_due()


async def pending(app: Mainspring) -> int:
    return await app.jobs.count(Filter(statuses=(Status.PENDING,)))


ALL = Filter(tasks=("greet",))


async def test_a_bulk_change_changes_all_jobs_that_match(app: Mainspring) -> None:
    change = await app.bulk.start("cancel", ALL, reason="storm", actor="ana", expect=JOBS)
    assert (change.state, change.total, change.progress) == (BulkState.RUNNING, JOBS, 0.0)
    assert await pending(app) == JOBS
    await step(app)
    done = await app.bulk.get(change.id)
    assert (done.state, done.changed, done.looked_at, done.progress) == (BulkState.DONE, JOBS, JOBS, 1.0)
    assert done.ended_at == app.now()
    assert await app.jobs.count(Filter(statuses=(Status.CANCELLED,))) == JOBS
    if not isinstance(app.store, DynamoStore):  # cannot find the jobs of an operation
        assert await app.jobs.count(Filter(operation=change.id)) == JOBS
        page = await app.jobs.find(Filter(operation=change.id), sort="finished", limit=5)
        assert len(page.jobs) == 5


async def test_it_is_in_the_audit_log_as_one_operation(app: Mainspring) -> None:
    change = await app.bulk.start("cancel", ALL, reason="storm", actor="ana")
    await step(app)
    entries = {entry.action: entry for entry in await app.audit()}
    assert entries.keys() == {"bulk.start", "cancel"}
    assert {entry.operation for entry in entries.values()} == {change.id}
    assert (entries["cancel"].count, entries["cancel"].actor, entries["cancel"].reason) == (JOBS, "ana", "storm")


async def test_a_dry_run_only_counts(app: Mainspring) -> None:
    planned = await app.bulk.start("cancel", ALL, dry_run=True)
    assert (planned.state, planned.total) == (BulkState.PLANNED, JOBS)
    await step(app)
    assert await pending(app) == JOBS
    with pytest.raises(BulkNotFound):
        await app.bulk.get(planned.id)


@pytest.mark.parametrize(("expected", "refused"), [(JOBS, False), (115, False), (110, True), (200, True), (0, True)])
async def test_another_number_of_jobs_than_expected_is_refused(app: Mainspring, expected: int, refused: bool) -> None:
    if not refused:
        await app.bulk.start("cancel", ALL, expect=expected)
        return
    with pytest.raises(CountMoved, match=r"120 jobs match, but .* were expected"):
        await app.bulk.start("cancel", ALL, expect=expected)
    assert (await app.bulk.list()).changes == []


async def test_after_the_canary_it_waits_for_a_go_ahead(app: Mainspring) -> None:
    change = await app.bulk.start("cancel", ALL, canary=7)
    assert change.state is BulkState.CANARY
    await step(app)
    waiting = await app.bulk.get(change.id)
    assert (waiting.state, waiting.changed, await pending(app)) == (BulkState.WAITING, 7, JOBS - 7)
    await step(app)
    assert await pending(app) == JOBS - 7
    assert (await app.bulk.go_on(change.id)).state is BulkState.RUNNING
    await step(app)
    assert ((await app.bulk.get(change.id)).state, await pending(app)) == (BulkState.DONE, 0)
    with pytest.raises(IllegalMove, match="is done"):
        await app.bulk.go_on(change.id)


class TestMoreJobsThanARequestCounts:
    """A worker counts them before it begins."""

    @pytest.fixture(autouse=True)
    def _low_cap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mainspring.bulk.api.COUNT_CAP", 20)

    async def test_a_worker_counts_and_goes_on(self, app: Mainspring) -> None:
        change = await app.bulk.start("cancel", ALL, expect=JOBS)
        assert (change.state, change.total, change.progress) == (BulkState.COUNTING, 20, 0.0)
        await step(app)
        done = await app.bulk.get(change.id)
        assert (done.state, done.total, done.changed, await pending(app)) == (BulkState.DONE, JOBS, JOBS, 0)

    async def test_a_canary_comes_after_the_count(self, app: Mainspring) -> None:
        change = await app.bulk.start("cancel", ALL, canary=7)
        await step(app)
        waiting = await app.bulk.get(change.id)
        assert (waiting.state, waiting.total, await pending(app)) == (BulkState.WAITING, JOBS, JOBS - 7)

    async def test_a_number_that_is_already_too_high_is_refused_at_once(self, app: Mainspring) -> None:
        with pytest.raises(CountMoved, match=r"20\+ jobs match, but 19 were expected"):
            await app.bulk.start("cancel", ALL, expect=19)

    @pytest.mark.parametrize("expect", [100, 130])
    async def test_a_number_that_has_moved_lets_it_fail(self, app: Mainspring, expect: int) -> None:
        change = await app.bulk.start("cancel", ALL, expect=expect)
        await step(app)
        failed = await app.bulk.get(change.id)
        assert (failed.state, failed.total, failed.changed) == (BulkState.FAILED, JOBS, 0)
        assert f"120 jobs match, but {expect} were expected" in failed.error
        assert (failed.ended_at, await pending(app)) == (app.now(), JOBS)

    async def test_a_dry_run_is_kept_until_it_is_counted(self, app: Mainspring) -> None:
        change = await app.bulk.start("cancel", ALL, dry_run=True)
        assert (change.state, change.total) == (BulkState.COUNTING, 20)
        await step(app)
        planned = await app.bulk.get(change.id)
        assert (planned.state, planned.total, await pending(app)) == (BulkState.PLANNED, JOBS, JOBS)
        with pytest.raises(IllegalMove, match="is planned"):
            await app.bulk.cancel(change.id)

    async def test_one_that_is_cancelled_while_it_is_counted_does_not_begin(self, app: Mainspring) -> None:
        change = await app.bulk.start("cancel", ALL)
        counts = app.store.count

        async def cancelled_meanwhile(where: Filter) -> int:
            await app.bulk.cancel(change.id)
            return await counts(where)

        store: Any = app.store
        store.count = cancelled_meanwhile
        await step(app)
        store.count = counts
        assert ((await app.bulk.get(change.id)).state, await pending(app)) == (BulkState.CANCELLED, JOBS)

    async def test_a_count_that_was_cut_off_is_repeated(self, app: Mainspring, clock: ManualClock) -> None:
        change = await app.bulk.start("cancel", ALL, expect=JOBS)
        await step_that_is_cut_off(app)
        await step(app)
        assert (await app.bulk.get(change.id)).state is BulkState.COUNTING, "another process waits for the lease"
        clock.advance(COUNT_LEASE / 1000)
        await step(app)
        done = await app.bulk.get(change.id)
        assert (done.state, done.total, done.changed) == (BulkState.DONE, JOBS, JOBS)

    async def test_a_job_that_ends_before_the_count_is_left_alone(self, app: Mainspring, clock: ManualClock) -> None:
        running = await claim_new(app)
        clock.advance(1)
        change = await app.bulk.start("delete", ALL, expect=JOBS)
        clock.advance(1)
        await end(app, running, Move.DONE)
        await step(app)
        done = await app.bulk.get(change.id)
        assert (done.state, done.total, done.changed) == (BulkState.DONE, JOBS, JOBS)
        assert (await app.jobs.get(running.id)).status is Status.COMPLETED

    async def test_queues_and_statuses_are_counted_by_the_stores_counters(self, app: Mainspring) -> None:
        if isinstance(app.store, DynamoStore):
            pytest.skip("its counters lag")
        change = await app.bulk.start("cancel", Filter(queues=("default",)), expect=JOBS)
        assert (change.state, change.total) == (BulkState.RUNNING, JOBS)


async def test_many_jobs_are_counted_at_once_if_the_store_has_few(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store looks at few rows for a count in bounded time; here, at none."""
    count_up_to = app.store.count_up_to

    async def looks_at_no_row(where: Filter, cap: int) -> CappedCount:
        return CappedCount(0, exact=False) if where.tasks else await count_up_to(where, cap)

    monkeypatch.setattr(app.store, "count_up_to", looks_at_no_row)
    assert (await app.bulk.start("cancel", ALL, expect=JOBS)).total == JOBS


async def test_the_pace_spreads_it_over_time(app: Mainspring, clock: ManualClock) -> None:
    change = await app.bulk.start("cancel", ALL, pace=10)
    await step(app)
    assert await pending(app) == JOBS - 10
    await step(app)
    assert await pending(app) == JOBS - 10
    for _ in range(5):
        clock.advance(1)
        await step(app)
    assert await pending(app) == JOBS - 60
    assert (await app.bulk.get(change.id)).progress == 0.5


async def test_the_pace_holds_for_the_canary_too(app: Mainspring, clock: ManualClock) -> None:
    change = await app.bulk.start("cancel", ALL, canary=25, pace=10)
    seen = []
    for _ in range(4):
        await step(app)
        seen.append(JOBS - await pending(app))
        clock.advance(1)
    assert seen == [10, 20, 25, 25]
    assert (await app.bulk.get(change.id)).state is BulkState.WAITING


async def test_a_cancelled_one_stops(app: Mainspring, clock: ManualClock) -> None:
    change = await app.bulk.start("cancel", ALL, pace=10)
    await step(app)
    cancelled = await app.bulk.cancel(change.id, reason="enough")
    clock.advance(10)
    await step(app)
    assert (cancelled.state, await pending(app)) == (BulkState.CANCELLED, JOBS - 10)
    assert (await app.bulk.get(change.id)).changed == 10
    with pytest.raises(IllegalMove, match="is cancelled"):
        await app.bulk.cancel(change.id)


async def test_jobs_that_come_later_are_left_alone(app: Mainspring, clock: ManualClock) -> None:
    await app.bulk.start("delete", ALL, pace=60)
    await step(app)
    await app.tasks["greet"].using(delay=60).enqueue(name="late")
    for _ in range(3):
        clock.advance(1)
        await step(app)
    assert await app.jobs.count() == 1


@pytest.mark.parametrize("move", [Move.DONE, Move.DEAD, Move.RETRY, Move.SNOOZE])
@pytest.mark.parametrize("action", ["delete", "retry"])
async def test_a_job_that_runs_at_the_start_is_left_alone(
    app: Mainspring, clock: ManualClock, action: ActionName, move: Move
) -> None:
    """It ends in a status that the action can change, before its page is reached."""
    if action == "retry":
        await app.jobs.cancel_where(ALL)
    running = await claim_new(app)
    clock.advance(1)
    assert (await app.bulk.start(action, Filter(), dry_run=True)).total == JOBS
    change = await app.bulk.start(action, Filter(), pace=60, expect=JOBS)
    await step(app)
    clock.advance(1)
    await end(app, running, move)
    await step_to_the_end(app, clock)
    done = await app.bulk.get(change.id)
    assert (done.state, done.total, done.changed, done.looked_at) == (BulkState.DONE, JOBS, JOBS, JOBS)
    assert (await app.jobs.get(running.id)).status is TRANSITIONS[Status.RUNNING][move]


@pytest.mark.parametrize("action", ["delete", "retry"])
async def test_a_job_that_another_person_has_retried_is_left_alone(
    app: Mainspring, clock: ManualClock, action: ActionName
) -> None:
    await app.jobs.cancel_where(ALL)
    other = (await app.jobs.find(ALL, limit=1)).jobs[0].id
    clock.advance(1)
    change = await app.bulk.start(action, ALL, pace=60)
    await step(app)
    clock.advance(1)
    await app.jobs.retry(other)
    await app.jobs.cancel(other)
    await step_to_the_end(app, clock)
    assert (await app.bulk.get(change.id)).changed == JOBS - 1
    assert (await app.jobs.get(other)).status is Status.CANCELLED


async def test_a_cancellation_takes_jobs_that_have_started_since(app: Mainspring, clock: ManualClock) -> None:
    waiting = await app.tasks["greet"].enqueue(name="last")
    clock.advance(1)
    change = await app.bulk.start("cancel", ALL, pace=60, expect=JOBS + 1)
    await step(app)
    clock.advance(1)
    assert (await claim(app)).id == waiting.id
    await step_to_the_end(app, clock)
    assert (await app.bulk.get(change.id)).changed == JOBS + 1
    assert (await app.jobs.get(waiting.id)).cancel_requested


async def claim_new(app: Mainspring) -> Claim:
    await app.tasks["greet"].enqueue(name="running")
    return await claim(app)


async def claim(app: Mainspring) -> Claim:
    await join(app.store, "w1")
    (claimed,) = (await app.store.claim("w1", [Want("default", 1)])).jobs
    return claimed


async def end(app: Mainspring, claimed: Claim, move: Move) -> None:
    failure = Failure("ValueError", "boom") if move in {Move.DEAD, Move.RETRY} else None
    delay = 0 if move in {Move.DONE, Move.DEAD} else 3_600_000
    await app.store.ack([Outcome(claimed.id, claimed.token, move, failure=failure, delay=delay, ref=claimed.ref)])
    await app.store.leave("w1")


async def step_to_the_end(app: Mainspring, clock: ManualClock) -> None:
    for _ in range(3):
        clock.advance(1)
        await step(app)


async def test_a_step_that_was_cut_off_is_repeated_without_repeating_work(app: Mainspring, clock: ManualClock) -> None:
    change = await app.bulk.start("cancel", ALL, pace=50)
    await step_that_is_cut_off(app)
    assert await pending(app) == JOBS - 50
    await step(app)
    assert await pending(app) == JOBS - 50, "another process would have to wait for the lease of the step"
    clock.advance(STEP_LEASE / 1000)
    for _ in range(5):
        clock.advance(1)
        await step(app)
    done = await app.bulk.get(change.id)
    assert (done.state, done.changed, done.looked_at, await pending(app)) == (BulkState.DONE, JOBS, JOBS, 0)


async def test_a_canary_that_was_cut_off_changes_no_more_jobs(app: Mainspring, clock: ManualClock) -> None:
    change = await app.bulk.start("cancel", ALL, canary=7)
    await step_that_is_cut_off(app)
    clock.advance(STEP_LEASE / 1000)
    await step(app)
    waiting = await app.bulk.get(change.id)
    assert (waiting.state, waiting.changed, await pending(app)) == (BulkState.WAITING, 7, JOBS - 7)
    await app.bulk.go_on(change.id)
    await step(app)
    done = await app.bulk.get(change.id)
    assert (done.state, done.changed, done.looked_at, await pending(app)) == (BulkState.DONE, JOBS, JOBS, 0)


@pytest.mark.parametrize("canary", [7, None])
async def test_jobs_that_were_changed_before_the_audit_log_count(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, canary: int | None
) -> None:
    """On DynamoDB, a process can die in between."""
    if not isinstance(app.store, DynamoStore):
        pytest.skip("the audit log is in the commit of the changes")

    async def dies(*_: Any) -> None:
        msg = "killed"
        raise StoreUnavailable(msg)

    change = await app.bulk.start("cancel", ALL, canary=canary)
    with monkeypatch.context() as patched:
        patched.setattr("mainspring.stores.dynamodb.admin.write_entry", dies)
        with pytest.raises(StoreUnavailable):
            await step(app)
    clock.advance(STEP_LEASE / 1000)
    await step(app)
    known = await app.bulk.get(change.id)
    number = canary or JOBS
    assert (known.changed, known.looked_at, await pending(app)) == (number, number, JOBS - number)


@pytest.mark.parametrize("move", [Move.RETRY, Move.DEAD])
async def test_a_retry_that_was_cut_off_retries_each_job_once(app: Mainspring, clock: ManualClock, move: Move) -> None:
    await app.jobs.delete_where(ALL)
    await app.tasks["greet"].enqueue_many([{"name": str(number)} for number in range(5)])
    clock.advance(1)
    ids = await fail_all(app, clock, move)
    change = await app.bulk.start("retry", ALL)
    assert change.total == 5
    await step_that_is_cut_off(app)
    assert await fail_all(app, clock, move) == ids
    clock.advance(STEP_LEASE / 1000)
    await step(app)
    done = await app.bulk.get(change.id)
    assert (done.state, done.changed, done.looked_at, done.total) == (BulkState.DONE, 5, 5, 5)
    assert await app.jobs.count(Filter(statuses=(TRANSITIONS[Status.RUNNING][move],))) == 5


async def test_a_cancellation_that_was_cut_off_asks_running_jobs_once(app: Mainspring, clock: ManualClock) -> None:
    await app.jobs.delete_where(ALL)
    await app.tasks["greet"].enqueue(name="ana")
    await join(app.store, "w1")
    assert len((await app.store.claim("w1", [Want("default", 1)])).jobs) == 1
    clock.advance(1)
    change = await app.bulk.start("cancel", ALL)
    await step_that_is_cut_off(app)
    clock.advance(STEP_LEASE / 1000)
    await step(app)
    done = await app.bulk.get(change.id)
    assert (done.state, done.changed, done.looked_at, done.total) == (BulkState.DONE, 1, 1, 1)


async def fail_all(app: Mainspring, clock: ManualClock, move: Move) -> set[str]:
    """Let a worker claim all jobs that are due, and fail them."""
    await join(app.store, "w1")
    claims = (await app.store.claim("w1", [Want("default", 100)])).jobs
    boom = Failure("ValueError", "boom")
    await app.store.ack(
        [Outcome(claim.id, claim.token, move, failure=boom, delay=3_600_000, ref=claim.ref) for claim in claims]
    )
    await app.store.leave("w1")
    clock.advance(1)
    return {claim.id for claim in claims}


async def step_that_is_cut_off(app: Mainspring) -> None:
    """Do what a process leaves that dies after a page was changed, before the document says so."""
    store: Any = app.store
    write, writes = store.write, 0

    async def dies(bundles: Any) -> Any:
        nonlocal writes
        writes += any(write.key.collection == COLLECTION for bundle in bundles for write in bundle.writes)
        if writes == 2:
            msg = "killed"
            raise StoreUnavailable(msg)
        return await write(bundles)

    store.write = dies
    with pytest.raises(StoreUnavailable):
        await step(app)
    store.write = write


@pytest.mark.parametrize("action", ["cancel", "delete"])
async def test_the_jobs_that_it_has_changed_are_listed(app: Mainspring, clock: ManualClock, action: ActionName) -> None:
    """A process dies after its page, whose jobs are listed once nevertheless."""
    ids = sorted([job.id async for job in app.jobs.all()])
    change = await app.bulk.start(action, ALL)
    assert (await app.bulk.jobs(change.id)).jobs == []
    await step_that_is_cut_off(app)
    first = await app.bulk.jobs(change.id, limit=40)
    assert [affected.id for affected in first.jobs] == ids[:40]
    assert {affected.job and affected.job.status for affected in first.jobs} == {
        Status.CANCELLED if action == "cancel" else None
    }
    clock.advance(STEP_LEASE / 1000)
    await step(app)
    rest = await app.bulk.jobs(change.id, limit=JOBS, cursor=first.cursor)
    assert ([affected.id for affected in rest.jobs], rest.cursor) == (ids[40:], None)


async def test_two_workers_do_not_do_the_same_step(app: Mainspring) -> None:
    change = await app.bulk.start("cancel", ALL, pace=10)
    document = (await app.store.due("bulk")).documents
    timer = BulkTimer(app.runtime.services, app.jobs)
    await timer.fire(document, app.store.clock.now())
    await timer.fire(document, app.store.clock.now())
    assert (await app.bulk.get(change.id)).changed == 10


@pytest.mark.parametrize("canary", [None, 15])
async def test_a_process_that_was_paused_in_a_step_changes_nothing_more(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, canary: int | None
) -> None:
    """Another process has done the step meanwhile, or the change was cancelled."""
    bulk_change = await app.bulk.start("cancel", ALL, canary=canary, pace=10)
    change = app.store.change

    async def paused(*args: Any, **options: Any) -> Changed:
        monkeypatch.undo()
        clock.advance(STEP_LEASE / 1000)
        if canary is None:
            await app.bulk.cancel(bulk_change.id)
        else:
            await step(app)
        return await change(*args, **options)

    monkeypatch.setattr(app.store, "change", paused)
    await step(app)
    known = await app.bulk.get(bulk_change.id)
    expected = 10 if canary else 0
    assert (known.changed, known.looked_at, await pending(app)) == (expected, expected, JOBS - expected)


async def test_bulk_changes_are_listed_newest_first(app: Mainspring) -> None:
    ids = [(await app.bulk.start("retry", ALL)).id for _ in range(3)]
    page = await app.bulk.list(limit=2)
    assert [change.id for change in page.changes] == ids[:0:-1]
    rest = await app.bulk.list(limit=2, cursor=page.cursor)
    assert ([change.id for change in rest.changes], rest.cursor) == (ids[:1], None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expect": -1}, "expect is -1"),
        ({"canary": 0}, "canary is 0"),
        ({"pace": 0}, "pace is 0"),
        ({"pace": "x"}, "pace is 'x'"),
        ({"expect": "3"}, "expect is '3'"),
        ({"canary": 1.5}, "canary is 1.5"),
        ({"canary": True}, "canary is True"),
        ({"action": "edit"}, "cannot 'edit' jobs"),
    ],
)
async def test_wrong_options_are_refused(app: Mainspring, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await app.bulk.start(**{"action": "cancel", "where": ALL, **options})


async def test_an_unknown_one_is_not_found(app: Mainspring) -> None:
    with pytest.raises(BulkNotFound, match="there is no bulk change nothing"):
        await app.bulk.cancel("nothing")


def test_its_stored_form_has_all_of_it(clock: ManualClock) -> None:
    from mainspring.clock import to_datetime

    now = to_datetime(clock.now())
    where = Filter(statuses=(Status.PENDING,), tags=("vip",), created_after=now, payload={"guest.id": 7}, worker="w1")
    change = BulkChange(
        "1", Action.RETRY, where, "ana", "why", BulkState.DONE, 5, now, pace=2.5, canary=3, ended_at=now
    )
    assert from_data(to_data(change)) == change
    assert filter_of(filter_data(Filter())) == Filter()
