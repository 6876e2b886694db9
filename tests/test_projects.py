"""Jobs of a project: what they enqueue stays in the project, and their keys do not meet those of others."""

from __future__ import annotations

import pytest

from mainspring import Context, Filter, JobNotFound, Mainspring, Retry
from mainspring.errors import ConfigurationError, IllegalMove
from mainspring.features.debounce.options import Debounce, Throttle
from mainspring.job import NewJob
from mainspring.projects import check_project, key_in, moved, plain_name, queue_in
from mainspring.queue_patterns import project_of
from mainspring.testing.clock import ManualClock
from mainspring.worker import Worker

ACME = "p/acme/*"


@pytest.mark.parametrize(
    ("queue", "project", "plain"),
    [
        ("p/acme/mail", "acme", "mail"),
        ("p/acme/a/b", "acme", "a/b"),
        ("mail", None, "mail"),
        ("p/acme", None, "p/acme"),
        ("p/acme/", None, "p/acme/"),
        ("p//mail", None, "p//mail"),
        ("p/A b/mail", None, "p/A b/mail"),
        ("q/acme/mail", None, "q/acme/mail"),
    ],
)
def test_the_project_of_a_queue(queue: str, project: str | None, plain: str) -> None:
    assert (project_of(queue), plain_name(queue)) == (project, plain)


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "-a", "a" * 41, "ä", None, "a\n"])
def test_a_wrong_name_for_a_project_is_refused(name: str | None) -> None:
    with pytest.raises(ConfigurationError, match="not a name for a project"):
        check_project(name)


def test_names_in_a_project() -> None:
    assert queue_in("acme", "mail") == queue_in("acme", "p/acme/mail") == "p/acme/mail"
    assert key_in("p/acme/mail", "k") == key_in("p/acme/mail", "p/acme/k") == "p/acme/k"
    assert key_in("mail", "k") == "k"
    for other in ("p/b/mail", "p/acme2/mail", "p/acme", "p/"):
        with pytest.raises(ConfigurationError, match="does not belong to project 'acme'"):
            queue_in("acme", other)


def test_a_job_that_cannot_be_moved_is_refused() -> None:
    job = NewJob("1", "t", "{}", queue="q" * 199)
    with pytest.raises(ConfigurationError, match="200"):
        moved(job, "acme")
    with pytest.raises(ConfigurationError, match="dedupe_key"):
        moved(NewJob("1", "t", "{}", dedupe_key="k" * 499), "acme")


async def test_keys_of_two_projects_do_not_meet() -> None:
    app = Mainspring("memory://")

    @app.task
    async def noop(n: int) -> None: ...

    async with app:
        queues = ("mail", "p/a/mail", "p/b/mail")
        throttle, debounce = Throttle("t", per=60), Debounce("d", wait=60)
        for given in ({"dedupe_key": "k"}, {"throttle": throttle}, {"replace": "r"}, {"debounce": debounce}):
            first = [await noop.using(queue=queue, **given).enqueue(1) for queue in queues]
            again = [await noop.using(queue=queue, **given).enqueue(2) for queue in queues]
            assert [job.created for job in first] == [True, True, True], given
            assert [job.id for job in again] == [job.id for job in first], given


