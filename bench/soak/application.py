"""The application that soaks: one task of each kind. Every run that ends adds a line to a file beside the store."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mainspring import Context, Mainspring, Retry

STORE = "SOAK_STORE"
ENDS = "SOAK_ENDS"  # the file

app = Mainspring(os.environ.get(STORE, "memory://"))


def note_end(ctx: Context) -> None:
    """Write the job's id outside of the store, so that the store can be compared with what really happened."""
    with Path(os.environ[ENDS]).open("a", encoding="utf-8") as file:
        file.write(f"{ctx.job_id}\n")  # one short write to a file opened for appending: lines do not mix


@app.task(queue="mail")
async def send(ctx: Context, n: int) -> int:
    """Wait a little, like talking to another server."""
    await asyncio.sleep(0.01)
    note_end(ctx)
    return n


@app.task(queue="reports")
def report(ctx: Context, n: int) -> int:
    """Run in a thread."""
    ctx.progress(0.5, "half")
    note_end(ctx)
    return n


@app.task(queue="payments", retry=Retry(max_attempts=5, base=0.2, max_delay=1))
async def charge(ctx: Context, n: int) -> int:
    """Fail at the first attempt."""
    if ctx.attempt == 1:
        msg = f"the bank did not answer for order {n}"
        raise ConnectionError(msg)
    note_end(ctx)
    return n


@app.task(queue="trips")
async def plan_trip(ctx: Context, n: int) -> int:
    """Take two steps with a durable sleep between them."""
    first = await ctx.step("first", add_one, n)
    await ctx.sleep(0.5)
    second = await ctx.step("second", add_one, first)
    note_end(ctx)
    return second


async def add_one(n: int) -> int:
    return n + 1


@app.every("5s")
async def tick() -> None:
    """Fire all the time, so that schedules and their ledger take part."""


TASKS = ("send", "send", "send", "report", "charge", "plan_trip")  # how often each is enqueued
