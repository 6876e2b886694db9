"""The change feed under chaos: nothing is lost, nothing is repeated, and the order of each job's changes is kept.

Triggers in the database are the ledger. In the transaction that changes a job, they note its old and new status, and
they know nothing of the feed. On DynamoDB, the stream of the table is the ledger: the service notes each item as it was
before and after each write. In the end, what each reader has seen of each job must be what the ledger says.

The same scene fails without the guard of the store. On PostgreSQL, a reader that remembers the highest number takes
part and loses changes, and so do the product's own readers if they do not compare snapshots. On DynamoDB, all readers
write the log, so each guard has a scene of its own without it. SQLite has no guard that could be taken out: there is
one writer at a time, so its numbers are in the order of commits. What could break it is a number that is used twice;
tests/conformance/feed.py checks that.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.stores.connect import connect
from mainspring.stores.feed import EVERY_CHANGE
from tests.chaos.conftest import LONG, Chaos, each_store_and_dynamodb, only_dynamodb, only_postgres
from tests.chaos.database import PostgresDatabase
from tests.chaos.dynamodb import DynamoDatabase
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.feed import STOP, lines_of
from tests.chaos.waiting import wait_until
from tests.chaos.workers import replace

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WRITERS = 6
READERS = {"sqlite": 20, "postgres": 20, "dynamodb": 20 if LONG else 5}  # one process of the tests serves all of them
FEW_READERS = 5  # are enough to show that a guard is missing
PAGES = {"sqlite": (1, 2, 7, 500), "postgres": (1, 2, 7, 500), "dynamodb": (7, 50, 500)}  # entries
HOLD = {"sqlite": 0.02, "postgres": 0.8, "dynamodb": 0.8}  # seconds; an open transaction blocks all writers of SQLite
BROKEN = "by-number"
DAWDLE = 6.0  # seconds; longer than the first reader waits
CATCH_UP = 600 if LONG else 60  # seconds; readers with small pages are far behind

SQLITE_LEDGER = """
CREATE TABLE effects (job_id TEXT NOT NULL);
CREATE TABLE truth (n INTEGER PRIMARY KEY, job_id TEXT, was INTEGER, became INTEGER);
CREATE TRIGGER note_insert AFTER INSERT ON mainspring_jobs BEGIN
    INSERT INTO truth (job_id, was, became) VALUES (NEW.id, -1, NEW.status);
END;
CREATE TRIGGER note_update AFTER UPDATE OF status ON mainspring_jobs WHEN OLD.status <> NEW.status BEGIN
    INSERT INTO truth (job_id, was, became) VALUES (NEW.id, OLD.status, NEW.status);
END;
CREATE TRIGGER note_end AFTER INSERT ON mainspring_archive BEGIN
    INSERT INTO truth (job_id, was, became) VALUES (NEW.id, -1, NEW.status);
END;
"""
POSTGRES_LEDGER = """
CREATE TABLE public.truth (n bigint GENERATED ALWAYS AS IDENTITY, job_id text, was integer, became integer);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.truth (job_id, was, became) VALUES (NEW.id, -1, NEW.status);
    ELSIF OLD.status <> NEW.status THEN
        INSERT INTO public.truth (job_id, was, became) VALUES (NEW.id, OLD.status, NEW.status);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON mainspring.jobs FOR EACH ROW EXECUTE FUNCTION public.note();
CREATE TRIGGER note AFTER INSERT ON mainspring.archive FOR EACH ROW EXECUTE FUNCTION public.note();
"""
TRUTH = "SELECT job_id, was, became FROM truth ORDER BY n"
NAMES = {
    (0, 3): "started", (1, 3): "started", (2, 3): "started", (3, 0): "waits", (3, 1): "retrying", (3, 2): "suspended",
    (2, 0): "resumed", (1, 0): "retried", (-1, 4): "completed", (-1, 5): "dead_lettered", (-1, 6): "cancelled",
}  # fmt: skip
SAME = {"released": "waits", "snoozed": "waits"}
MORE = {"stalled", "cancel_requested"}  # the status says nothing about these
Seen = dict[str, list[str]]  # job -> what happened to it


@each_store_and_dynamodb
def test_the_feed_loses_repeats_and_reorders_nothing(nursery: Nursery, chaos: Chaos) -> None:
    scene = Scene(nursery, chaos.rng())
    scene.play(chaos.size(25, 1500))
    scene.check()
    if scene.kind == "postgres":
        scene.check_that_the_broken_reader_lost_changes()


@only_dynamodb
@pytest.mark.parametrize("guard", ["journal", "hint"] if LONG else ["journal"])
def test_without_a_guard_the_feed_is_wrong(nursery: Nursery, chaos: Chaos, guard: str) -> None:
    scene = Scene(nursery, chaos.rng(), without=guard)
    wait_until(lambda: len(nursery.ledger.acknowledged) >= 40, lambda: "enough jobs", every=0.1)
    scene.play(chaos.size(5, 100))
    problems = scene.problems()
    print(f"without the guard of the {guard}, {len(problems)} histories of jobs were wrong, such as {problems[:1]}")
    assert problems


@only_postgres
def test_without_its_guard_postgresql_loses_changes(nursery: Nursery, chaos: Chaos) -> None:
    """The product's own readers, but they do not look for transactions that were open at their last read."""
    scene = Scene(nursery, chaos.rng(), without="snapshot")
    scene.play(chaos.size(5, 100))
    problems = scene.problems()
    print(f"without the difference of snapshots, {len(problems)} histories of jobs were wrong, such as {problems[:1]}")
    assert problems


