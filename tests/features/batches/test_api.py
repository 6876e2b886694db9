"""Jobs that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import Context, Discard, Filter, Mainspring, Retention, Status
from mainspring.errors import BatchNotFound, ConfigurationError, IllegalMove
from mainspring.features.batches import api as batches
from mainspring.features.batches.rules import BatchProgress, BatchState, Tally
from mainspring.job import NewJob
from mainspring.testing import Kit, inline
from tests.worker.working import eventually, working

pytestmark = pytest.mark.slow


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.ran = []  # type: ignore[attr-defined]
    app.followed = []  # type: ignore[attr-defined]

    @app.task(max_attempts=1)
    async def work(name: str, fails: bool = False) -> None:
        app.ran.append(name)  # type: ignore[attr-defined]
        if fails:
            msg = "no use"
            raise Discard(msg)

    @app.task()
    async def follow(ctx: Context, what: str) -> None:
        assert ctx.batch is not None
        app.followed.append((what, ctx.batch.completed, ctx.batch.failed, ctx.batch.cancelled))  # type: ignore[attr-defined]

    return app


def work(app: Mainspring, name: str, *, fails: bool = False, **using: Any) -> NewJob:
    return app.tasks["work"].using(**using).prepare(name=name, fails=fails)


def follow_ups(app: Mainspring) -> dict[str, NewJob]:
    names = ("on_success", "on_failure", "on_finished")
    return {name: app.tasks["follow"].prepare(what=name.removeprefix("on_")) for name in names}


def followed(app: Mainspring) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = sorted(app.followed)  # type: ignore[attr-defined]
    return found


async def test_on_success_and_on_finished_follow_if_all_jobs_complete(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a"), work(app, "b", delay=10)], **follow_ups(app))
    await kit.time.advance(seconds=9)
    assert (followed(app), await batch.progress()) == ([], BatchProgress(batch.id, 2, completed=1))
    assert (await batch.progress()).fraction == 0.5
    await kit.time.advance(seconds=1)
    assert followed(app) == [("finished", 2, 0, 0), ("success", 2, 0, 0)]
    progress = await batch.progress()
    assert (progress.done, progress.fraction, progress.finished, progress.succeeded) == (2, 1.0, True, True)


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_on_failure_follows_if_a_job_fails_or_is_cancelled(app: Mainspring, kit: Kit, how: str) -> None:
    jobs = [work(app, "a"), work(app, "b", fails=how == "fails", delay=5), work(app, "c")]
    batch = await app.batch(jobs, **follow_ups(app))
    await kit.drain()
    if how == "cancelled":
        await app.jobs.cancel(jobs[1].id)
    await kit.time.advance(seconds=5)
    counts = (2, 1, 0) if how == "fails" else (2, 0, 1)
    assert followed(app) == [("failure", *counts), ("finished", *counts)]
    assert not (await batch.progress()).succeeded


async def test_retries_are_waited_for(app: Mainspring, kit: Kit) -> None:
    tries = []

    @app.task(max_attempts=3)
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError

    await app.batch([flaky.prepare()], **follow_ups(app))
    await kit.drain()
    assert followed(app) == []
    await kit.time.advance(hours=1)
    assert followed(app) == [("finished", 1, 0, 0), ("success", 1, 0, 0)]


async def test_an_empty_batch_has_succeeded(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([], **follow_ups(app))
    await kit.drain()
    assert (await batch.progress()).fraction == 1.0
    assert followed(app) == [("finished", 0, 0, 0), ("success", 0, 0, 0)]


async def test_a_batch_without_follow_ups_completes(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a")])
    await kit.drain()
    assert (await batch.progress()).succeeded
    assert (await app.jobs.get(batch.id)).status is Status.COMPLETED


async def test_members_that_exist_already_are_the_ones_waited_for(app: Mainspring, kit: Kit) -> None:
    first = await app.tasks["work"].using(dedupe_key="a", delay=10).enqueue(name="a")
    batch = await app.batch([work(app, "b"), work(app, "again", dedupe_key="a")], **follow_ups(app))
    assert batch.jobs[1] == first.id
    await kit.time.advance(seconds=9)
    assert followed(app) == []
    await kit.time.advance(minutes=2)
    assert (followed(app)[0], app.ran) == (("finished", 2, 0, 0), ["b", "a"])  # type: ignore[attr-defined]


async def test_members_with_one_key_are_one_job(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a", dedupe_key="k"), work(app, "b", dedupe_key="k")], **follow_ups(app))
    assert batch.jobs[0] == batch.jobs[1]
    await kit.drain()
    assert (app.ran, (await batch.progress()).total) == (["a"], 1)  # type: ignore[attr-defined]
    assert followed(app) == [("finished", 1, 0, 0), ("success", 1, 0, 0)]


async def test_members_that_retention_removed_have_finished(app: Mainspring, kit: Kit) -> None:
    short = Retention(completed=1, dead=1)
    await app.batch([work(app, "a", retention=short), work(app, "b", delay=60)], **follow_ups(app))
    await kit.time.advance(seconds=30)
    await app.store.prune()
    await kit.time.advance(seconds=30)
    assert followed(app) == [("finished", 1, 0, 0), ("success", 1, 0, 0)]


async def test_a_batch_is_found_by_its_id(app: Mainspring, kit: Kit) -> None:
    made = await app.batch([work(app, "a"), work(app, "b")])
    found = await app.batches.get(made.id)
    assert (found.id, found.jobs) == (made.id, made.jobs)
    with pytest.raises(BatchNotFound, match="no batch nothing"):
        await app.batches.get("nothing")


async def test_a_batchs_progress_is_kept_for_a_month(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a")])
    await kit.drain()
    await kit.time.advance(days=29)
    await app.store.prune()
    assert (await batch.progress()).completed == 1  # the job itself is long gone
    await kit.time.advance(days=2)
    with pytest.raises(BatchNotFound):
        await batch.progress()


async def test_a_batch_may_have_several_pages_of_jobs(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE_SIZE", 3)
    jobs = [work(app, str(number), fails=number == 4, delay=(number * 7) % 10) for number in range(10)]
    batch = await app.batch(jobs, **follow_ups(app))
    for _ in range(10):
        await kit.time.advance(seconds=1)
        progress = await batch.progress()
        assert progress.done == len(app.ran)  # type: ignore[attr-defined]
    await kit.time.advance(minutes=5)
    assert followed(app) == [("failure", 9, 1, 0), ("finished", 9, 1, 0)]


async def test_a_batch_whose_process_died_during_the_insert_is_not_finished(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not put in many jobs at once: some are there, some never come, and it is not taken for done."""
    insert = app.runtime.pipeline.insert

    async def half(jobs: list[NewJob], connection: Any = None) -> Any:
        await insert([jobs[0], jobs[-1]], connection)
        msg = "the power is gone"
        raise OSError(msg)

    monkeypatch.setattr(app.runtime.pipeline, "insert", half)
    with pytest.raises(OSError, match="power"):
        await app.batch([work(app, "a"), work(app, "b"), work(app, "c")], **follow_ups(app))
    await kit.time.advance(minutes=50)
    assert (followed(app), app.ran) == ([], ["a"])  # type: ignore[attr-defined]
    await kit.time.advance(hours=1)
    assert followed(app) == [("failure", 1, 2, 0), ("finished", 1, 2, 0)]


