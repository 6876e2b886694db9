"""Programs whose jobs wait for each other, and a worker that dies at a chosen moment."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from mainspring import Context, Fair, Limit, Mainspring
from mainspring.cli import logs
from mainspring.job import Outcome, Status
from mainspring.stores.postgres import PostgresStore, listen
from mainspring.stores.postgres import store as postgres_store
from mainspring.worker import Worker
from tests.chaos.programs.tasks import with_settings

KEYS = ("acme", "bolt", "cord")
BLINK = 0.005  # seconds


def make_app(settings: str) -> Mainspring:
    app = Mainspring(with_settings(os.environ["CHAOS_DATABASE"], settings))

    @app.task(limits=[Limit(1, key=lambda p: p.key)])
    async def limited(key: str) -> None:
        await asyncio.sleep(BLINK)

    @app.task(fair=Fair(lambda p: p.key, 1))
    async def fair(key: str) -> None:
        await asyncio.sleep(BLINK)

    @app.task()
    async def member(number: int) -> int:
        await asyncio.sleep(BLINK)
        return number

    @app.task()
    async def parent(ctx: Context) -> int:
        return sum(await ctx.gather(*(member.prepare(number=number) for number in range(3))))

    return app


def work(folder: str, who: str, settings: str = "") -> int:
    logs.set_up("info", as_json=True, final=True)
    return Worker(make_app(settings), id=who, concurrency=4).run()


def die(folder: str, who: str, settings: str = "", at: str = "", time: int = 1) -> int:
    """Work until the chosen moment has come so many times; then die by SIGKILL."""
    logs.set_up("info", as_json=True, final=True)
    app = make_app(settings)
    MOMENTS[at](app.store, Fuse(time))
    return Worker(app, id=who, concurrency=4).run()


class Fuse:
    def __init__(self, times: int) -> None:
        self._left = times

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def after_suspending(store: Any, fuse: Fuse) -> None:
    """The suspension is committed; that jobs wait is not noted anywhere else."""
    ack = store.ack

    async def and_die(outcomes: list[Outcome]) -> list[Status | None]:
        statuses: list[Status | None] = await ack(outcomes)
        if any(outcome.waits_for and status for outcome, status in zip(outcomes, statuses, strict=True)):
            fuse.burn()
        return statuses

    store.ack = and_die


def after_completing(store: Any, fuse: Fuse) -> None:
    """The run's end is committed; its place, or its turn, is not passed on."""
    ack = store.ack

    async def and_die(outcomes: list[Outcome]) -> list[Status | None]:
        statuses: list[Status | None] = await ack(outcomes)
        if Status.COMPLETED in statuses:
            fuse.burn()
        return statuses

    store.ack = and_die


def before_waking(store: Any, fuse: Fuse) -> None:
    """A free place is promised to the next job; that job is not woken."""
    wake = store.wake

    async def die_first(keys: dict[str, int]) -> dict[str, int]:
        fuse.burn()
        woken: dict[str, int] = await wake(keys)
        return woken

    store.wake = die_first


def before_telling(store: Any, fuse: Fuse) -> None:
    """The end of a run is committed, with the jobs that become due by it; sleeping workers are not told."""
    if isinstance(store, PostgresStore):

        async def die_first(transaction: Any, readers: listen.ReaderNotifier) -> None:
            if transaction.woken:
                fuse.burn()
            await listen.tell(transaction, readers)

        vars(postgres_store)["tell"] = die_first
    else:
        wake = store.liveness.wake

        def die_first_here(*what: Any) -> None:
            fuse.burn()
            wake(*what)

        store.liveness.wake = die_first_here


MOMENTS = {
    "after_suspending": after_suspending,
    "after_completing": after_completing,
    "before_waking": before_waking,
    "before_telling": before_telling,
}


def enqueue(folder: str, who: str, settings: str = "") -> None:
    asyncio.run(_enqueue(make_app(settings)))


async def _enqueue(app: Mainspring) -> None:
    async with app:
        tasks = app.tasks
        for name in ("limited", "fair"):
            await tasks[name].enqueue_many([{"key": key} for key in KEYS * 8])
        for _ in range(3):
            members = [tasks["member"].prepare(number=number) for number in range(4)]
            await app.batch(members, on_success=tasks["member"].prepare(number=9))
            await tasks["parent"].enqueue()
