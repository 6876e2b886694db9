"""Limits and rates as workers keep them, on every store."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Limit, Mainspring, Rate
from mainspring.errors import StoreUnavailable
from mainspring.features.limits import LimitState
from mainspring.features.limits.options import COLLECTION
from mainspring.features.limits.storage import Slots
from mainspring.job import Move, NewJob, Outcome, Status
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.protocol import EVERY_QUEUE, Want, WorkerInfo
from mainspring.testing import manual
from tests.features.conftest import NewApp
from tests.worker.working import eventually, working

pytestmark = pytest.mark.slow


class Crowd:
    """Handlers that stay until they are let go, and how many there ever were at once."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.seen: list[str] = []
        self.most: Counter[str] = Counter()
        self.open = asyncio.Event()

    async def stay(self, who: str) -> None:
        self.inside.append(who)
        self.seen.append(who)
        self.most["all"] = max(self.most["all"], len(self.inside))
        self.most[who] = max(self.most[who], self.inside.count(who))
        await self.open.wait()
        await asyncio.sleep(0)
        self.inside.remove(who)


def work(app: Mainspring, crowd: Crowd, *limits: Limit | Rate, max_attempts: int | None = None) -> Any:
    @app.task(name="work", limits=limits, max_attempts=max_attempts)
    async def stay(who: str) -> None:
        await crowd.stay(who)

    return stay


async def statuses(app: Mainspring) -> Counter[Status]:
    return Counter([job.status async for job in app.jobs.all()])


async def blocked(app: Mainspring, number: int) -> bool:
    return (await statuses(app))[Status.SUSPENDED] == number


async def none_pending(app: Mainspring) -> bool:
    return not (await statuses(app))[Status.PENDING]


async def completed(app: Mainspring, number: int) -> bool:
    return (await statuses(app))[Status.COMPLETED] == number


# -- how many at once -----------------------------------------------------------------------------------------


async def test_no_more_run_at_once_than_the_limit_in_all_workers_together(new_app: NewApp) -> None:
    crowd = Crowd()
    apps = [new_app(), new_app()]
    tasks = [work(app, crowd, Limit(3)) for app in apps]
    await tasks[0].enqueue_many([{"who": "a"}] * 8)
    async with working(apps[0], concurrency=5), working(apps[1], concurrency=5):
        await eventually(lambda: blocked(apps[0], 5))
        assert len(crowd.inside) == 3
        crowd.open.set()
        await eventually(lambda: completed(apps[0], 8))
    assert crowd.most["all"] == 3
    assert [state.jobs for state in await apps[0].limits.list()] == [()]


async def test_each_key_has_a_limit_of_its_own_within_the_limit_of_all(new_app: NewApp) -> None:
    app, crowd = new_app(), Crowd()
    task = work(app, crowd, Limit(4), Limit(2, key=lambda p: p.who))
    await task.enqueue_many([{"who": who} for who in "aaaabbbbcccc"])
    async with working(app, concurrency=12):
        await eventually(lambda: blocked(app, 8))
        assert Counter(crowd.inside) == {"a": 2, "b": 2}
        crowd.open.set()
        await eventually(lambda: completed(app, 12))
    assert (crowd.most["all"], crowd.most["a"], crowd.most["c"]) == (4, 2, 2)


async def test_a_queue_and_tasks_that_share_a_name_are_limited_together() -> None:
    app, crowd = Mainspring("memory://"), Crowd()
    first = app.task(name="first", queue="mail", limits=[Limit(2, name="crm")])(crowd.stay)
    second = app.task(name="second", limits=[Limit(2, name="crm")])(crowd.stay)
    third = app.task(name="third", queue="mail")(crowd.stay)
    app.limit_queue("mail", Limit(3))
    await first.enqueue_many([{"who": "crm"}] * 3)
    await second.enqueue_many([{"who": "crm"}] * 3)
    await third.enqueue_many([{"who": "mail"}] * 9)
    async with working(app, concurrency=20):
        await eventually(lambda: none_pending(app) if len(crowd.inside) >= 3 else False)
        crowd.open.set()
        await eventually(lambda: completed(app, 15))
    assert crowd.most["crm"] == 2
    assert crowd.most["mail"] <= 3
    assert {state.name for state in await app.limits.list()} == {"crm", "queue mail"}