async def test_a_batch_whose_process_died_before_marking_it_complete_finishes(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writes = app.store.write, []

    async def once(bundles: Any) -> Any:
        writes.append(bundles)
        if len(writes) == 2:
            raise OSError
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", once)
    with pytest.raises(OSError):  # noqa: PT011
        await app.batch([work(app, "a"), work(app, "b", delay=10)], **follow_ups(app))
    await kit.time.advance(seconds=10)
    assert followed(app) == [("finished", 2, 0, 0), ("success", 2, 0, 0)]


async def test_a_batch_runs_to_its_end_inline(app: Mainspring) -> None:
    async with inline(app):
        batch = await app.batch([work(app, "a"), work(app, "b")], **follow_ups(app))
        assert (await batch.progress()).succeeded
    assert followed(app) == [("finished", 2, 0, 0), ("success", 2, 0, 0)]


async def test_follow_ups_run_once_on_every_store(new_app: Callable[[], Mainspring]) -> None:
    apps = [new_app(), new_app()]
    done: list[str] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 3))

    async def follow(ctx: Context, what: str) -> None:
        assert ctx.batch is not None
        done.append(f"{what} {ctx.batch.completed}")

    for app in apps:
        app.task()(work)
        app.task()(follow)
    tasks = apps[0].tasks
    async with working(apps[0]), working(apps[1]):
        jobs = [tasks["work"].prepare(number=number) for number in range(30)]
        following = {name: tasks["follow"].prepare(what=name) for name in ("on_success", "on_failure", "on_finished")}
        batch = await apps[0].batch(jobs, **following)
        assert (await batch.wait(timeout=30)).completed == 30
        await eventually(lambda: len(done) >= 2)
        await eventually(lambda: is_idle(apps[0]))
    assert sorted(done) == ["on_finished 30", "on_success 30"]


