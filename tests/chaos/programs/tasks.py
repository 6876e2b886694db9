"""The application of the chaos tests: tasks of every kind, each of which writes down that it ran."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mainspring import Rate
from mainspring.app import Mainspring
from mainspring.clock import SETTLE_SECONDS, Clock, Millis, SteadyClock, SystemClock
from mainspring.context import Context
from mainspring.events import JobCompleted
from mainspring.job import NewJob
from mainspring.retry import Retry
from tests.chaos.ledger import Pen
from tests.chaos.programs.own import EFFECTS, write_effect

MIXTURE = ("quick", "quick_sync", "short", "threaded", "flaky", "parent", "effect")
BLINK = 0.02  # seconds; the longest of the short handlers
AGAIN = Retry(max_attempts=100, base=0.01, max_delay=0.05)


class WoundClock(SystemClock):
    """Shows the machine's time, moved by the seconds that stand in a file."""

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / "clock"

    def now(self) -> Millis:
        return super().now() + 1000 * int(self._file.read_text())


def shop_by_wound_clock(folder: str, who: str, settings: str = "", settle: float = SETTLE_SECONDS) -> Shop:
    """One that goes by a clock which the test can set, and has a task with a rate."""
    shop = Shop(folder, who, settings, SteadyClock(WoundClock(folder), settle=settle))
    define_paced(shop)
    return shop


class Shop:
    """The application as one process has it."""

    def __init__(self, folder: str, who: str, settings: str = "", clock: Clock | None = None) -> None:
        self.folder, self.who = Path(folder), who
        self.pen = Pen(self.folder / "ledger", who)
        self.app = Mainspring(with_settings(os.environ["CHAOS_DATABASE"], settings), clock=clock)
        self.app.on(JobCompleted)(self._completed)
        define_short(self)
        define_with_effects(self)
        define_held(self)
        define_harmful(self)

    def prepare(
        self,
        task: str,
        number: int = 1,
        timeout: float | None = None,
        delay: float | None = None,
        **payload: object,
    ) -> list[NewJob]:
        enqueuer = self.app.tasks[task].using(timeout=timeout, delay=delay)
        return [enqueuer.prepare(**payload) for _ in range(number)]

    @contextlib.contextmanager
    def noted(self, ctx: Context) -> Iterator[None]:
        """One run, in the ledger."""
        self.pen.write("start", ctx.job_id, token(ctx))
        try:
            yield
        except BaseException:
            self.pen.write("fail", ctx.job_id, token(ctx))
            raise
        self.pen.write("end", ctx.job_id, token(ctx))

    def may_go(self, ctx: Context) -> bool:
        return (self.folder / f"go-{token(ctx)}").exists()

    def wait(self, ctx: Context) -> None:
        """In a thread."""
        ctx.progress(0.5, f"by {token(ctx)}")
        while not self.may_go(ctx):
            time.sleep(0.005)

    def say_all(self, ctx: Context) -> int:
        """Everything that a run can say in its job's name."""
        ctx.progress(1.0, f"by {token(ctx)}")
        ctx.follow_up(*self.prepare("child", of=f"{ctx.job_id}/{token(ctx)}"))
        return token(ctx)

    def _completed(self, event: JobCompleted) -> None:
        self.pen.write("done", event.job_id)


def with_settings(url: str, settings: str) -> str:
    if not settings:
        return url
    return f"{url}{'&' if '?' in url else '?'}{settings}"


def token(ctx: Context) -> int:
    return ctx._claim.token


