"""A durable function that asks for twenty things, and a store that dies with its process at a chosen commit.

Each step writes a line into a file of its own before it gives anything back: what really ran is read from there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring import Context, Mainspring
from mainspring.job import NewJob
from mainspring.options import Ack

SAVES, ACKS, CLAIMS = 19, 3, 3
"""The commits of such a job without trouble.

Saves: 16 steps, a signal, a child and what it gave. Acks: two that leave the worker, and the end. A claim per run.
"""


@dataclass(frozen=True)
class Boundary:
    """Die at this commit of the job, on this side of it."""

    method: str
    number: int
    side: str

    def __str__(self) -> str:
        return f"{self.side} {self.method} {self.number}"


BOUNDARIES = [
    Boundary(method, number, side)
    for method, count in (("save", SAVES), ("ack", ACKS), ("claim", CLAIMS))
    for number in range(1, count + 1)
    for side in ("before", "after")
    if (method, side) != ("claim", "before")  # then nothing has happened
]
A_FEW = [
    at for at in BOUNDARIES if at.number in {"save": {1, 16, 17}, "ack": {1, 2, 3}, "claim": {2}}[at.method]
]  # of each kind
STEPS = [f"step {number}" for number in range(1, 17)]


class Ledger:
    """Beside the store, and never read by it. A line is one `write` to a file that is opened for appending."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, job_id: str, what: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{job_id} {what}\n".encode())
        os.close(file)

    def of(self, job_id: str) -> Counter[str]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return Counter(what for owner, _, what in (line.partition(" ") for line in lines) if owner == job_id)


def define(app: Mainspring, ledger: Ledger, ack: Ack = "grouped") -> None:
    def note_plainly(job_id: str, number: int) -> int:
        ledger.note(job_id, f"step {number}")
        return number

    async def note(job_id: str, number: int) -> int:
        return note_plainly(job_id, number)

    @app.task(name="child")
    async def child(parent: str, number: int) -> int:
        ledger.note(parent, "child")
        return 2 * number

    @app.task(name="twenty", max_attempts=1, ack=ack)
    async def twenty(ctx: Context, nap: float) -> int:
        total = 0
        for number in range(1, 7):
            total += await ctx.step(f"step {number}", note, ctx.job_id, number)
        await ctx.sleep(nap)
        for number in range(7, 11):
            total += await ctx.step(f"step {number}", note_plainly, ctx.job_id, number)
        signal = await ctx.wait_for(f"go:{ctx.job_id}")
        assert signal is not None
        for number in range(11, 15):
            total += await ctx.step(f"step {number}", note, ctx.job_id, number)
        one = await ctx.spawn(child.using(queue=ctx.queue), parent=ctx.job_id, number=signal.payload)
        (doubled,) = await ctx.gather(one)
        for number in (15, 16):
            total += await ctx.step(f"step {number}", note, ctx.job_id, number)
        return total + int(doubled)


RESULT = sum(range(1, 17)) + 2 * 1000


async def put(app: Mainspring, queue: str, nap: float) -> str:
    """The signal comes long before anybody waits for it."""
    job: NewJob = app.tasks["twenty"].using(queue=queue).prepare(nap=nap)
    await app.signal(f"go:{job.id}", 1000)
    await app.enqueue_all([job])
    return job.id


def watch(store: Any, job_id: str, at: Boundary, die: Callable[[], Awaitable[None]]) -> None:
    """Have the store's process die there. Counted are the commits of this job only, not of its child."""
    seen = 0
    real = getattr(store, at.method)

    async def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if at.method != "claim" and concerns(args[0], job_id):
            seen += 1
            if at.side == "before" and seen == at.number:
                await die()
        answer = await real(*args, **kwargs)
        if at.method == "claim" and any(claim.id == job_id for claim in answer.jobs):
            seen += 1
        if at.side == "after" and seen == at.number:
            await die()
        return answer

    setattr(store, at.method, watched)


def concerns(items: Sequence[Any], job_id: str) -> bool:
    return any(item.job_id == job_id for item in items)


def problems(ledger: Ledger, job_id: str, at: Boundary) -> list[str]:
    """Only the step that was being recorded may have run twice, and then it has."""
    ran = ledger.of(job_id)
    in_flight = STEPS_BY_SAVE.get(at.number) if (at.method, at.side) == ("save", "before") else None
    expected = Counter([*STEPS, "child", *([in_flight] if in_flight else [])])
    return [
        f"{at}: {what} ran {ran[what]} times, not {expected[what]}"
        for what in expected | ran
        if ran[what] != expected[what]
    ]


# Which step a save records: the 11th is the wait, the 16th the child, the 17th what it gave.
OTHERS = {11, 16, 17}
STEPS_BY_SAVE = dict(zip((number for number in range(1, SAVES + 1) if number not in OTHERS), STEPS, strict=True))
