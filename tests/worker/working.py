"""A worker beside the test, conditions to wait for, and a store that fails when told to."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from mainspring import Mainspring
from mainspring.events import Event
from mainspring.job import Claim, Job, Status
from mainspring.stores.protocol import WorkerInfo
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import Worker
from mainspring.worker.run import Run

DEADLINE = 60.0  # seconds; far more than anything takes, for a machine that has other things to do
QUICK: dict[str, Any] = {"heartbeat_interval": 0.03, "maintenance_interval": 0.03, "grace": 5.0}


async def eventually(condition: Callable[[], Any], within: float = DEADLINE) -> Any:
    """What the condition gave when it first was true."""
    end = time.monotonic() + within
    while True:
        found: Any = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            msg = f"waited {within} s in vain"
            raise AssertionError(msg)
        await asyncio.sleep(0.003)


def new_app(**store: Any) -> Mainspring:
    return Mainspring(MemoryStore(**store))


@contextlib.asynccontextmanager
async def working(app: Mainspring, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that has joined; it is stopped at the end, if it has not been."""
    worker = Worker(app, **{**QUICK, **settings})
    serving = asyncio.create_task(worker.serve())
    try:
        await eventually(lambda: joined(app, worker, serving))
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(DEADLINE):
            await serving


async def joined(app: Mainspring, worker: Worker, serving: asyncio.Task[None]) -> bool:
    if serving.done():
        serving.result()
    with contextlib.suppress(Exception):
        return worker.id in [info.id for info in (await app.stats()).workers]
    return False


async def stopped(worker: Worker) -> None:
    """Tell it, and wait until it has left."""
    worker.stop()
    await eventually(lambda: left(worker))


async def left(worker: Worker) -> bool:
    return worker.id not in [info.id for info in (await worker.runtime.store.stats()).workers]


async def ended(app: Mainspring, *ids: str) -> list[Job]:
    """The jobs, once all of them have finished."""
    return await reached(app, *ids, statuses=(Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED))


async def reached(app: Mainspring, *ids: str, statuses: tuple[Status, ...]) -> list[Job]:
    async def found() -> list[Job] | None:
        jobs = [await app.jobs.get(job_id) for job_id in ids]
        return jobs if all(job.status in statuses for job in jobs) else None

    try:
        jobs: list[Job] = await eventually(found)
    except AssertionError as error:
        seen = [await app.jobs.get(job_id) for job_id in ids]
        shown = [(job.status.name, job.attempts, job.reason, job.failure and job.failure.message) for job in seen]
        msg = f"{error}; the jobs: {shown}"
        raise AssertionError(msg) from error
    return jobs


def record(app: Mainspring, *kinds: type[Event]) -> list[Any]:
    """All events of these kinds, as they come."""
    events: list[Any] = []

    async def remember(event: Event) -> None:
        events.append(event)

    for kind in kinds:
        app.runtime.bus.subscribe(kind, remember)
    return events


def fields_of(caplog: Any, event: str) -> list[dict[str, Any]]:
    """The fields of each log line about an event."""
    return [
        getattr(record, "fields", {})
        for record in caplog.records
        if record.name.startswith("mainspring") and record.getMessage().split(" ")[0] == event
    ]


@contextlib.contextmanager
def all_logs(caplog: Any) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, logger="mainspring"):
        yield


def claim_of(**fields: Any) -> Claim:
    values: dict[str, Any] = {
        "id": "j1", "token": 1, "task": "work", "queue": "default", "payload": "{}", "priority": 2, "attempts": 0,
        "max_attempts": 3, "crashes": 0, "timeout": 0, "run_at": 0, "created_at": 0,
    }  # fmt: skip
    return Claim(**{**values, **fields})


def run_of(app: Mainspring, task: str, **fields: Any) -> Run:
    run = Run(claim_of(task=task, **fields), app.tasks[task], 0.0)
    run.started_at = 1000
    return run


class FakeContact:
    """Remembers the errors that it was told of, and the end of outages as None."""

    def __init__(self) -> None:
        self.told: list[Exception | None] = []

    def failed(self, caller: str, error: Exception) -> None:
        del caller
        self.told.append(error)

    def answered(self, caller: str) -> None:
        del caller
        self.told.append(None)


def member(name: str = "other") -> WorkerInfo:
    return WorkerInfo(name, "host", 1, ("*",))


class FaultyStore(MemoryStore):
    """Raises `fault` from the methods named in `broken`, before they did anything; counts the calls that failed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.broken: set[str] = set()
        self.fault: BaseException = RuntimeError("not told which")
        self.failed: Counter[str] = Counter()
        self.written: Counter[tuple[str, int]] = Counter()  # acks that were accepted, per claim

    def fail(self, *methods: str, fault: BaseException) -> None:
        self.fault = fault
        self.broken = set(methods)

    def heal(self) -> None:
        self.broken = set()

    def _check(self, method: str) -> None:
        if method in self.broken:
            self.failed[method] += 1
            raise self.fault

    async def open(self) -> None:
        self._check("open")
        await super().open()

    async def join(self, *args: Any, **kwargs: Any) -> None:
        self._check("join")
        await super().join(*args, **kwargs)

    async def leave(self, *args: Any, **kwargs: Any) -> None:
        self._check("leave")
        await super().leave(*args, **kwargs)

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        self._check("claim")
        return await super().claim(*args, **kwargs)

    async def ack(self, outcomes: Any) -> Any:
        self._check("ack")
        statuses = await super().ack(outcomes)
        for outcome, status in zip(outcomes, statuses, strict=True):
            self.written[outcome.job_id, outcome.token] += status is not None
        return statuses

    async def heartbeat(self, *args: Any, **kwargs: Any) -> Any:
        self._check("heartbeat")
        return await super().heartbeat(*args, **kwargs)

    async def reap(self, *args: Any) -> Any:
        self._check("reap")
        return await super().reap(*args)

    async def report(self, *args: Any, **kwargs: Any) -> Any:
        self._check("report")
        return await super().report(*args, **kwargs)

    async def prune(self, *args: Any, **kwargs: Any) -> Any:
        self._check("prune")
        return await super().prune(*args, **kwargs)

    async def halts(self) -> Any:
        self._check("halts")
        return await super().halts()