async def test_others_go_past_those_that_are_blocked(new_app: NewApp) -> None:
    app, crowd = new_app(), Crowd()
    task = work(app, crowd, Limit(1))

    @app.task()
    async def other() -> None: ...

    await task.enqueue_many([{"who": "a"}] * 20)
    async with working(app, concurrency=3):
        await eventually(lambda: blocked(app, 19))
        assert (await app.stats()).due.get("default", 0) == 0  # they are not even in the way of a claim
        await (await other.enqueue()).result(timeout=10)
        crowd.open.set()
        await eventually(lambda: completed(app, 21))


async def test_a_blocked_job_says_by_what_and_keeps_its_attempts(new_app: NewApp) -> None:
    app, crowd = new_app(), Crowd()
    task = work(app, crowd, Limit(1, key=lambda p: p.who))
    first = await task.enqueue(who="acme")
    async with working(app):
        await eventually(lambda: crowd.inside)
        second = await task.enqueue(who="acme")
        await eventually(lambda: blocked(app, 1))
        job = await second.get()
        assert (job.waits_for, job.attempts) == ("limit:work=acme", 0)
        assert job.reason == "waits for the limit of work for acme: 1 at once"
        state = await eventually(lambda: waiting_for(app, "acme"))
        assert (state.jobs, state.size, state.waits_for) == ((first.id,), 1, job.waits_for)
        crowd.open.set()
        await eventually(lambda: completed(app, 2))


async def waiting_for(app: Mainspring, key: str) -> LimitState | None:
    state = await app.limits.get("work", key)
    return state if state is not None and state.waiting else None


async def test_a_place_is_free_again_however_the_run_ends(new_app: NewApp) -> None:
    app = new_app()
    ways: list[BaseException | None] = [None, ValueError("boom"), asyncio.CancelledError()]

    @app.task(limits=[Limit(1)], max_attempts=1)
    async def work(way: int) -> None:
        if (error := ways[way]) is not None:
            raise error

    jobs = await work.enqueue_many([{"way": way} for way in (0, 1, 2, 0)])
    cancelled = await work.using(delay=0).enqueue(way=0)
    async with working(app):
        await app.jobs.cancel(cancelled.id)
        await eventually(lambda: all_finished(app, [job.id for job in (*jobs, cancelled)]))
        await eventually(lambda: nobody_inside(app))


async def all_finished(app: Mainspring, ids: list[str]) -> bool:
    return all(job.finished for job in await app.store.get(ids))


async def nobody_inside(app: Mainspring) -> bool:
    return all(not state.jobs for state in await app.limits.list())


async def test_a_worker_that_stops_leaves_its_places_to_others(new_app: NewApp) -> None:
    one, two, crowd = new_app(), new_app(), Crowd()
    tasks = [work(app, crowd, Limit(2)) for app in (one, two)]
    await tasks[0].enqueue_many([{"who": "a"}] * 6)
    async with working(one, grace=0.05):
        await eventually(lambda: blocked(one, 4))
    crowd.open.set()
    async with working(two):
        await eventually(lambda: completed(two, 6))
    assert crowd.most["all"] <= 4  # those that were stopped hand back their jobs before they have left


async def test_the_places_of_the_dead_are_found(new_app: NewApp) -> None:
    """A process died, and the job that ran in it was cancelled since: no run will ever give up its slot."""
    app, crowd = new_app(), Crowd()
    task = work(app, crowd, Limit(1))
    dead = await task.enqueue(who="dead")
    await app.store.join(WorkerInfo("w", "h", 1, (EVERY_QUEUE,)), lambda _: None)
    (claim,) = (await app.store.claim("w", [Want(EVERY_QUEUE, 1)])).jobs
    await put_inside(app, {dead.id: claim.token, "never-was": 1})
    await app.store.ack([Outcome(claim.id, claim.token, Move.CANCEL, ref=claim.ref)])
    await app.store.leave("w")
    crowd.open.set()
    await task.enqueue_many([{"who": "alive"}] * 3)
    async with working(app):
        await eventually(lambda: completed(app, 3))


async def put_inside(app: Mainspring, holders: dict[str, int], *, waiting: bool = False) -> None:
    data = json.dumps(Slots(1, holders, waiting).to_data())
    await app.store.write([Bundle((Write(Key(COLLECTION, "limit:work", ""), data),))])