async def test_what_a_job_enqueues_stays_in_its_project() -> None:
    app = Mainspring("memory://")

    @app.task(queue="mail")
    async def leaf(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> None:
        await leaf.enqueue(1)
        await leaf.using(queue="p/acme/other").enqueue(2)
        await leaf.using(dedupe_key="k").enqueue(3)
        await app.enqueue("leaf", {"n": 4})
        await app.enqueue_all([leaf.prepare(5)])
        await app.batch([leaf.prepare(6)], on_finished=leaf.prepare(7))
        await app.chain(leaf.prepare(8), leaf.prepare(9))
        await leaf.using(replace="r").enqueue(10)
        ctx.follow_up(leaf.prepare(11))

    @app.task
    async def durable(ctx: Context) -> list[int]:
        child = await ctx.spawn(leaf.prepare(12))
        return await ctx.gather(child, leaf.prepare(13))

    @app.task
    def plain(ctx: Context) -> None:
        leaf.enqueue_sync(14)
        ctx.follow_up(leaf.prepare(15))

    async with app:
        for task in (parent, durable, plain):
            await task.using(queue="p/acme/work").enqueue()
        await Worker(app).drain()
        leaves = [job async for job in app.jobs.all(Filter(tasks=("leaf",)))]
        assert sorted(job.payload["n"] for job in leaves) == list(range(1, 16))
        assert {job.queue for job in leaves} == {"p/acme/mail", "p/acme/other"}
        assert {job.dedupe_key for job in leaves} == {None, "p/acme/k"}
        every = [job async for job in app.jobs.all()]
        assert all(job.queue.startswith("p/acme/") for job in every), every
        assert not [job for job in every if job.failure]
        (batch,) = (await app.batches.within(ACME).list()).batches
        assert (await app.batches.within("p/other/*").list()).batches == []
        assert batch.total == 1


async def test_a_job_cannot_enqueue_into_another_project() -> None:
    app = Mainspring("memory://")

    @app.task(retry=Retry(max_attempts=1))
    async def escape() -> None:
        await escape.using(queue="p/other/mail").enqueue()

    async with app:
        job = await escape.using(queue="p/acme/work").enqueue()
        await Worker(app).drain()
        failure = (await app.jobs.get(job.id)).failure
        assert failure is not None
        assert "does not belong to project 'acme'" in failure.message
        assert await app.jobs.count() == 1


async def test_a_queue_of_a_project_has_the_defaults_of_its_plain_name() -> None:
    app = Mainspring("memory://")
    app.queue("mail", timeout=7)
    app.queue("p/b/mail", timeout=9)

    @app.task
    async def noop() -> None: ...

    timeouts = {}
    async with app:
        for queue in ("mail", "p/a/mail", "p/b/mail", "p/a/other"):
            job = await noop.using(queue=queue).enqueue()
            timeouts[queue] = (await app.jobs.get(job.id)).timeout
    assert timeouts == {"mail": 7, "p/a/mail": 7, "p/b/mail": 9, "p/a/other": None}


# -- app.jobs.within ----------------------------------------------------------------------------------


async def test_jobs_of_other_queues_do_not_exist_within() -> None:
    app = Mainspring("memory://")

    @app.task
    async def noop() -> None: ...

    async with app:
        ours, theirs = [(await noop.using(queue=queue).enqueue()).id for queue in ("p/acme/mail", "p/b/mail")]
        jobs = app.jobs.within(ACME)
        assert [job.id for job in (await jobs.find()).jobs] == [ours]
        assert [job.id async for job in jobs.all(Filter(ids=(ours, theirs)))] == [ours]
        assert (await jobs.count(), (await jobs.count(cap=10)).value) == (1, 1)
        assert await jobs.get_or_none(theirs) is None
        assert await jobs.try_cancel(theirs) is False
        assert (await jobs.attempts(theirs), await jobs.timeline(theirs)) == ([], [])
        for call in (jobs.get, jobs.why, jobs.steps, jobs.cancel, jobs.retry, jobs.delete, jobs.reschedule, jobs.edit):
            with pytest.raises(JobNotFound, match=theirs):
                await call(theirs)
        assert (await jobs.delete_where(Filter(ids=(theirs,)))).changed == 0
        assert (await app.jobs.get(theirs)).status == "pending"
        assert (await jobs.cancel_where(Filter())).changed == 1


async def test_a_narrower_filter_stays_narrow_and_a_wider_one_is_refused() -> None:
    app = Mainspring("memory://")
    async with app:
        jobs = app.jobs.within(ACME)
        assert await jobs.count(Filter(within=("p/acme/mail",))) == 0
        for wider in ("p/*", "*", "p/b/*"):
            with pytest.raises(ConfigurationError, match="not part of"):
                await jobs.count(Filter(within=(wider,)))
        with pytest.raises(ConfigurationError, match="not part of"):
            await jobs.within("p/b/*").within(ACME).count(Filter(within=("p/b/x",)))


async def test_children_in_other_queues_are_cancelled_with_their_parent() -> None:
    app = Mainspring("memory://")

    @app.task
    async def never() -> None: ...

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.gather(never.using(queue="far", delay=3600).prepare())

    async with app:
        job = await parent.using(queue="near").enqueue()
        await Worker(app).drain()
        with pytest.raises((JobNotFound, IllegalMove)):
            await app.jobs.within("far").cancel(job.id)
        await app.jobs.within("near").cancel(job.id)
        (child,) = [each async for each in app.jobs.all(Filter(tasks=("never",)))]
        assert child.status == "cancelled"


async def test_a_bulk_change_belongs_to_its_queues() -> None:
    clock = ManualClock()
    app = Mainspring("memory://", clock=clock)

    @app.task
    async def noop() -> None: ...

    async with app:
        ids = [(await noop.using(queue=queue).enqueue()).id for queue in ("p/acme/mail", "p/b/mail")]
        clock.advance(1)  # a bulk change is for jobs that were there before
        change = await app.bulk.within(ACME).start("cancel", Filter(tasks=("noop",)))
        whole = await app.bulk.start("delete", Filter(tasks=("none",)))
        assert [each.id for each in (await app.bulk.within(ACME).list()).changes] == [change.id]
        assert (await app.bulk.within("p/b/*").list()).changes == []
        assert {each.id for each in (await app.bulk.list()).changes} == {change.id, whole.id}
        await Worker(app).drain()
        statuses = [(await app.jobs.get(job_id)).status for job_id in ids]
        assert statuses[0] == "cancelled"
        assert statuses[1] != "cancelled"