@only_dynamodb
def test_a_first_reader_that_begins_while_others_write_misses_nothing_silently(nursery: Nursery, chaos: Chaos) -> None:
    """Some writers are held up between their look and their write until the reader has begun.

    tests/stores/dynamodb/test_changes.py shows that each kind of write is lost without the writer's second look.
    """
    install_ledger(nursery)
    rng = chaos.rng()
    writers = [start_writer(nursery, rng, dawdle=DAWDLE) for _ in range(WRITERS if LONG else 3)]
    wait_until(lambda: len(nursery.ledger.acknowledged) >= 10, lambda: "some jobs", every=0.1)
    missed, resets = asyncio.run(read_while_they_write(nursery, writers))
    print(f"{resets} resets; changes that the reader did not see: {missed[:3]}")
    assert missed == []


def start_writer(nursery: Nursery, rng: random.Random, **settings: Any) -> Process:
    return nursery.start("feed:write", seed=rng.randrange(2**32), hold=HOLD["dynamodb"], **settings)


async def read_while_they_write(nursery: Nursery, writers: list[Process]) -> tuple[list[str], int]:
    """Read from now until the writers have ended; return the changes that were missed, and the number of resets."""
    store = connect(nursery.database.url)
    seen, resets = defaultdict[str, list[str]](list), 0
    try:
        page = await store.changes(starts=True)
        begun = len(list(noted(nursery)))
        ends = time.monotonic() + DAWDLE
        while page.entries or page.reset or is_left(nursery, writers, ends):
            page = await store.changes(str(page.cursor), starts=True)
            if page.reset:
                begun, resets = len(list(noted(nursery))), resets + 1
                seen.clear()
            for change in page.changes(EVERY_CHANGE):
                if change.job_id is not None and change.kind not in MORE:
                    seen[change.job_id].append(SAME.get(change.kind, str(change.kind)))
    finally:
        await store.close()
    wanted = histories(noted(nursery), begun).items()
    return [f"{job}: {names}, not {seen[job]}" for job, names in wanted if seen[job][-len(names) :] != names], resets


def is_left(nursery: Nursery, writers: list[Process], ends: float) -> bool:
    """Return whether more may come. The writers end at this time."""
    if time.monotonic() < ends:
        time.sleep(0.05)
        return True
    was_left = any(process.code is None for process in writers)
    (nursery.folder / STOP).touch()
    for process in writers:
        assert process.wait() == 0, process.said()
    return was_left or bool(isinstance(nursery.database, DynamoDatabase) and nursery.database.hints())


def histories(changes: Iterable[tuple[str, int, int]], begun: int = 0) -> Seen:
    """Return what happened to each job after the first `begun` changes."""
    known, found = set[str](), defaultdict[str, list[str]](list)
    for number, (job_id, was, became) in enumerate(changes):
        name = NAMES.get((was, became)) or ("retried" if job_id in known else "created")
        known.add(job_id)
        if number >= begun:
            found[job_id].append(name)
    return dict(found)


