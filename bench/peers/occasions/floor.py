# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "raw SQLite"
# durability = "WAL, synchronous=FULL"
# worker = "a bare loop: fire a batch, run nothing"
# drain_jobs = 50_000
# ///
"""The floor: what SQLite itself takes for our rows in our tables, with nothing around it.

No checks, no calendar, no versions, and no jobs that run: all people have the same next time. The statements are its
own; the schema is the real one, read from its file.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bench import tally
from bench.celebrated import INSTANT, ahead
from bench.peer import Peer, here
from bench.peers.sqlite.floor import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

NEVER = 2**62
BATCH = 500  # people in a transaction
YEAR = 365 * 86_400_000
DUE_AT = round(INSTANT.timestamp() * 1000)
TIMES = {"tz": "Europe/Berlin", "at": "09:00", "feb29": "feb28", "grace": "3d"}

PUT = "INSERT OR REPLACE INTO mainspring_documents VALUES (?, ?, ?, ?, ?, ?, ?)"
DUE = """
SELECT id, data FROM mainspring_documents INDEXED BY mainspring_documents_due
WHERE collection = 'occasions.birthday' AND due_at <= ? AND due_at < 4611686018427387904 ORDER BY due_at LIMIT ?
"""
INSERT = """
INSERT INTO mainspring_jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload,
                             dedupe_key, target_type, target_id)
VALUES (?, 'greet', 'default', 2, ?, 3, ?, 604800000, 2592000000, ?, ?, 'person', ?)
"""
HOLD = "INSERT INTO mainspring_dedupe (task, dedupe_key, job_id, expires_at) VALUES ('greet', ?, ?, ?)"


class Floor(Peer):
    async def open(self) -> None:
        self.db = connect(self.place)

    async def close(self) -> None:
        self.db.close()

    async def enqueue(self, number: int) -> None:
        self.cannot("jobs but those of occasions here")

    async def fill(self, jobs: int) -> None:
        self.cannot("jobs but those of occasions here")

    async def settled(self) -> bool:
        return not self._due(1)

    # -- people -------------------------------------------------------------------------------
    async def import_people(self, path: Path) -> None:
        with path.open(newline="") as file:
            people = csv.DictReader(file)
            while rows := [row for person in islice(people, BATCH) for row in _rows(person)]:
                self.db.execute("BEGIN IMMEDIATE")
                self.db.executemany(PUT, rows)
                self.db.execute("COMMIT")

    # -- occasions ----------------------------------------------------------------------------
    async def last_fired(self) -> float:
        (newest,) = self.db.execute("SELECT max(created_at) FROM mainspring_jobs").fetchone()
        return float(newest) / 1000 - ahead()

    def worker(self) -> list[str]:
        return [sys.executable, "-m", "bench.peers.occasions.floor"]

    def work(self) -> None:
        """Until the process is ended."""
        while True:
            if plans := self._due(BATCH):
                self._fire(plans)
                tally.mark(0, len(plans))
            else:
                time.sleep(0.001)

    def _due(self, limit: int) -> list[tuple[str, str]]:
        return self.db.execute(DUE, (_now(), limit)).fetchall()

    def _fire(self, plans: list[tuple[str, str]]) -> None:
        jobs, keys, documents = zip(*map(_firing, plans), strict=True)
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(INSERT, jobs)
        self.db.executemany(HOLD, keys)
        self.db.executemany(PUT, [row for rows in documents for row in rows])
        self.db.execute("COMMIT")


Row = tuple[object, ...]


def _rows(person: dict[str, str]) -> Iterable[Row]:
    """The person, their place in the list of their address, and their plan."""
    who, group = person["id"], sha256(person["email"].encode()).hexdigest()[:32]
    plan = {"times": TIMES | {"date": person["birthday"]}, "next": ["2026-06-15"]}
    yield "people", "", who, _id(), NEVER, NEVER, json.dumps(person)
    yield "people.email", group, who, _id(), NEVER, NEVER, "{}"
    yield "occasions.birthday", "", who, _id(), DUE_AT, NEVER, json.dumps(plan)


def _firing(plan: tuple[str, str]) -> tuple[Row, Row, list[Row]]:
    """The job, its dedupe key, and the plan and ledger line."""
    (who, data), now, job = plan, _now(), _id()
    key = f"{who}:birthday:2026-06-15"
    payload = {"person": who, "kind": "birthday", "on": "2026-06-15", "due": DUE_AT, "lateness": now - DUE_AT}
    entry = {
        "became": "fired",
        "at": now,
        "nominal": "2026-06-15T09:00",
        "utc": DUE_AT,
        "key": "birthday",
        "job_id": job,
    }
    after = json.loads(data) | {"next": ["2027-06-15"], "sent": "2026-06-15"}
    return (
        (job, now, now, json.dumps(payload), key, who),
        (key, job, now + YEAR),
        [
            ("occasions.birthday", "", who, _id(), DUE_AT + YEAR, NEVER, json.dumps(after)),
            ("occasion_ledger", who, f"{DUE_AT} birthday", _id(), NEVER, now + 2 * YEAR, json.dumps(entry)),
        ],
    )


def _id() -> str:
    """In the order of time, as ours are."""
    digits = f"{time.time_ns():016x}{os.urandom(8).hex()}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


AHEAD = round(ahead() * 1000)


def _now() -> int:
    return time.time_ns() // 1_000_000 + AHEAD


peer = Floor

if __name__ == "__main__":
    import asyncio

    floor = peer(*here())
    asyncio.run(floor.open())
    floor.work()