async def is_idle(app: Mainspring) -> bool:
    return not await app.jobs.count(Filter(statuses=(Status.PENDING, Status.RUNNING, Status.SUSPENDED)))


# -- listing ---------------------------------------------------------------------------------------------------


async def test_batches_are_listed_newest_first(app: Mainspring, kit: Kit) -> None:
    done = await app.batch([work(app, "a"), work(app, "b", fails=True)])
    await kit.drain()
    waits = await app.batch([work(app, "c", delay=60)])
    left = await app.batch([work(app, "d", delay=60)])
    await app.jobs.cancel(left.id)
    page = await app.batches.list()
    assert [(batch.id, batch.state, batch.total, batch.ended) for batch in page.batches] == [
        (left.id, BatchState.ABANDONED, 1, None),
        (waits.id, BatchState.RUNNING, 1, None),
        (done.id, BatchState.FINISHED, 2, Tally(completed=1, failed=1)),
    ]
    assert ({batch.created_at for batch in page.batches}, page.cursor) == ({app.now()}, None)
    await kit.time.advance(days=8)
    await app.store.prune()
    assert [batch.state for batch in (await app.batches.list()).batches[1:]] == [
        BatchState.FINISHED
    ] * 2  # jobs are gone


async def test_a_batch_that_was_never_completely_inserted_is_abandoned(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(jobs: list[NewJob], connection: Any = None) -> Any:
        raise OSError

    monkeypatch.setattr(app.runtime.pipeline, "insert", nothing)
    with pytest.raises(OSError):  # noqa: PT011
        await app.batch([work(app, "a")])
    (only,) = (await app.batches.list()).batches
    assert only.state is BatchState.COMING_IN
    with pytest.raises(IllegalMove, match="still coming in"):
        await app.batches.cancel(only.id)
    await kit.time.advance(hours=2)
    assert [batch.state for batch in (await app.batches.list()).batches] == [BatchState.ABANDONED]
    assert (await app.batches.cancel(only.id)).count == 0


async def test_batches_are_listed_page_by_page_on_every_store(new_app: Callable[[], Mainspring]) -> None:
    async with new_app() as app:
        assert (await app.batches.list()).batches == []
        made = [(await app.batch([])).id for _ in range(5)]
        found, cursor = [], None
        while True:
            page = await app.batches.list(limit=2, cursor=cursor)
            found += [batch.id for batch in page.batches]
            if (cursor := page.cursor) is None:
                break
        assert found == made[::-1]
        last = await app.batches.list(limit=3, cursor=made[3])
        assert ([batch.id for batch in last.batches], last.cursor) == (made[2::-1], None)


# -- cancelling -----------------------------------------------------------------------------------------------


async def test_cancelling_a_batch_cancels_its_unfinished_jobs(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE_SIZE", 3)
    jobs = [work(app, str(number), delay=60 * (number % 2)) for number in range(8)]
    batch = await app.batch(jobs, **follow_ups(app))
    await kit.drain()
    assert (await app.batches.cancel(batch.id, dry_run=True)).changed == 4
    seen: list[int] = []
    result = await app.batches.cancel(batch.id, reason="no use", actor="ana", on_progress=seen.append)
    assert (result.changed, result.requested, seen) == (4, 0, [1, 3, 4])
    assert (await app.jobs.get(jobs[1].id)).reason == "no use"
    (entry,) = await app.audit()
    assert (entry.actor, entry.action, entry.reason, entry.count) == ("ana", "cancel", "no use", 4)
    await kit.drain()
    assert followed(app) == [("failure", 4, 0, 4), ("finished", 4, 0, 4)]
    assert (await batch.progress()).finished
    assert (await batch.cancel()).count == 0


async def test_cancelling_a_finished_batch_changes_nothing(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a")], **follow_ups(app))
    await kit.drain()
    assert (await batch.cancel()).count == 0
    await kit.drain()
    assert followed(app) == [("finished", 1, 0, 0), ("success", 1, 0, 0)]
    with pytest.raises(BatchNotFound, match="no batch nothing"):
        await app.batches.cancel("nothing")


async def test_nothing_follows_if_its_own_job_is_cancelled_too(app: Mainspring, kit: Kit) -> None:
    batch = await app.batch([work(app, "a", delay=60)], **follow_ups(app))
    await app.jobs.cancel(batch.id)
    assert (await batch.cancel()).changed == 1
    await kit.time.advance(hours=2)
    assert (followed(app), app.ran) == ([], [])  # type: ignore[attr-defined]


async def test_cancelling_a_batch_stops_its_running_jobs_on_every_store(new_app: Callable[[], Mainspring]) -> None:
    app, started = new_app(), asyncio.Event()
    done: list[tuple[str, int]] = []

    @app.task()
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    @app.task()
    async def follow(ctx: Context, what: str) -> None:
        assert ctx.batch is not None
        done.append((what, ctx.batch.cancelled))

    following = {name: follow.prepare(what=name) for name in ("on_success", "on_failure", "on_finished")}
    async with working(app):
        batch = await app.batch([endless.prepare(), endless.using(delay=600).prepare()], **following)
        await started.wait()
        result = await batch.cancel()
        assert (result.changed, result.requested) == (1, 1)
        assert (await batch.wait(timeout=30)).cancelled == 2
        await eventually(lambda: len(done) >= 2)
        reasons = {(await app.jobs.get(job_id)).reason for job_id in batch.jobs}
    assert (sorted(done), reasons) == ([("on_failure", 2), ("on_finished", 2)], {f"its batch {batch.id} was cancelled"})


# -- chains ---------------------------------------------------------------------------------------------------


async def test_a_chain_runs_one_after_the_other(app: Mainspring, kit: Kit) -> None:
    handles = await app.chain(work(app, "a", delay=5), work(app, "b"), work(app, "c", priority="urgent"))
    await kit.drain()
    assert app.ran == []  # type: ignore[attr-defined]
    await kit.time.advance(seconds=5)
    assert app.ran == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert [(await handle.get()).attempts for handle in handles] == [1, 1, 1]


async def test_a_link_that_comes_after_others_waits_for_them_too(app: Mainspring, kit: Kit) -> None:
    (other,) = await app.enqueue_all([work(app, "other", delay=60)])
    await app.chain(work(app, "a"), work(app, "b", after=[other]), work(app, "c"))
    await kit.drain()
    assert app.ran == ["a"]  # type: ignore[attr-defined]
    await kit.time.advance(seconds=60)
    assert app.ran == ["a", "other", "b", "c"]  # type: ignore[attr-defined]


async def test_the_rest_of_a_chain_is_cancelled_if_a_job_fails(app: Mainspring, kit: Kit) -> None:
    handles = await app.chain(work(app, "a"), work(app, "b", fails=True), work(app, "c"), work(app, "d"))
    await kit.drain()
    statuses = [(await handle.get()).status for handle in handles]
    assert statuses == [Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED, Status.CANCELLED]


async def test_chains_are_made_of_new_jobs(app: Mainspring, kit: Kit) -> None:
    assert await app.chain() == []
    with pytest.raises(ConfigurationError, match="dedupe key"):
        await app.chain(work(app, "a", dedupe_key="a"), work(app, "b"))
