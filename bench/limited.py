"""Tasks with limits, for the measurements of what those cost. Only Mainspring is measured so; see docs/flow.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench import tally
from bench.peer import TEXT
from mainspring import Fair, Mainspring, Rate
from mainspring.ids import new_id
from mainspring.job import NewJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring import Job

SERVICE = 0.05  # seconds that a job of `served` takes
NEVER_REACHED = 10_000_000  # starts per second
JOBS_PER_CALL = 5_000


def define(url: str) -> Mainspring:
    app = Mainspring(url)

    @app.task(limits=[Rate(NEVER_REACHED)])
    async def rated(n: int, s: str) -> None:
        tally.mark(n)

    @app.task(fair=Fair(lambda p: p.s))
    async def shared(n: int, s: str) -> None:
        tally.mark(n)

    @app.task(fair=Fair(lambda p: p.s))
    async def served(n: int, s: str) -> None:
        await asyncio.sleep(SERVICE)
        tally.mark(n)

    return app


async def fill(app: Mainspring, task: str, numbers: Sequence[int], keys: int) -> None:
    """Spread over so many keys; with one key all have the same text as the others' jobs."""
    names = [TEXT] if keys == 1 else [f"tenant {number}" for number in range(keys)]
    await app.tasks[task].enqueue_many({"n": number, "s": names[number % len(names)]} for number in numbers)


async def block(app: Mainspring, jobs: int) -> None:
    """As if a limit had been in their way."""
    payload = app.tasks["rated"].prepare(n=0, s=TEXT).payload
    for start in range(0, jobs, JOBS_PER_CALL):
        numbers = range(start, min(start + JOBS_PER_CALL, jobs))
        await app.store.insert([NewJob(new_id(), "rated", payload, waits_for="limit:bench") for _ in numbers])


async def probe(app: Mainspring, tenant: str, timeout: float) -> float:
    """Of a single job of another tenant, how long it had to wait: in service times."""
    handle = await app.tasks["served"].enqueue(n=0, s=tenant)
    await handle.result(timeout)
    job: Job = await handle.get()
    assert job.started_at is not None
    return (job.started_at - job.created_at).total_seconds() / SERVICE
