"""Programs that enqueue, and write down each id that they were given."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg

from mainspring.errors import StoreUnavailable
from mainspring.handle import JobHandle
from mainspring.job import NewJob
from tests.chaos.programs.own import EFFECTS, own_transaction
from tests.chaos.programs.tasks import MIXTURE, Shop, shop_by_wound_clock
from tests.chaos.waiting import DEADLINE

T = TypeVar("T")


def some(folder: str, who: str, number: int = 1, task: str = "quick", **payload: Any) -> None:
    """So many jobs of one task, all at once."""
    enqueue(Shop(folder, who), task, number, **payload)


def some_by_wound_clock(folder: str, who: str, number: int = 1, task: str = "quick", **payload: Any) -> None:
    enqueue(shop_by_wound_clock(folder, who), task, number, **payload)


def enqueue(shop: Shop, task: str, number: int, **payload: Any) -> None:
    acknowledge(shop, shop.app.run(shop.app.enqueue_all(shop.prepare(task, number, **payload))))


def mixture(folder: str, who: str, seed: int, pause: float, *, patient: bool) -> None:
    """Enqueue jobs of all kinds in all ways, for ever; a patient one retries what the store cannot take now."""
    asyncio.run(_mixture(Shop(folder, who), random.Random(seed), pause, patient=patient))


async def _mixture(shop: Shop, rng: random.Random, pause: float, *, patient: bool) -> None:
    bear = patiently if patient else at_once
    await bear(partial(make_tables, shop))
    while True:
        jobs = shop.prepare(rng.choice(MIXTURE), rng.choice((1, 1, 3, 10)))
        enqueue = in_own_transaction if rng.random() < 0.2 else by_itself
        acknowledge(shop, await bear(partial(enqueue, shop, jobs)))
        await asyncio.sleep(rng.uniform(0, pause))


async def make_tables(shop: Shop) -> None:
    await shop.app.store.open()
    with own_transaction() as own:
        own.execute(EFFECTS)


async def by_itself(shop: Shop, jobs: Sequence[NewJob]) -> Sequence[JobHandle[Any]]:
    return await shop.app.enqueue_all(jobs)


async def in_own_transaction(shop: Shop, jobs: Sequence[NewJob]) -> Sequence[JobHandle[Any]]:
    with own_transaction() as own:
        return await shop.app.enqueue_all(jobs, connection=own)


async def at_once(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Again and again. Jobs keep their ids, so that a try whose answer got lost does no harm."""
    while True:
        try:
            return await work()
        except (StoreUnavailable, psycopg.OperationalError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(0.02)


def stubbornly(folder: str, who: str, settings: str = "") -> None:
    """One job after the other until there is a file `enough`; what the store cannot take now is tried again."""
    shop = Shop(folder, who, settings)
    while not (shop.folder / "enough").exists():
        jobs = shop.prepare("padded", text="x" * 500)
        while True:
            try:
                inserted = shop.app.run(shop.app.enqueue_all(jobs))
            except StoreUnavailable as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                time.sleep(0.02)
            else:
                acknowledge(shop, inserted)
                break


def flood(folder: str, who: str, seconds: float) -> None:
    """One job after the other as fast as they are taken, from when there is a file `go` on."""
    shop = Shop(folder, who)
    shop.app.run(shop.app.store.open())
    shop.pen.write("note")
    while not (shop.folder / "go").exists():
        time.sleep(0.001)
    asyncio.run(_flood(shop, time.monotonic() + seconds))


async def _flood(shop: Shop, end: float) -> None:
    while time.monotonic() < end:
        acknowledge(shop, await shop.app.enqueue_all(shop.prepare("quick")))
    await shop.app.close()


def one_by_one(folder: str, who: str, number: int) -> None:
    """Each when the one before it has ended, so that the worker is idle whenever one comes."""
    asyncio.run(_one_by_one(Shop(folder, who), number))


async def _one_by_one(shop: Shop, number: int) -> None:
    async with shop.app as app:
        for _ in range(number):
            job = await app.tasks["quick"].enqueue()
            shop.pen.write("ack", job.id)
            await job.result(timeout=DEADLINE)


def acknowledge(shop: Shop, inserted: Sequence[JobHandle[Any]]) -> None:
    for job in inserted:
        shop.pen.write("ack", job.id)