async def test_a_lost_wake_up_is_made_up_for() -> None:
    """The process that released the slot died before it could wake the next job."""
    app = Mainspring("memory://")
    ran: list[str] = []

    @app.task(name="work", limits=[Limit(1)])
    async def stay(who: str) -> None:
        ran.append(who)

    async with manual(app) as kit:
        lost = NewJob("018f0000-0000-7000-8000-000000000000", "work", '{"who": "a"}', waits_for="limit:work")
        lost.run_at = 253_402_214_400_000
        await app.runtime.pipeline.insert([lost])
        state = Slots(1, {"gone": 7}, waiting=True)
        due_at = kit.clock.now() + 20_000
        write = Write(Key(COLLECTION, "limit:work", ""), json.dumps(state.to_data()), due_at=due_at)
        await app.store.write([Bundle((write,))])
        await kit.time.advance(19)
        assert ran == []
        await kit.time.advance(2)
        assert ran == ["a"]


async def test_a_limit_that_was_raised_holds_for_those_that_wait(new_app: NewApp) -> None:
    old, new, crowd = new_app(), new_app(), Crowd()
    task = work(old, crowd, Limit(1))
    await task.enqueue_many([{"who": "a"}] * 4)
    async with working(old, concurrency=9) as worker:
        await eventually(lambda: blocked(old, 3))
        worker.stop()
        crowd.open.set()
    crowd.open.clear()
    work(new, crowd, Limit(3))
    async with working(new, concurrency=9):
        await work_again(new, crowd)
        await eventually(lambda: len(crowd.inside) == 3)
        crowd.open.set()
        await eventually(lambda: completed(new, 5))


async def work_again(app: Mainspring, crowd: Crowd) -> None:
    """Another job comes along, and with its end the others are woken."""
    del crowd
    await app.tasks["work"].enqueue(who="a")


async def test_a_key_function_that_knows_no_key_any_more_makes_a_dead_letter() -> None:
    app = Mainspring("memory://")
    task = work(app, Crowd())
    job = await task.enqueue(who="a")
    app.runtime.declared_limits.of_task("work", [Limit(1, key=lambda p: p.nowhere)])
    await app.worker().drain()
    found = await job.get()
    assert found.status is Status.DEAD_LETTER
    assert "the key function of its limit raised AttributeError" in found.reason


async def test_a_payload_that_the_task_no_longer_takes_makes_a_dead_letter() -> None:
    app = Mainspring("memory://")
    work(app, Crowd(), Limit(1, key=lambda p: p.who), max_attempts=1)
    await app.runtime.pipeline.insert(
        [NewJob("018f0000-0000-7000-8000-000000000000", "work", '{"whom": "a"}', max_attempts=1)]
    )
    await app.worker().drain()
    (job,) = [job async for job in app.jobs.all()]
    assert job.status is Status.DEAD_LETTER
    assert job.failure is not None
    assert job.failure.type == "InvalidPayload"


@pytest.mark.slow
async def test_a_worker_that_cannot_write_the_limit_hands_the_job_back() -> None:
    app, crowd = Mainspring("memory://"), Crowd()
    task = work(app, crowd, Limit(1))
    crowd.open.set()
    await task.enqueue(who="a")
    write, failures = app.store.write, [StoreUnavailable(), StoreUnavailable()]

    async def sometimes(bundles: Any) -> Any:
        if failures:
            raise failures.pop()
        return await write(bundles)

    app.store.write = sometimes  # type: ignore[method-assign]
    async with working(app):
        await eventually(lambda: completed(app, 1))
        await eventually(lambda: nobody_inside(app))
    assert crowd.seen == ["a"]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_release_that_could_not_be_written_is_repeated(moment: str) -> None:
    app, crowd = Mainspring("memory://"), Crowd()
    task = work(app, crowd, Limit(1))
    await task.enqueue_many([{"who": "a"}] * 2)
    async with working(app):
        await eventually(lambda: blocked(app, 1))
        lose_once(app, "write" if moment == "before" else "wake")
        crowd.open.set()
        if moment == "after":  # the wake-up is owed, and made with whatever comes next
            await eventually(lambda: completed(app, 1))
            await task.enqueue(who="b")
            await eventually(lambda: completed(app, 3))
        else:
            await eventually(lambda: completed(app, 2))