class Scene:
    """Writers and readers, each of which has a successor as soon as it is killed."""

    def __init__(self, nursery: Nursery, rng: random.Random, without: str = "") -> None:
        self.nursery, self.rng, self.without = nursery, rng, without
        self.kind = nursery.database.kind
        self.start = asyncio.run(prepare(nursery))
        install_ledger(nursery)
        self.writers = [self.writer() for _ in range(WRITERS)]
        self.readers = [self.reader(number) for number in range(FEW_READERS if without else READERS[self.kind])]
        if self.kind == "postgres":
            self.broken = nursery.start("feed:read_by_number", BROKEN)

    def writer(self) -> Process:
        return self.nursery.start("feed:write", seed=self.rng.randrange(2**32), hold=HOLD[self.kind])

    def reader(self, number: int) -> Process:
        """Its successor has the same name: it goes on where this one stopped."""
        pages = PAGES[self.kind]
        settings = {"page": pages[number % len(pages)], "without": self.without}
        return self.nursery.start("feed:read", f"reader-{number}", after=self.start, **settings)

    def play(self, kills: int) -> None:
        for _ in range(kills):
            time.sleep(self.rng.uniform(0.02, 0.15))
            self.kill_one()
        wait_until(lambda: self.nursery.ledger.count("note"), lambda: "a rollback", every=0.1)
        self.finish()

    def kill_one(self) -> None:
        place = self.rng.randrange(WRITERS + len(self.readers) // 2)
        if place < WRITERS:
            replace(self.writers, place, self.writer)
        else:
            place = self.rng.randrange(len(self.readers))
            replace(self.readers, place, partial(self.reader, place))

    def finish(self) -> None:
        """No new changes; all readers come to the end of the feed."""
        for process in self.writers:
            assert process.code is None, f"{process.who} ended by itself:\n{process.said()}"
            process.kill()
        if self.without:
            self.wait_for_silence()
            return
        if isinstance(database := self.nursery.database, DynamoDatabase):  # jobs are not in order among each other
            wait_until(lambda: not database.hints(), lambda: f"the move of {database.hints()}", seconds=CATCH_UP)
        last = asyncio.run(put_last(self.nursery))
        names = [process.who for process in self.readers] + ([BROKEN] if self.kind == "postgres" else [])
        seen = partial(self.has_seen, job_id=last)
        wait_until(lambda: all(map(seen, names)), partial(self.behind, last), seconds=CATCH_UP, every=0.2)

    def wait_for_silence(self) -> None:
        """Until no reader sees anything new for a while. Without a guard, the last job of all may be lost too."""
        sizes: list[int] = []

        def are_silent() -> bool:
            nonlocal sizes
            paths = [self.nursery.folder / f"{process.who}.changes" for process in self.readers]
            before, sizes = sizes, [path.stat().st_size for path in paths if path.exists()]
            return before == sizes

        wait_until(are_silent, lambda: f"silence after {sizes} bytes", seconds=CATCH_UP, every=1.5)

    def behind(self, last: str) -> str:
        late = [process for process in self.readers if not self.has_seen(process.who, last)]
        said = "\n".join(process.said() for process in late[:3])
        return f"{[process.who for process in late]} to see the last job\n{said}"

    def has_seen(self, name: str, job_id: str) -> bool:
        with (self.nursery.folder / f"{name}.changes").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4000))
            return job_id.encode() in file.read()

    # -- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        truth, ledger = self.truth(), self.nursery.ledger
        undone = {entry.job_id for entry in ledger.of("note")}
        number = sum(map(len, truth.values()))
        print(f"{ledger.count('kill')} kills, {number} changes of {len(truth)} jobs, {len(undone)} rolled back")
        assert truth.keys() >= ledger.acknowledged
        assert len(undone - truth.keys()) == len(undone) > 0
        problems = self.problems()
        assert not problems, "\n".join(problems[:20])

    def problems(self) -> list[str]:
        """Return what the readers saw twice, and the jobs whose changes they did not see as they were."""
        truth = self.truth()
        found: list[str] = []
        for process in self.readers:
            ids, seen = self.seen(process.who)
            found += [f"{process.who} saw {change} twice" for change, times in Counter(ids).items() if times > 1]
            wrong = [job for job in truth | seen if truth.get(job) != seen.get(job)]
            found += [f"{process.who}: {job}: {truth.get(job)} != {seen.get(job)}" for job in wrong]
        return found

    def check_that_the_broken_reader_lost_changes(self) -> None:
        number = sum(map(len, self.truth().values()))
        _, seen = self.seen(BROKEN)
        lost = number - sum(map(len, seen.values()))
        print(f"a reader that remembers only the highest number lost {lost} of {number} changes")
        assert lost > 0

    def truth(self) -> Seen:
        return histories(noted(self.nursery))

    def seen(self, name: str) -> tuple[list[str], Seen]:
        lines = lines_of(self.nursery.folder / f"{name}.changes")
        found: Seen = defaultdict(list)
        for _, kind, job_id, _ in lines:
            if job_id != "None" and kind not in MORE:
                found[job_id].append(SAME.get(kind, kind))
        return [line[0] for line in lines], dict(found)


async def prepare(nursery: Nursery) -> str:
    """Make the tables; return the cursor of the beginning."""
    store = connect(nursery.database.url)
    await store.open()
    try:
        return str((await store.changes(starts=True)).cursor)
    finally:
        await store.close()


async def put_last(nursery: Nursery) -> str:
    """A job that is inserted after all transactions of the writers have ended."""
    store = connect(nursery.database.url)
    job = NewJob(id=new_id(), task="last", payload="{}")
    try:
        await store.insert([job])
    finally:
        await store.close()
    return job.id


def install_ledger(nursery: Nursery) -> None:
    match nursery.database:
        case PostgresDatabase() as database:
            database.plant(POSTGRES_LEDGER)
        case DynamoDatabase() as database:
            database.keep_a_stream()
        case _:
            with closing(sqlite3.connect(nursery.sqlite.path)) as connection:
                connection.executescript(SQLITE_LEDGER)


def noted(nursery: Nursery) -> Iterable[tuple[str, int, int]]:
    """Return what the ledger says: each job whose status changed, and the old and new status."""
    if isinstance(nursery.database, DynamoDatabase):
        return nursery.database.status_changes()
    return [(job_id, was, became) for job_id, was, became in nursery.ask(TRUTH)]
