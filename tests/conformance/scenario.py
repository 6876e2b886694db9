"""What the tests are told with: jobs on their way in, workers, and the steps of a run."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from mainspring.clock import to_datetime
from mainspring.ids import new_id
from mainspring.job import WAITING, Claim, Job, Move, NewJob, Outcome, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Changed, Edit, Filter, Halt, Store, Takeover, Wake, Want, WorkerInfo
from mainspring.testing.clock import ManualClock

BY = By(actor="ana", reason="by hand")
A_NAP = 60_000  # milliseconds for which a suspended job sleeps
BELL = "bell"  # unless this key is woken before
PATIENCE = 5.0
"""Seconds of real time that a wake-up may take; only a failing test ever waits this long."""


class StoreScenario:
    """The ground that all parts of the suite stand on."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture(autouse=True)
    async def crew(self, store: Store) -> None:
        await join(store, "w1")
        await join(store, "w2")


async def by_silence(store: Store, clock: ManualClock, worker: str) -> list[Takeover]:
    """Let a worker die: it sends no heartbeat for longer than the lease, while the others do. Return the takeovers."""
    others = await present(store) - {worker}
    before = (await store.reap()).takeovers
    clock.advance(store.lease + 1)
    for other in others:
        await store.heartbeat(other, {})
    return before + (await store.reap()).takeovers


async def present(store: Store) -> set[str]:
    """The workers that are alive, as far as the store knows."""
    return {worker.id for worker in (await store.stats()).workers if worker.alive}


def ignore(_: Wake) -> None:
    """For workers that are not told."""


async def join(store: Store, worker: str, wake: Any = ignore, queues: tuple[str, ...] = ("*",)) -> None:
    await store.join(WorkerInfo(id=worker, host="host", pid=1, queues=queues), wake)


# -- a job's way ----------------------------------------------------------------------------------


def new_job(**overrides: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "task": "greet", "payload": "{}", **overrides})


async def put(store: Store, **overrides: Any) -> str:
    """Insert a job that no other holds the key of; returns its id."""
    (inserted,) = await store.insert([new_job(**overrides)])
    assert inserted.created
    return inserted.id


async def put_many(store: Store, number: int, **overrides: Any) -> list[str]:
    return [inserted.id for inserted in await store.insert([new_job(**overrides) for _ in range(number)])]


async def claim(
    store: Store,
    limit: int = 100,
    *,
    queue: str = "default",
    worker: str = "w1",
    solo: bool = False,
    tasks: frozenset[str] | None = None,
) -> list[Claim]:
    return (await store.claim(worker, [Want(queue, limit)], solo=solo, tasks=tasks)).jobs


async def claim_one(store: Store, *, queue: str = "default", worker: str = "w1", solo: bool = False) -> Claim:
    (taken,) = await claim(store, 1, queue=queue, worker=worker, solo=solo)
    return taken


async def running(store: Store, *, worker: str = "w1", **overrides: Any) -> Claim:
    """A job of its own in the hands of a worker."""
    job_id = await put(store, **overrides)
    taken = await claim_one(store, queue=overrides.get("queue", "default"), worker=worker)
    assert taken.id == job_id
    return taken


def outcome(held: Claim, move: Move, **fields: Any) -> Outcome:
    return Outcome(job_id=held.id, token=held.token, move=move, ref=held.ref, **fields)


async def end(store: Store, held: Claim, move: Move, **fields: Any) -> Status | None:
    (status,) = await store.ack([outcome(held, move, **fields)])
    return status


async def job_in(store: Store, status: Status, **overrides: Any) -> str:
    """A job that has come to have this status."""
    ways_there = {
        Status.RETRYING: Move.RETRY,
        Status.COMPLETED: Move.DONE,
        Status.DEAD_LETTER: Move.DEAD,
        Status.CANCELLED: Move.CANCEL,
    }
    if status is Status.PENDING:
        return await put(store, **overrides)
    held = await running(store, **overrides)
    if status is Status.SUSPENDED:
        assert await end(store, held, Move.SUSPEND, delay=A_NAP, waits_for=BELL) is status
    elif status in ways_there:
        assert await end(store, held, ways_there[status]) is status
    return held.id


async def one_of_each(store: Store, **overrides: Any) -> dict[Status, str]:
    """A job of each status; the waiting ones last, so that they are not claimed on the way."""
    order = [*sorted(set(Status) - WAITING), Status.RETRYING, Status.PENDING]
    return {status: await job_in(store, status, **overrides) for status in order}


async def crashed(store: Store, times: int = 1, **overrides: Any) -> str:
    """A job during which its worker died that often: a suspect."""
    held = await running(store, **overrides)
    await end(store, held, Move.CRASH)
    for _ in range(times - 1):
        await end(store, await claim_one(store, queue=held.queue, solo=True), Move.CRASH)
    return held.id


# -- reading --------------------------------------------------------------------------------------


async def look(store: Store, job_id: str) -> Job:
    (job,) = await store.get([job_id])
    return job


async def status_of(store: Store, job_id: str) -> Status:
    return (await look(store, job_id)).status


async def found(store: Store, **fields: Any) -> list[str]:
    return [job.id for job in (await store.find(Filter(**fields), limit=1000)).jobs]


def at(clock: ManualClock, seconds: float = 0) -> datetime:
    """The store's time, so many seconds from now."""
    return to_datetime(clock.now()) + timedelta(seconds=seconds)


# -- by hand --------------------------------------------------------------------------------------


async def by_hand(store: Store, action: Action, *ids: str, **edit: Any) -> Changed:
    return await store.change(action, Filter(ids=ids), By(BY.actor, BY.reason), edit=Edit(**edit) if edit else None)


def a_halt(clock: ManualClock, *, seconds: float | None = None, queue: str | None = None, accept: bool = True) -> Halt:
    until = None if seconds is None else at(clock, seconds)
    return Halt(actor="ana", reason="fire drill", since=at(clock), until=until, queue=queue, accept=accept)


class Bell:
    """A worker's ear: remembers what it was woken for, and on which thread."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._heard = Wake(0)
        self._rung = asyncio.Event()

    def __call__(self, wake: Wake) -> None:
        self.threads.add(threading.get_ident())
        self._heard |= wake
        self._rung.set()

    async def hears(self, wake: Wake) -> bool:
        """Wait for this wake-up and forget all others, so that the next call waits for a new one."""
        async with asyncio.timeout(PATIENCE):
            while wake not in self._heard:
                await self._rung.wait()
                self._rung.clear()
        self._heard = Wake(0)
        return True