def lose_once(app: Mainspring, method: str) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(app.store, method)
    lost: list[bool] = []

    async def losing(*args: Any) -> Any:
        if not lost:
            lost.append(True)
            raise StoreUnavailable
        return await real(*args)

    setattr(app.store, method, losing)


# -- how many in a time ----------------------------------------------------------------------------------------


def sender(app: Mainspring, *limits: Rate, name: str = "send") -> tuple[Any, list[tuple[float, str]]]:
    sent: list[tuple[float, str]] = []

    @app.task(name=name, limits=limits)
    async def send(who: str = "a") -> None:
        sent.append((app.store.clock.now() / 1000, who))

    return send, sent


async def test_no_more_start_than_burst_and_rate_allow_and_none_is_lost() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(6, per=60, burst=3))
    async with manual(app) as kit:
        begin = kit.clock.now() / 1000
        await send.enqueue_many([{}] * 10)
        await kit.drain()
        assert len(sent) == 3
        await kit.time.advance(minutes=1)
        assert len(sent) == 9
        await kit.time.advance(hours=1)
    assert [round(at - begin) for at, _ in sent] == [0, 0, 0, 10, 20, 30, 40, 50, 60, 70]


async def test_no_more_than_the_burst_starts_after_a_downtime() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(1, per=1, burst=2))
    async with manual(app) as kit:
        await send.enqueue_many([{}] * 20)
        await kit.drain()
        kit.clock.advance(timedelta(hours=1))  # no worker runs
        await kit.drain()
        assert len(sent) == 4
        await kit.time.advance(5)
        assert len(sent) == 9


async def test_waiting_jobs_start_before_later_ones() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(1, per=1))
    async with manual(app) as kit:
        await send.enqueue_many([{"who": f"old {number}"} for number in range(5)])
        await kit.drain()
        for number in range(10):
            await send.enqueue(who=f"new {number}")
            await kit.time.advance(0.5)
        await kit.time.advance(60)
    assert [who for _, who in sent[:5]] == [f"old {number}" for number in range(5)]
    assert len(sent) == 15


async def test_each_key_has_a_rate_of_its_own() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(1, per=60, key=lambda p: p.who), Rate(10, per=60))
    async with manual(app) as kit:
        await send.enqueue_many([{"who": who} for who in "aabbcc"])
        await kit.drain()
        assert sorted(who for _, who in sent) == ["a", "b", "c"]
        await kit.time.advance(minutes=1)
        assert len(sent) == 6


@pytest.mark.slow
async def test_a_rate_is_kept_by_several_workers_together(new_app: NewApp) -> None:
    apps = [new_app() for _ in range(3)]
    made = [sender(app, Rate(200, per=1, burst=20)) for app in apps]
    await made[0][0].enqueue_many([{}] * 80)
    begin = apps[0].store.clock.now() / 1000
    async with working(apps[0]), working(apps[1]), working(apps[2]):
        await eventually(lambda: completed(apps[0], 80))
    times = sorted(at - begin for _, sent in made for at, _ in sent)
    for number, at in enumerate(times, 1):
        assert number <= 20 + 200 * (at + 0.2) + 1


async def test_a_rate_that_is_not_reached_is_asked_for_rarely() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(1_000_000, per=1))
    await send.enqueue_many([{}] * 2000)
    writes, write = 0, app.store.write

    async def counting(bundles: Any) -> Any:
        nonlocal writes
        writes += 1
        return await write(bundles)

    app.store.write = counting  # type: ignore[method-assign]
    async with working(app, concurrency=10):
        await eventually(lambda: len(sent) == 2000)
    assert writes < 200


async def test_tokens_that_were_drawn_ahead_go_back() -> None:
    app = Mainspring("memory://")
    send, sent = sender(app, Rate(100, per=1, burst=100))
    async with manual(app) as kit:
        for _ in range(60):  # half as many as the rate, though each draws more than it needs
            await send.enqueue()
            await kit.time.advance(0.02)
        assert len(sent) == 60
        state = await app.limits.get("send", kind="rate")
        assert state is not None
        assert (state.tokens or 0) >= 80
