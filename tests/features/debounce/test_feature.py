"""Debounce, replace, throttle: what a second enqueue under a key does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Debounce, Filter, Mainspring, Status, Throttle
from mainspring.errors import ConfigurationError
from mainspring.events import JobDeduplicated
from mainspring.features.debounce.feature import DebounceFeature
from mainspring.job import Job
from mainspring.stores.documents import Key
from mainspring.testing import Kit
from tests.worker.working import eventually, working


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.ran = []  # type: ignore[attr-defined]
    app.fails = 0  # type: ignore[attr-defined]

    @app.task(max_attempts=3)
    async def index(version: int) -> None:
        app.ran.append(version)  # type: ignore[attr-defined]
        if app.fails:  # type: ignore[attr-defined]
            app.fails -= 1  # type: ignore[attr-defined]
            raise OSError

    @app.task()
    async def other(version: int) -> None:
        app.ran.append(-version)  # type: ignore[attr-defined]

    return app


def ran(app: Mainspring) -> list[int]:
    found: list[int] = app.ran  # type: ignore[attr-defined]
    return found


async def due_in(app: Mainspring, job_id: str) -> float:
    return ((await app.jobs.get(job_id)).run_at - app.now()).total_seconds()


# -- debounce -------------------------------------------------------------------------------------------------


async def test_each_enqueue_puts_the_job_off_and_the_last_payload_wins(app: Mainspring, kit: Kit) -> None:
    index = app.tasks["index"].using(debounce=Debounce("doc 7", wait=5))
    first = await index.enqueue(version=1)
    assert first.created
    for version in (2, 3):
        await kit.time.advance(seconds=4)
        again = await index.enqueue(version=version)
        assert (again.id, again.created) == (first.id, False)
        assert await due_in(app, first.id) == 5
    await kit.time.advance(seconds=4.9)
    assert ran(app) == []
    await kit.time.advance(seconds=0.1)
    assert ran(app) == [3]


async def test_a_job_is_not_put_off_beyond_max_wait(app: Mainspring, kit: Kit) -> None:
    index = app.tasks["index"].using(debounce=Debounce("doc 7", wait=5, max_wait=12))
    for version in range(4):
        await index.enqueue(version=version)
        await kit.time.advance(seconds=4)
    assert ran(app) == [2]  # due at 12 seconds, though the third enqueue at 8 would have had it wait until 13
    assert [job.payload for job in kit.jobs("index", status=Status.PENDING)] == [{"version": 3}]


async def test_keys_and_tasks_are_debounced_separately(app: Mainspring, kit: Kit) -> None:
    for task in ("index", "other"):
        for key in ("a", "b"):
            assert (await app.tasks[task].using(debounce=Debounce(key, wait=5)).enqueue(version=1)).created
    await kit.time.advance(seconds=5)
    assert sorted(ran(app)) == [-1, -1, 1, 1]


async def test_it_leaves_no_trace_in_the_audit_log(app: Mainspring, kit: Kit) -> None:
    index = app.tasks["index"].using(debounce=Debounce("doc 7", wait=5))
    job = await index.enqueue(version=1)
    await index.enqueue(version=2)
    assert (await app.audit(), [entry.what for entry in await app.jobs.timeline(job.id)]) == ([], ["created"])


async def test_a_job_debounced_for_months_is_still_one_job(app: Mainspring, kit: Kit) -> None:
    index = app.tasks["index"].using(debounce=Debounce("doc 7", wait=timedelta(days=20)))
    ids = set()
    for version in range(9):
        ids.add((await index.enqueue(version=version)).id)
        await kit.time.advance(days=19)
        await app.store.prune()
    assert (len(ids), ran(app)) == (1, [])


# -- replace --------------------------------------------------------------------------------------------------


async def test_the_newer_replaces_payload_time_and_priority(app: Mainspring, kit: Kit) -> None:
    first = await app.tasks["index"].using(replace="doc 7", delay=60).enqueue(version=1)
    sooner = app.tasks["index"].using(replace="doc 7", run_at=app.now() + timedelta(seconds=10), priority="high")
    again = await sooner.enqueue(version=2)
    job = await app.jobs.get(first.id)
    assert (again.id, again.created, job.payload, job.priority.name) == (first.id, False, {"version": 2}, "HIGH")
    await kit.time.advance(seconds=10)
    assert ran(app) == [2]
    await kit.time.advance(seconds=60)
    assert ran(app) == [2]


async def test_once_the_old_one_is_done_there_is_a_new_one(app: Mainspring, kit: Kit) -> None:
    index = app.tasks["index"].using(replace="doc 7")
    first = await index.enqueue(version=1)
    await kit.drain()
    second = await index.enqueue(version=2)
    assert (second.created, second.id == first.id) == (True, False)
    await kit.drain()
    assert ran(app) == [1, 2]


async def test_the_retry_of_a_failed_one_gives_way_to_the_newer(app: Mainspring, kit: Kit) -> None:
    app.fails = 1  # type: ignore[attr-defined]
    index = app.tasks["index"].using(replace="doc 7")
    first = await index.enqueue(version=1)
    await kit.drain()
    second = await index.enqueue(version=2)
    await kit.time.advance(hours=1)
    assert ran(app) == [1, 2]
    job = await app.jobs.get(first.id)
    assert (job.status, job.reason) == (Status.CANCELLED, f"replaced by the newer job {second.id}")


async def test_a_retry_without_a_newer_one_runs(app: Mainspring, kit: Kit) -> None:
    app.fails = 1  # type: ignore[attr-defined]
    await app.tasks["index"].using(replace="doc 7").enqueue(version=1)
    await kit.time.advance(hours=1)
    assert ran(app) == [1, 1]


async def test_a_replaced_job_can_be_retried_by_hand(app: Mainspring, kit: Kit) -> None:
    app.fails = 1  # type: ignore[attr-defined]
    index = app.tasks["index"].using(replace="doc 7")
    first = await index.enqueue(version=1)
    await kit.drain()
    await index.enqueue(version=2)
    await kit.time.advance(hours=1)
    await app.jobs.retry(first.id)
    await kit.drain()
    assert ran(app) == [1, 2, 1]


async def test_a_replaced_enqueue_emits_job_deduplicated(app: Mainspring, kit: Kit) -> None:
    told: list[JobDeduplicated] = []
    app.runtime.bus.subscribe(JobDeduplicated, told.append)
    index = app.tasks["index"].using(replace="doc 7", delay=5)
    handles = [await index.enqueue(version=version) for version in (1, 2)]
    await app.runtime.bus.flush()
    assert [(event.job_id, event.dedupe_key) for event in told] == [(handles[0].id, "doc 7")]


def test_replace_works_without_an_event_loop(app: Mainspring) -> None:
    index = app.tasks["index"].using(replace="doc 7", delay=60)
    first, second = index.enqueue_sync(version=1), index.enqueue_sync(version=2)
    assert (first.created, second.created, first.id) == (True, False, second.id)
    (third,) = index.enqueue_many_sync([{"version": 3}])
    assert app.run(app.jobs.get(third.id)).payload == {"version": 3}
    app.run(app.close())


# -- several at once ------------------------------------------------------------------------------------------

ROUNDS, PROCESSES = 15, 3


@pytest.mark.slow
async def test_whatever_comes_at_once_the_last_one_wins_and_only_one_waits(new_app: Callable[[], Mainspring]) -> None:
    apps = [new_app() for _ in range(PROCESSES)]
    runs: list[int] = []

    async def index(version: int) -> None:
        await asyncio.sleep(0.002)
        runs.append(version)

    tasks = [app.task()(index) for app in apps]
    async with working(apps[0]), working(apps[1]):
        for version in range(ROUNDS):
            using = [task.using(replace="doc 7") for task in tasks]
            handles = await asyncio.gather(*(prepared.enqueue(version=version) for prepared in using))
            assert len(await waiting(apps[2])) <= 1
            assert {(await handle.get()).payload["version"] for handle in handles} <= {version}
        await eventually(lambda: is_idle(apps[2]))
    assert runs[-1] == ROUNDS - 1
    assert runs == sorted(runs)


async def waiting(app: Mainspring) -> list[Job]:
    return [job async for job in app.jobs.all(Filter(statuses=(Status.PENDING,)))]


async def is_idle(app: Mainspring) -> bool:
    return not await app.jobs.count(Filter(statuses=(Status.PENDING, Status.RUNNING, Status.RETRYING)))


async def test_while_none_works_all_find_the_same_job(new_app: Callable[[], Mainspring]) -> None:
    apps = [new_app() for _ in range(4)]
    tasks = [app.task(name="index")(nothing) for app in apps]
    using = [task.using(debounce=Debounce("doc 7", wait=60)) for task in tasks]
    handles = await asyncio.gather(*(using[number % 4].enqueue(version=number) for number in range(20)))
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles].count(True) == 1
    assert len(await waiting(apps[0])) == 1


async def nothing(version: int) -> None:
    """Is not run."""


async def test_an_edit_that_comes_too_late_is_done_again(
    app: Mainspring, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is changed, but was no longer the newest: its retry would give way, and the payload with it."""
    index = app.tasks["index"].using(replace="doc 7", delay=5)
    first = await index.enqueue(version=1)
    look, looks = DebounceFeature._look, []

    async def another_was_quicker(feature: DebounceFeature, place: Key) -> Any:
        looks.append(place)
        if len(looks) == 2:  # after the change
            monkeypatch.setattr(DebounceFeature, "_look", look)
            await app.jobs.cancel(first.id)
            await index.enqueue(version=2)
            monkeypatch.setattr(DebounceFeature, "_look", another_was_quicker)
        return await look(feature, place)

    monkeypatch.setattr(DebounceFeature, "_look", another_was_quicker)
    await index.enqueue(version=3)
    await kit.time.advance(seconds=5)
    assert ran(app) == [3]


