"""A story that makes the metrics move: successes, retries, dead letters, a stall, a breaker, a schedule, people."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from mainspring import Breaker, Context, Mainspring, Retry, Snooze
from mainspring.events import JobStalled
from mainspring.features.people import Occasion, Person
from mainspring.metrics import Metrics
from mainspring.stores.protocol import Want, WorkerInfo
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing import ManualClock
from tests.conformance.scenario import ignore, join, new_job

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
SOON = 10.0  # seconds; only a failing test waits this long


class MailDown(Exception):
    """The mail service does not work."""


def make_app(clock: ManualClock) -> Mainspring:
    app = Mainspring(MemoryStore(clock=clock, lease=3600, stall_grace=1000))
    app.breakers.configure("email-api", Breaker(min_calls=2, open_for=600))

    @app.task(queue="mail")
    async def welcome(guest: str) -> str:
        return f"welcome, {guest}"

    @app.task(retry=Retry.fixed(30, max_attempts=2))
    async def fail() -> None:
        raise LookupError("no such guest")

    @app.task(queue="mail", retry=Retry.fixed(30, max_attempts=2))
    async def send(ctx: Context, *, works: bool) -> None:
        async with ctx.breaker("email-api"):
            with Metrics.of(app).delivery("email"):
                if not works:
                    raise MailDown

    @app.task()
    async def put_off() -> None:
        raise Snooze(timedelta(days=1))

    @app.task(queue="slow", timeout=5, max_attempts=1)
    async def hang() -> None: ...

    @app.every("10min")
    async def tidy() -> None: ...

    @app.occasion("birthday", queue="mail")
    async def greet(person: Person) -> None: ...

    return app


async def stall(app: Mainspring, clock: ManualClock) -> None:
    """Let a worker take a job and hang, until another one takes the job over."""
    stalled = asyncio.Event()

    @app.on(JobStalled)
    async def note(_event: JobStalled) -> None:
        stalled.set()

    await app.tasks["hang"].enqueue()
    await join(app.store, "ghost")
    await app.store.claim("ghost", [Want("slow", 1)])
    await app.store.reap()
    async with app.worker(heartbeat_interval=0.01, maintenance_interval=0.01, queues=["none"]):
        clock.advance(7)
        async with asyncio.timeout(SOON):
            await stalled.wait()
    await app.store.leave("ghost")


async def tell(app: Mainspring, clock: ManualClock) -> None:
    """Run the story."""
    tasks = app.tasks
    await app.people.put(
        Person(id="p1", tz="UTC", occasions=[Occasion(kind="birthday", date="1990-03-14", at="12:10")])
    )
    await tasks["welcome"].enqueue("Ada")
    await tasks["welcome"].using(dedupe_key="once", delay=7200).enqueue("Bo")
    await tasks["welcome"].using(dedupe_key="once").enqueue("Bo")
    for works in (True, False, False, False):
        await tasks["send"].enqueue(works=works)
    for task in ("fail", "put_off"):
        await tasks[task].enqueue()
    for _ in range(3):
        await app.worker().drain()
        clock.advance(1300)  # the schedule misses an occurrence, too
    cancelled = await tasks["welcome"].using(delay=3600).enqueue("Cy")
    await app.jobs.cancel(cancelled.id)
    await stall(app, clock)
    await app.worker().drain()
    await app.store.join(WorkerInfo("w1", "host", 1, ("*",), tasks=("welcome",)), ignore)
    await app.store.insert([new_job(task="removed")])
