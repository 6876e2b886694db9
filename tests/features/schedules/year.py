"""A year in which much goes wrong.

Processes come, go, die and are stopped, clocks are set, the system is halted, a new tzdata arrives.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from mainspring import Mainspring
from mainspring.clock import to_datetime
from mainspring.features.schedules.firing import SCHEDULES, Entry
from mainspring.features.schedules.rules import PACKAGED, Misfire, TzData
from mainspring.features.schedules.timer import PastHalt, past_halts
from mainspring.job import Status
from mainspring.options import Retention
from mainspring.stores.documents import Listing
from mainspring.stores.protocol import Filter
from mainspring.testing.clock import ManualClock
from tests.features.schedules.year_oracle import (
    Halted,
    Made,
    Record,
    Times,
    by_changing_rules,
    in_real_time,
    on_the_wall,
)
from tests.shared import Make, stores

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
CHANGED = "Europe/Paris"  # gives up summer time in the newer tzdata
UPGRADED_WITHIN = timedelta(days=7)  # meanwhile some processes have the old tzdata, some the new
COLLECT_EVERY = timedelta(days=30)  # the ledger forgets after ninety
KEEP = Retention(completed=timedelta(days=4000))


@dataclass(frozen=True)
class Plan:
    """One of the year's schedules, and when it should fire as the oracle knows it."""

    rule: str
    tz: str
    matches: Callable[[datetime], bool] | int  # of a wall time; or so many hours of real time
    policies: dict[str, Any] = field(default_factory=dict)
    catches_up: bool = False
    lets_go: bool = False
    jitter: timedelta = timedelta()


def at(*times: str) -> Callable[[datetime], bool]:
    return lambda wall: f"{wall:%H:%M}" in times


PLANS = {
    "berlin": Plan("30 2 * * *", "Europe/Berlin", at("02:30")),
    "york": Plan(
        "0 1,13 * * *", "America/New_York", at("01:00", "13:00"), {"misfire": Misfire.all(1000)}, catches_up=True
    ),
    "interval": Plan("every 12h", "UTC", 12),
    "months": Plan(
        "monthly last 23:30",
        "Pacific/Auckland",
        lambda wall: at("23:30")(wall) and (wall + DAY).day == 1,
        {"misfire": Misfire.all(1000)},
        catches_up=True,
    ),
    "weekdays": Plan(
        "15 8 * * mon-fri",
        "Europe/London",
        lambda wall: at("08:15")(wall) and wall.weekday() < 5,
        {"misfire": Misfire.skip()},
        lets_go=True,
    ),
    "jitter": Plan("daily 09:00", "Asia/Tokyo", at("09:00"), {"jitter": "10m"}, jitter=timedelta(minutes=10)),
    "grace": Plan("45 1 * * *", "Australia/Lord_Howe", at("01:45"), {"misfire": Misfire.all(3, grace="30h")}),
    "overlap": Plan("0 */8 * * *", "UTC", 8, {"overlap": "skip"}),
    "paused": Plan("daily 06:00", "America/Sao_Paulo", at("06:00"), {"misfire": Misfire.all(1000)}, catches_up=True),
    "changed": Plan("daily 07:00", CHANGED, at("07:00")),
}


class Died(Exception):
    """A process that is no more."""


@dataclass
class Process:
    app: Mainspring
    tzdata: TzData
    starting: bool = True