def define_short(shop: Shop) -> None:
    app, noted = shop.app, shop.noted

    @app.task()
    async def quick(ctx: Context, number: int = 0) -> int:
        with noted(ctx):
            return number

    @app.task()
    async def padded(ctx: Context, text: str) -> int:
        with noted(ctx):
            return len(text)

    @app.task(ack="sync")
    async def quick_sync(ctx: Context, number: int = 0) -> int:
        with noted(ctx):
            return number

    @app.task()
    async def short(ctx: Context) -> None:
        with noted(ctx):
            await asyncio.sleep(random.uniform(0, BLINK))

    @app.task()
    def threaded(ctx: Context) -> None:
        with noted(ctx):
            time.sleep(random.uniform(0, BLINK))

    @app.task(retry=AGAIN)
    async def flaky(ctx: Context) -> None:
        with noted(ctx):
            if ctx.attempt < 3:
                raise RuntimeError("not yet")


def define_with_effects(shop: Shop) -> None:
    app, noted = shop.app, shop.noted

    @app.task()
    async def parent(ctx: Context) -> None:
        """Its child is committed with its completion, or not at all."""
        with noted(ctx):
            ctx.follow_up(child.prepare(of=ctx.job_id))

    @app.task()
    async def child(ctx: Context, of: str) -> str:
        with noted(ctx):
            return of

    @app.task(retry=AGAIN)  # its connection may be cut
    async def effect(ctx: Context) -> None:
        """So is what it writes."""
        with noted(ctx):
            async with ctx.transaction() as connection:
                written = write_effect(connection, ctx.job_id)
                if inspect.isawaitable(written):
                    await written


def define_held(shop: Shop) -> None:
    """Tasks that wait until the test lets them go, by a file that is named after the run: `go-1`."""
    app, noted = shop.app, shop.noted

    @app.task(retry=AGAIN)
    async def held(ctx: Context) -> int:
        with noted(ctx):
            ctx.progress(0.5, f"by {token(ctx)}")
            while not shop.may_go(ctx):  # noqa: ASYNC110 - the event is another process's
                await asyncio.sleep(0.005)
            return shop.say_all(ctx)

    @app.task(retry=AGAIN)
    def held_thread(ctx: Context) -> int:
        """Does not listen when it is told to stop."""
        with noted(ctx):
            shop.wait(ctx)
            return shop.say_all(ctx)

    @app.task(retry=AGAIN)
    def held_quietly(ctx: Context) -> int:
        """The same, and says no more than that it is done."""
        with noted(ctx):
            shop.wait(ctx)
            return token(ctx)

    @app.task(retry=AGAIN)
    def held_transaction(ctx: Context) -> None:
        with noted(ctx):
            shop.wait(ctx)
            ctx.set_result(shop.say_all(ctx))
            with ctx.transaction() as connection:
                connection.execute(EFFECTS)
                write_effect(connection, f"{ctx.job_id}/{token(ctx)}")

    @app.task(retry=AGAIN)
    def ticking(ctx: Context) -> None:
        """Does not listen either, and shows that it is still there."""
        with noted(ctx):
            while not shop.may_go(ctx):
                shop.pen.write("note", ctx.job_id, token(ctx))
                time.sleep(0.001)


def define_paced(shop: Shop) -> None:
    @shop.app.task(limits=[Rate(20, per=1, burst=1)])
    async def paced(ctx: Context) -> None:
        with shop.noted(ctx):
            pass


def define_harmful(shop: Shop) -> None:
    app, noted = shop.app, shop.noted

    @app.task()
    async def segfault(ctx: Context) -> None:
        with noted(ctx):
            ctypes.string_at(0)

    @app.task()
    async def blocking(ctx: Context, seconds: float) -> None:
        """Keeps the event loop, without the interpreter."""
        with noted(ctx):
            time.sleep(seconds)  # noqa: ASYNC251 - that is what it is about

    @app.task()
    async def hungry(ctx: Context, seconds: float, threads: int = 4) -> None:
        """Keeps the event loop and the interpreter, with several threads."""
        with noted(ctx):
            eaters = [threading.Thread(target=eat, args=(seconds,)) for _ in range(threads)]
            for eater in eaters:
                eater.start()
            eat(seconds)
            for eater in eaters:
                eater.join()


def eat(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
