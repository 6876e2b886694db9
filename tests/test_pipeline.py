"""Every new job takes the same way into the store, whatever makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Context, Fair, Mainspring, Occasion, Person, Window
from mainspring.events import JobCreated, JobDeduplicated
from mainspring.job import Job, Status
from mainspring.testing import Kit, manual

NIGHT = datetime(2026, 3, 1, 23, tzinfo=UTC)
MORNING = datetime(2026, 3, 2, 8, tzinfo=UTC)
DAY = Window("08:00", "22:00")

Route = Callable[[Mainspring, Kit], Awaitable[object]]
"""Makes one job of the task `send`."""


async def enqueue(app: Mainspring, kit: Kit) -> object:
    return await app.tasks["send"].enqueue()


async def enqueue_many(app: Mainspring, kit: Kit) -> object:
    return await app.tasks["send"].enqueue_many([{}])


async def enqueue_all(app: Mainspring, kit: Kit) -> object:
    return await app.enqueue_all([app.tasks["send"].prepare()])


async def chain(app: Mainspring, kit: Kit) -> object:
    return await app.chain(app.tasks["send"].prepare())


async def batch(app: Mainspring, kit: Kit) -> object:
    return await app.batch([app.tasks["send"].prepare()])


async def replace_waiting(app: Mainspring, kit: Kit) -> object:
    return await app.tasks["send"].using(replace="one").enqueue()


async def follow_up(app: Mainspring, kit: Kit) -> object:
    @app.task
    async def parent(ctx: Context) -> None:
        ctx.follow_up(app.tasks["send"].prepare())

    await parent.enqueue()
    return await kit.drain()


async def child(app: Mainspring, kit: Kit) -> object:
    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.spawn(app.tasks["send"].prepare())

    await parent.enqueue()
    return await kit.drain()


async def schedule(app: Mainspring, kit: Kit) -> object:
    await app.schedules.put("nightly", "5s", app.tasks["send"].prepare())
    return await kit.time.advance(seconds=5)


async def trigger(app: Mainspring, kit: Kit) -> object:
    await app.schedules.put("yearly", "@yearly", app.tasks["send"].prepare())
    return await app.schedules.trigger("yearly")


ROUTES: list[Route] = [
    enqueue, enqueue_many, enqueue_all, chain, batch, replace_waiting, follow_up, child, schedule, trigger,
]  # fmt: skip
every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)


def sending(**options: Any) -> Mainspring:
    app = Mainspring("memory://")

    async def send() -> None: ...

    app.task(**options)(send)
    return app


async def only_job(app: Mainspring) -> Job:
    jobs = [job async for job in app.jobs.all() if job.task == "send"]
    assert len(jobs) == 1
    return jobs[0]


@every_route
async def test_every_route_keeps_delivery_hours(route: Route) -> None:
    app = sending(deliver=DAY)
    async with manual(app, start=NIGHT) as kit:
        await route(app, kit)
        assert (await only_job(app)).run_at == MORNING


@every_route
async def test_every_route_emits_job_created(route: Route) -> None:
    app, created = sending(), list[str]()

    @app.on(JobCreated)
    def note(event: JobCreated) -> None:
        if event.task == "send":
            created.append(event.job_id)

    async with manual(app, start=NIGHT) as kit:
        await route(app, kit)
        await app.runtime.bus.flush()
        assert created == [(await only_job(app)).id]


@every_route
async def test_every_route_takes_turns_for_fair_tasks(route: Route) -> None:
    app = sending(fair=Fair(key=lambda _: "all", size=1))
    async with manual(app, start=NIGHT) as kit:
        await route(app, kit)
        assert (await only_job(app)).options["limits"] == "all"  # counted for its key when it was inserted


async def test_a_follow_up_whose_key_is_held_is_a_duplicate() -> None:
    app, told = sending(), list[tuple[str, str]]()

    @app.on(JobDeduplicated)
    def note(event: JobDeduplicated) -> None:
        told.append((event.job_id, event.dedupe_key))

    @app.task
    async def parent(ctx: Context) -> None:
        ctx.follow_up(app.tasks["send"].using(dedupe_key="k").prepare())

    async with manual(app) as kit:
        holder = await app.tasks["send"].using(dedupe_key="k", delay=60).enqueue()
        await parent.enqueue()
        await kit.drain()
        assert told == [(holder.id, "k")]


async def test_an_occasion_keeps_the_hours_of_its_task() -> None:
    app = Mainspring("memory://")

    @app.occasion("birthday", deliver=DAY, name="send")
    async def greet(person: Person, occasion: Occasion) -> None: ...

    async with manual(app, start=datetime(2026, 3, 1, 12, tzinfo=UTC)) as kit:
        await app.people.put(
            Person(id="ana", tz="UTC", occasions=[Occasion(kind="birthday", date="03-02", at="03:00")])
        )
        await kit.time.advance_to(datetime(2026, 3, 2, 4, tzinfo=UTC))
        assert (await only_job(app)).run_at == MORNING


async def test_job_created_tells_the_time_to_which_delivery_hours_moved_the_job() -> None:
    app, told = sending(deliver=DAY), list[datetime | None]()

    @app.on(JobCreated)
    def note(event: JobCreated) -> None:
        told.append(event.run_at)

    async with manual(app, start=NIGHT) as kit:
        await trigger(app, kit)
        await app.runtime.bus.flush()
        assert told == [MORNING]


def nobody(_payload: object) -> str:
    raise LookupError


async def test_a_failing_feature_does_not_hold_up_schedules_that_are_due_with_it() -> None:
    app, ran = sending(deliver=Window.of_person(nobody), queue="elsewhere"), list[int]()

    @app.task
    async def tick() -> None:
        ran.append(1)

    async with manual(app, start=NIGHT) as kit:
        await app.schedules.put("bad", "5s", app.tasks["send"].prepare())
        await app.schedules.put("good", "5s", tick.prepare())
        await app.pause("elsewhere", wait=0)
        await kit.time.advance(seconds=5)
        assert ran == [1]
        assert (await only_job(app)).run_at == NIGHT + timedelta(seconds=5)


async def test_a_failing_feature_does_not_undo_the_run_that_a_follow_up_follows() -> None:
    app = sending(deliver=Window.of_person(nobody), queue="elsewhere")

    @app.task
    async def parent(ctx: Context) -> None:
        ctx.follow_up(app.tasks["send"].prepare())

    handle = await parent.enqueue()
    await app.worker(queues=["default"]).drain()
    assert await handle.status() is Status.COMPLETED
    assert (await only_job(app)).status is Status.PENDING
    with pytest.raises(LookupError):  # the caller of an enqueue gets the error
        await app.tasks["send"].enqueue()