class World:
    def __init__(self, make: Make, clock: ManualClock, newer: TzData, rng: random.Random) -> None:
        self._make, self._clock, self._newer, self._rng = make, clock, newer, rng
        self.start = self.now()
        self.processes: list[Process] = []
        self.tzdata = PACKAGED_ONES
        self.pauses: list[tuple[datetime, datetime]] = []
        self.looks: set[datetime] = set()
        self.entries: dict[tuple[str, str], Entry] = {}
        self.happened: dict[str, int] = {}
        self._collected = self.start
        self._paused_since: datetime | None = None
        self._steady_until = self.start  # the clock is not set before that
        self._nested = False
        self.halts: list[Halted] = []
        self.past_halts: dict[datetime, PastHalt] = {}

    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    def note(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    # -- processes --------------------------------------------------------------------------------

    async def begin(self) -> None:
        async with self._reader() as app:
            job = app.task(name="work")(work).prepare()
            for name, plan in PLANS.items():
                await app.schedules.put(name, plan.rule, job, tz=plan.tz, **plan.policies)

    async def start_one(self) -> None:
        app = Mainspring(self._make(), retention=KEEP)
        app.task(name="work")(work)
        self._interrupt(app)
        self.processes.append(Process(app, self.tzdata))

    def _interrupt(self, app: Mainspring) -> None:
        """Between deciding and writing, a process may stand still for hours, or die; or it dies right after."""
        write = app.store.write

        async def interrupted(bundles: Any) -> Any:
            chance = self._rng.random()
            if chance < 0.10 and not self._nested:
                await self._meanwhile(app)
            if 0.10 <= chance < 0.13:
                self.note("died before the write")
                raise Died
            answers = await write(bundles)
            if 0.13 <= chance < 0.16:
                self.note("died after the write")
                raise Died
            return answers

        app.store.write = interrupted  # type: ignore[method-assign]

    async def _meanwhile(self, stopped: Mainspring) -> None:
        """The others go on, and time passes."""
        self.note("stopped before the write")
        self._nested = True
        for other in [process for process in self.processes if process.app is not stopped]:
            self._clock.advance(timedelta(minutes=self._rng.choice([0, 1, 45, 600])))
            await self.turn(other)
        self._nested = False

    async def turn(self, process: Process) -> None:
        """What a worker's timer does: find next times anew now and then, and fire what is due."""
        try:
            with PACKAGED.reading(process.tzdata):
                if process.starting or self._rng.random() < 0.2:
                    await process.app.runtime.timers.refresh()
                process.starting = False
                self.looks.add(self.now())
                await process.app.runtime.timers.run_due()
        except Died:
            await self.end(process)

    async def end(self, process: Process) -> None:
        if process in self.processes:
            self.processes.remove(process)
        with suppress(Exception):
            await process.app.close()

    # -- what happens -----------------------------------------------------------------------------

    async def live_until(self, end: datetime, changes_at: datetime) -> None:
        while self.now() < end:
            if self.tzdata is PACKAGED_ONES and self.now() >= changes_at:
                self.tzdata = self._newer
                self.note("a new tzdata")
            if self.now() >= changes_at + UPGRADED_WITHIN:
                await self._end_old_ones()
            await self._happen()
            for process in self._rng.sample(self.processes, len(self.processes)):
                if process in self.processes:
                    await self.turn(process)
            await self._pass_time()
            if self.now() - self._collected > COLLECT_EVERY:
                await self.collect()
        await self._finish()

    async def _end_old_ones(self) -> None:
        for process in [old for old in self.processes if old.tzdata is not self.tzdata]:
            await self.end(process)

    async def _pass_time(self) -> None:
        """To the minute of the next time, or for hours, or for days."""
        kind = self._rng.random()
        if kind < 0.55:
            self._clock.advance(self._to_next_quarter() + HOUR * self._rng.choice([0, 0, 1, 2, 4]))
        elif kind < 0.93:
            self._clock.advance(HOUR * self._rng.uniform(0.1, 14))
        else:
            self.note("an outage of days")
            self._clock.advance(HOUR * self._rng.uniform(24, 90))

    def _to_next_quarter(self) -> timedelta:
        quarter = timedelta(minutes=15)
        return quarter - (self.now() - datetime(2000, 1, 1, tzinfo=UTC)) % quarter

    async def _happen(self) -> None:
        while not self.processes or (len(self.processes) < 3 and self._rng.random() < 0.3):
            self.note("a process started")
            await self.start_one()
        if len(self.processes) > 1 and self._rng.random() < 0.06:
            self.note("a process ended")
            await self.end(self._rng.choice(self.processes))
        standing = self._paused_since is not None or self._halted
        if self.now() > self._steady_until and not standing and self._rng.random() < 0.06:
            forward = self._rng.random() < 0.5
            self.note("the clock was set forward" if forward else "the clock was set back")
            self._clock.shift(HOUR if forward else -HOUR)
            self._steady_until = self.now() + 3 * HOUR
        if self._rng.random() < 0.15:
            await self._end_runs()
        if self._rng.random() < 0.06:
            await self._pause_or_resume()
        if self._rng.random() < (0.25 if self._halted else 0.02):
            await self._halt_or_resume()

    @property
    def _halted(self) -> bool:
        return bool(self.halts) and self.halts[-1].until is None

    async def _halt_or_resume(self) -> None:
        """If new jobs are refused, nothing can be fired. The clock is not set while a halt lasts, nor shortly after."""
        if not self._halted and self.now() < self._steady_until:
            return
        async with self._reader() as app:
            if self._halted:
                await app.resume()
                self.halts[-1] = replace(self.halts[-1], until=self.now())
                self._steady_until = self.now() + 3 * HOUR
            else:
                accept = self._rng.random() < 0.4
                self.note(f"the system was halted, and {'took' if accept else 'refused'} new jobs")
                self.halts.append(Halted(self.now(), None, accepts=accept))
                await app.halt("moving", reject_new=not accept, actor="ana")

    async def _end_runs(self) -> None:
        self.note("runs ended")
        for process in self.processes[:1]:
            theirs = Filter(target_type="schedule", target_id="overlap", statuses=(Status.PENDING,))
            await process.app.jobs.cancel_where(theirs, actor="test")

    async def _pause_or_resume(self) -> None:
        """By a process of its own, which nothing stops. The clock is not set while a pause lasts."""
        if self._paused_since is None and self.now() < self._steady_until:
            return
        app = Mainspring(self._make())
        with PACKAGED.reading(self.tzdata):
            if self._paused_since is None:
                self._paused_since = self.now()
                await app.schedules.pause("paused")
                self.note("a schedule was paused")
            else:
                await app.schedules.resume("paused")
                self.pauses.append((self._paused_since, self.now()))
                self._paused_since, self._steady_until = None, self.now() + 3 * HOUR
        await app.close()

    async def _finish(self) -> None:
        """All processes run again, and everything that is due is decided."""
        if self._halted:
            await self._halt_or_resume()
        if self._paused_since is not None:
            await self._pause_or_resume()
        self._clock.advance(3 * HOUR)
        while True:
            await self.start_one()
            if await self._settled():
                break
        await self.collect()

    async def _settled(self) -> bool:
        last = self.processes[-1]
        await self.turn(last)
        return last in self.processes

    # -- what is left of it -----------------------------------------------------------------------

    async def collect(self) -> None:
        """Read the ledger before it forgets."""
        self._collected = self.now()
        async with self._reader() as app:
            self.past_halts |= {halt.since: halt for halt in await past_halts(app.store)}
            for name in PLANS:
                seen = None
                while page := await app.store.browse(Listing(SCHEDULES.collection, name, seen, 500)):
                    seen = page[-1].key.group, page[-1].key.id
                    self.entries |= {(name, document.key.id): Entry.from_document(document) for document in page}

    async def records(self) -> dict[str, Record]:
        async with self._reader() as app:
            jobs = [job async for job in app.jobs.all()]
            nexts = {schedule.id: schedule.next for schedule in await app.schedules.list()}
        assert all(nexts.values())
        return {
            name: Record(
                name,
                expected=self.expected(plan),
                entries=[entry for (of, _), entry in sorted(self.entries.items()) if of == name],
                jobs=[Made(job.id, job.run_at) for job in jobs if job.target == ("schedule", name)],
                looks=frozenset(self.looks),
                jitter=plan.jitter,
                pauses=self.pauses if name == "paused" else (),
                catches_up=plan.catches_up,
                lets_go=plan.lets_go,
                halts=self.halts,
                noted=[(halt.since, halt.seen) for halt in self.past_halts.values()],
            )
            for name, plan in PLANS.items()
        }

    def expected(self, plan: Plan) -> Times:
        if isinstance(plan.matches, int):
            return in_real_time(self.start, self.now(), plan.matches)
        zone, span = ZoneInfo(plan.tz), (self.start, self.now(), plan.matches)
        if plan.tz == CHANGED:
            return by_changing_rules(zone, ZoneInfo(WITHOUT_SUMMER), *span)
        return on_the_wall(zone, *span)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Mainspring]:
        app = Mainspring(self._make(), retention=KEEP)
        yield app
        await app.close()

    async def close(self) -> None:
        for process in list(self.processes):
            await self.end(process)


async def work() -> None: ...


async def live(kind: str, folder: Path, seed: int, *, start: datetime, days: int, changes_after: int) -> World:
    """A stretch of such a life, on a store of this kind; a new tzdata comes after some days."""
    clock = ManualClock(start)
    world = World(stores(kind, folder, clock), clock, newer_tzdata(folder), random.Random(seed))
    await world.begin()
    try:
        await world.live_until(start + days * DAY, start + changes_after * DAY)
    finally:
        await world.close()
    print(world.happened)  # pytest shows it when the test fails
    return world


WITHOUT_SUMMER = "Africa/Lagos"
PACKAGED_ONES = TzData()


def newer_tzdata(folder: Path) -> TzData:
    """All zones as they are, but for one."""
    copy = folder / "zoneinfo"
    shutil.copytree(
        str(files("tzdata").joinpath("zoneinfo")), copy, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    shutil.copy(copy / WITHOUT_SUMMER, copy / CHANGED)
    (copy / "+VERSION").write_text("2999a\n", "ascii")
    return TzData(copy)
