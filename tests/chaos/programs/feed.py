"""Programs that write to the change feed in every way, and programs that read it."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from mainspring import ChangeFilter, ChangeKind, Mainspring, changes
from mainspring.errors import ClaimLost, Failure, StoreError
from mainspring.ids import new_id
from mainspring.job import Claim, Move, NewJob, Outcome, Status
from mainspring.stores.connect import connect
from mainspring.stores.documents import ABSENT, Bundle, By, Key, Write
from mainspring.stores.protocol import Action, Filter, Store, Want, WorkerInfo
from tests.chaos.ledger import Pen
from tests.chaos.programs.own import own_transaction, write_effect
from tests.chaos.programs.unreliable import make_late, make_unreliable, remove_guard

ENDS = (Move.DONE, Move.DONE, Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.DEAD, Move.CANCEL)
TARGETS = (None, ("order", "7"))
MOVE_HOLD = 0.1  # seconds for which a reader of DynamoDB is held up after it has read what it moves, at most


class Undone(Exception):
    """Rolls a transaction back."""


STOP = "stop"  # a file that ends the writers


def write(folder: str, who: str, seed: int, hold: float, dawdle: float = 0.0) -> None:
    """Change jobs at random, until the file STOP exists. `hold` is how long a transaction stays open at most.

    `dawdle` is how long a writer of DynamoDB is held up between its look and a write, in seconds at most.
    """
    rng = random.Random(seed)
    writer = DynamoWriter if is_dynamodb() else Writer
    if dawdle:
        make_late(rng, dawdle)
    asyncio.run(writer(Path(folder), who, rng, hold).run())


def is_dynamodb() -> bool:
    return os.environ["CHAOS_DATABASE"].startswith("dynamodb:")


class Writer:
    def __init__(self, folder: Path, who: str, rng: random.Random, hold: float) -> None:
        self.who, self.rng, self.hold = who, rng, hold
        self.stop = folder / STOP
        self.pen = Pen(folder / "ledger", who)
        self.store: Store = connect(os.environ["CHAOS_DATABASE"])

    async def run(self) -> None:
        await self.store.open()
        await self.store.join(WorkerInfo(self.who, "host", os.getpid(), ("*",)), lambda _: None)
        acts: list[Callable[[], Awaitable[None]]] = [
            self.enqueue, self.enqueue, self.enqueue_in_own, self.run_some, self.run_some, self.run_in_own,
            self.change, self.wake,
        ]  # fmt: skip
        while not self.stop.exists():
            try:
                await self.rng.choice(acts)()
            except (StoreError, ClaimLost, psycopg.Error) as error:  # deadlocks, and what the others took
                print(f"{type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(self.rng.uniform(0, 0.02))

    def jobs(self) -> list[NewJob]:
        number = self.rng.choice((1, 1, 2, 5))
        return [
            NewJob(id=new_id(), task=self.rng.choice("ab"), payload="{}", target=self.rng.choice(TARGETS))
            for _ in range(number)
        ]

    async def enqueue(self) -> None:
        jobs = self.jobs()
        await self.store.insert(jobs)
        self.note("ack", jobs)

    async def enqueue_in_own(self) -> None:
        """In a transaction of the application, which takes its time, and is rolled back every third time."""
        jobs, undone = self.jobs(), self.rng.random() < 0.35
        if undone:
            self.note("note", jobs)
        try:
            with own_transaction() as own:
                write_effect(own, self.who)
                await self.store.insert(jobs, own)
                await asyncio.sleep(self.rng.uniform(0, self.hold))
                if undone:
                    raise Undone
        except Undone:
            return
        self.note("ack", jobs)

    def note(self, kind: str, jobs: list[NewJob]) -> None:
        for job in jobs:
            self.pen.write(kind, job.id)

    async def claimed(self, limit: int) -> list[Claim]:
        solo = self.rng.random() < 0.1
        return (await self.store.claim(self.who, [Want("default", 1 if solo else limit)], solo=solo)).jobs

    def outcome(self, held: Claim, move: Move) -> Outcome:
        failure = Failure("ValueError", "no") if move in {Move.RETRY, Move.DEAD} else None
        bell = "bell" if move is Move.SUSPEND else None
        delay = 3_600_000 if move is Move.SUSPEND else 0
        return Outcome(held.id, held.token, move, ref=held.ref, failure=failure, waits_for=bell, delay=delay)

    async def run_some(self) -> None:
        held = await self.claimed(4)
        await self.store.ack([self.outcome(claim, self.rng.choice(ENDS)) for claim in held])

    async def run_in_own(self) -> None:
        """End a job in a transaction that has begun long before: its number is low, and it changes the job last."""
        for held in await self.claimed(1):
            undone = self.rng.random() < 0.3
            try:
                done = self.outcome(held, Move.DONE)
                async with self.store.completion(lambda done=done: done) as own:  # type: ignore[misc]
                    written: Any = write_effect(own, held.id)
                    if inspect.isawaitable(written):
                        await written
                    await asyncio.sleep(self.rng.uniform(0, self.hold))
                    if undone:
                        raise Undone
            except Undone:
                await self.store.ack([self.outcome(held, Move.RELEASE)])

    async def change(self) -> None:
        """Cancel and retry by hand, as a person would."""
        action = self.rng.choice((Action.CANCEL, Action.RETRY, Action.RETRY))
        wanted = (Status.DEAD_LETTER, Status.CANCELLED, Status.RETRYING) if action is Action.RETRY else ()
        found = (await self.store.find(Filter(statuses=wanted), limit=5)).jobs
        await self.store.change(action, Filter(ids=tuple(job.id for job in found) or ("none",)), By("ana"))

    async def wake(self) -> None:
        await self.store.wake({"bell": 3})


class DynamoWriter(Writer):
    """DynamoDB has no callers' transactions: transactions that the service refuses as a whole stand for rollbacks.

    Transactions that are held up on their way to the service stand for open ones.
    """

    def __init__(self, folder: Path, who: str, rng: random.Random, hold: float) -> None:
        super().__init__(folder, who, rng, hold)
        make_unreliable(rng, hold)

    async def enqueue_in_own(self) -> None:
        """Together with a document, which every third time has another version than expected."""
        jobs, undone = self.jobs(), self.rng.random() < 0.35
        if undone:
            self.note("note", jobs)
        order = Write(Key("orders", "", new_id()), "{}", expected="another" if undone else ABSENT)
        (written,) = await self.store.write([Bundle((order,), tuple(jobs))])
        assert (written is None) == undone
        if not undone:
            self.note("ack", jobs)

    async def run_in_own(self) -> None:
        """End a job with follow-ups, in one transaction. A claim that was lost meanwhile refuses all of it."""
        for held in await self.claimed(1):
            jobs, undone = self.jobs(), self.rng.random() < 0.3
            done = replace(self.outcome(held, Move.DONE), follow_ups=tuple(jobs))
            if undone:
                self.note("note", jobs)
                await self.store.ack([self.outcome(held, Move.RELEASE)])
            (status,) = await self.store.ack([done])
            assert (status is None) == undone
            if not undone:
                self.note("ack", jobs)


def read(folder: str, who: str, after: str, page: int, without: str = "") -> None:
    """Follow the feed, for ever, in pages of this many entries. Each change is written down with its cursor.

    A reader that was killed resumes after the last line that is complete. `without` is a guard of the feed, which is
    removed.
    """
    if is_dynamodb():
        make_unreliable(random.Random(f"{who} {os.getpid()}"), MOVE_HOLD, **({"late": 1.0} if without else {}))
    remove_guard(without)
    asyncio.run(_read(Path(folder) / f"{who}.changes", after, page))


async def _read(path: Path, after: str, page: int) -> None:
    changes.PAGE = page
    seen = lines_of(path)
    app = Mainspring(os.environ["CHAOS_DATABASE"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    everything = ChangeFilter(kinds=tuple(ChangeKind))  # also starts, which are recorded on request only
    async for change in app.changes(after=seen[-1][-1] if seen else after, where=everything):
        os.write(file, f"\n{change.id} {change.kind} {change.job_id} {change.cursor} ;\n".encode())


def lines_of(path: Path) -> list[list[str]]:
    """The id, kind, job and cursor of each change that a reader has written down completely."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [line.split()[:4] for line in lines if line.endswith(" ;")]


def read_by_number(folder: str, who: str) -> None:
    """Follow the feed of PostgreSQL without its guard: remember the highest number, and read on from there."""
    path = Path(folder) / f"{who}.changes"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    statement = "SELECT number, kind, ids::text[] FROM mainspring.changes WHERE number > %s ORDER BY number"
    with psycopg.connect(os.environ["CHAOS_DATABASE"], autocommit=True) as connection:
        last = 0
        while True:
            for number, kind, ids in connection.execute(statement, (last,)).fetchall():
                last = number
                for job_id in ids or ["None"]:
                    os.write(file, f"\n{number} {kind} {job_id} {number} ;\n".encode())
