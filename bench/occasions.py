"""`python -m bench.occasions --people 100000`: people in, and what a day of them costs.

On a virtual clock: writes a CSV file of people in all time zones, imports it, imports it again, looks ahead, and goes
through one day (or, with --same-day, the day on which all of them were born) from each due time to the next, as a
worker does.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from mainspring import Mainspring, Person
from mainspring.clock import to_millis
from mainspring.features.schedules.rules import tz_names
from mainspring.testing.clock import ManualClock

DAY = datetime(2026, 6, 15, tzinfo=UTC)
START = DAY - timedelta(days=3)


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        work = Path(directory)
        file = work / "people.csv"
        write_people(file, options.people, same_day=options.same_day)
        asyncio.run(measure(options.store or f"sqlite:///{work / 'jobs.db'}", file, options))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.occasions", description=__doc__)
    parser.add_argument("--people", type=int, default=100_000, metavar="N")
    parser.add_argument("--same-day", action="store_true", help="all of them were born on one day")
    parser.add_argument("--store", metavar="URL", help="an empty store; a file of its own unless given")
    parser.add_argument("--directory", type=Path, help="where to put the files")
    return parser.parse_args()


def write_people(path: Path, people: int, *, same_day: bool) -> None:
    chance = random.Random(1)
    names = sorted(tz_names())
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "tz", "first_name", "last_name", "email", "birthday"])
        for number in range(people):
            born = DAY.date() if same_day else date(2024, 1, 1) + timedelta(days=chance.randrange(366))
            day = born.replace(year=chance.randrange(1940, 2010, 4))
            name = f"p{number:07}"
            rows.writerow([name, chance.choice(names), "Ana", "Lee", f"{name}@example.com", day])


async def measure(url: str, file: Path, options: argparse.Namespace) -> None:
    clock = ManualClock(START)
    app = Mainspring(url, clock=clock)

    @app.occasion("birthday")
    async def greet(person: Person) -> None: ...

    with timed("import", options.people):
        await app.people.import_csv(file)
    with timed("import again", options.people):
        await app.people.import_csv(file)
    begin = time.perf_counter()
    await app.occasions.upcoming(timedelta(days=7), limit=100)
    say("look a week ahead", f"{(time.perf_counter() - begin) * 1000:.1f} ms for the first 100")
    # the day of one date is longer: it begins at UTC+14 and ends at UTC-12
    begin_at = DAY - timedelta(hours=14 if options.same_day else 0)
    await a_day(app, clock, begin_at, DAY + timedelta(days=1))
    await app.close()


async def a_day(app: Mainspring, clock: ManualClock, begin_at: datetime, end_at: datetime) -> None:
    move_to(clock, to_millis(begin_at))
    await app.runtime.timers.run_due()
    before = await app.jobs.count()
    end, batches, worst, spent = to_millis(end_at), 0, 0.0, 0.0
    while (due := await app.runtime.timers.run_due()) is not None and due <= end:
        move_to(clock, due)
        begin = time.perf_counter()
        await app.runtime.timers.run_due()
        took = time.perf_counter() - begin
        batches, worst, spent = batches + 1, max(worst, took), spent + took
    jobs = await app.jobs.count() - before
    say(
        "one day",
        f"{jobs:,} jobs at {batches} moments in {spent:.2f} s, the fullest {worst:.2f} s{memory()}",
    )


def move_to(clock: ManualClock, moment: int) -> None:
    clock.advance(timedelta(milliseconds=moment - clock.now()))


@contextmanager
def timed(what: str, people: int) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    took = time.perf_counter() - begin
    say(what, f"{took:.1f} s, {people / took:,.0f}/s{memory()}")


def memory() -> str:
    return f"; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most so far"


def say(what: str, text: str) -> None:
    print(f"{what:20} {text}", flush=True)


if __name__ == "__main__":
    main()