# -- throttle -------------------------------------------------------------------------------------------------


async def test_at_most_one_per_window(app: Mainspring, kit: Kit) -> None:
    report = app.tasks["index"].using(throttle=Throttle("report", per=60))
    first = await report.enqueue(version=1)
    await kit.drain()
    second = await report.enqueue(version=2)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    await kit.time.advance(seconds=60)
    assert (await report.enqueue(version=3)).created
    assert (await app.tasks["index"].using(throttle=Throttle("another", per=60)).enqueue(version=4)).created
    await kit.drain()
    assert ran(app) == [1, 3, 4]


# -- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Throttle("", per=60), "needs a key"),
        (lambda: Throttle("a", per=0), "per is 0"),
        (lambda: Debounce("a", wait=-1), "wait is -1"),
        (lambda: Debounce("a", wait=5, max_wait=1), "less than wait"),
        (lambda: Debounce("a" * 501, wait=5), "up to 500"),
    ],
)
def test_bad_windows_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"throttle": Throttle("a", per=1), "dedupe_key": "b"}, "one of dedupe_key and throttle"),
        ({"debounce": Debounce("a", wait=1), "replace": "b"}, "one of debounce and replace"),
        ({"debounce": Debounce("a", wait=1), "delay": 5}, "leave out run_at and delay"),
        ({"replace": "a", "connection": object()}, "transaction"),
        ({"replace": ""}, "needs a key"),
    ],
)
def test_contradictory_options_are_refused(app: Mainspring, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        app.tasks["index"].using(**options)


def test_a_job_with_replace_cannot_be_prepared(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match="cannot be prepared"):
        app.tasks["index"].using(replace="a").prepare(version=1)
