"""Tasks for child processes: they are found by the module that defines them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze
from mainspring.stores.sqlite import MemoryStore

app = Mainspring(MemoryStore())


class Page(BaseModel):
    number: int
    day: date


class OurError(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.task(isolation="process")
def pid() -> int:
    return os.getpid()


@app.task(isolation="process")
def tells(words: str) -> None:
    logging.getLogger("shop.mail").info(words)


@app.task(isolation="process")
async def pid_of_coroutine() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task()
async def where_told() -> int:
    return os.getpid()


@app.task(isolation="process")
def page(number: int) -> Page:
    return Page(number=number, day=date(2026, 1, number))


@app.task(isolation="process")
def next_day(day: date) -> date:
    return day + timedelta(days=1)


@app.task(isolation="process")
def describe(ctx: Context) -> list[Any]:
    return [ctx.job_id, ctx.attempt, ctx.queue, list(ctx.tags), ctx.target, ctx.worker]


@app.task(isolation="process", retry=Retry.fixed(0, max_attempts=3, jitter_share=0))
def fails(kind: str) -> Any:
    if kind == "value":
        raise ValueError("wrong\udce9")
    if kind == "ours":
        raise OurError(7, "seven")
    if kind == "group":
        raise ExceptionGroup("many", [OSError("one")])
    if kind == "unicode":
        return b"\xff".decode()
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "mute":
        raise Mute
    if kind == "result":
        return object()
    raise AssertionError(kind)


@app.task(isolation="process", retry=Retry(max_attempts=5, base=0, never=(OurError, LookupError)))
def picky(kind: str) -> None:
    if kind == "ours":
        raise OurError(7, "seven")
    raise KeyError(kind)


@app.task(isolation="process", max_attempts=5)
async def lasts(ctx: Context, call: str) -> None:
    if call == "sleep":
        await ctx.sleep(1)
    if call == "transaction":
        async with ctx.transaction():
            pass
    await ctx.spawn(where_told)


@app.task(isolation="process", max_attempts=2)
def signals(kind: str) -> None:
    if kind == "snooze":
        raise Snooze(3600, "later")
    if kind == "cancel":
        raise Cancel("not needed")
    raise Discard("hopeless", code="E-9")


@app.task(isolation="process", max_attempts=1)
def dies(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(isolation="process", max_attempts=1)
def hangs(note: str, deaf: bool = False) -> None:
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path = Path(note)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(3600)


@app.task(isolation="process")
def reports(ctx: Context, note: str) -> None:
    ctx.progress(0.5, "half")
    while not Path(note).exists():
        time.sleep(0.005)
    ctx.progress(1.0, "done")


@app.task(isolation="process")
def follows(ctx: Context) -> str:
    ctx.follow_up(where_told.using(tags=["followed"], target=("page", "1")).prepare())
    ctx.set_result("better known")
    return "ignored"


@app.task(isolation="process")
def big(size: int) -> str:
    return "x" * size


def note_in(path: str, word: str) -> str:
    with Path(path).open("a") as file:
        file.write(f"{word} ")
    return word


async def note_later(path: str, word: str) -> str:
    await asyncio.sleep(0)
    return note_in(path, word)


def die_once(ctx: Context, path: str) -> int:
    ctx.save_state_sync("render", {"frame": 900, "attempt": ctx.attempt})
    note_in(path, "render")
    if ctx.attempt == 1 and Path(path).read_text().count("render") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


@app.task(isolation="process", retry=Retry.fixed(0, max_attempts=3, jitter_share=0))
def steps_sync(ctx: Context, path: str) -> list[Any]:
    found = ctx.step_state_sync("render")
    first = ctx.step_sync("prepare", note_in, path, "prepare")
    return [found, list(ctx.plan), first, ctx.step_sync("render", die_once, ctx, path)]


@app.task(isolation="process", retry=Retry.fixed(0, max_attempts=3, jitter_share=0))
async def steps_async(ctx: Context, path: str) -> list[Any]:
    found = await ctx.step_state("render")
    both = await asyncio.gather(
        ctx.step("prepare", note_later, path, "prepare"), ctx.step("fetch", note_in, path, "fetch")
    )
    return [found, list(ctx.plan), sorted(both), await ctx.step("render", die_once, ctx, path)]


@app.task(isolation="process", retry=Retry.fixed(0, max_attempts=2, jitter_share=0))
async def slow_steps(ctx: Context, kind: str) -> str:
    steps = ctx.using(timeout=0.2)
    if kind == "busy":
        await steps.step("render", busy)
    if kind == "caught":
        try:
            await steps.step("render", asyncio.sleep, 60)
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"
    return str(await steps.step("render", asyncio.sleep if kind == "coroutine" else time.sleep, 60))


async def busy() -> None:
    time.sleep(60)  # noqa: ASYNC251 - it blocks the loop on purpose


@app.task(isolation="process", retry=Retry.fixed(0, max_attempts=2, jitter_share=0))
def slow_sync(ctx: Context) -> None:
    ctx.step_sync("render", time.sleep, 60)


@app.task(isolation="process", max_attempts=1)
def unplanned(ctx: Context, twice: bool) -> None:
    ctx.step_sync("prepare", str, 1)
    ctx.step_sync("prepare" if twice else "upload", str, 2)
