# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "raw SQLite"
# durability = "WAL, synchronous=FULL"
# worker = "a bare loop: claim a batch, call nothing, move it into the archive"
# drain_jobs = 200_000
# skip = ["enqueue-50", "latency", "lateness", "idle"]
#
# [tool.bench.variants]
# "batches of 100" = { batch = 100 }
# "batches of 500" = { batch = 500 }
# ///
"""The floor: what SQLite itself takes for our rows in our tables, with nothing around it.

No validation, no tasks, no counts, no fencing, no wake-ups; two transactions per batch, one for the claim and one for
the ack. The statements are its own; the schema is the real one, read from its file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import tally
from bench.peer import TEXT, Peer, here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA = Path(__file__).parents[3] / "src/mainspring/stores/sqlite/schema.sql"
SETTINGS = ("wal_autocheckpoint = 4000", "cache_size = -65536", "synchronous = FULL", "busy_timeout = 30000")
NORMAL, RUNNING, COMPLETED = 2, 3, 4
JOBS_PER_CALL = 10_000
IDLE_SECONDS = 0.010

INSERT = """
INSERT INTO mainspring_jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
VALUES (?, 'noop', 'default', ?, ?, 3, ?, 604800000, 2592000000, ?)
"""

CLAIM = f"""
UPDATE mainspring_jobs SET status = {RUNNING}, token = token + 1, worker = 'floor', claimed_at = :now
WHERE seq IN (
    SELECT seq FROM mainspring_jobs INDEXED BY mainspring_jobs_waiting
    WHERE queue = 'default' AND priority = {NORMAL} AND run_at <= :now
          AND status < {RUNNING} AND crashes = 0 AND aside = 0
    ORDER BY run_at LIMIT :limit)
RETURNING seq, id, token, payload
"""

CHANGED = {
    "status": str(COMPLETED),
    "attempts": "attempts + 1",
    "started_at": "claimed_at",
    "finished_at": ":now",
    "expires_at": ":now + keep",
    "result": "'null'",
}
CLAIMED = "seq IN (SELECT value FROM json_each(:claimed))"
ARCHIVE = f"INSERT INTO mainspring_archive ({{columns}}) SELECT {{values}} FROM mainspring_jobs WHERE {CLAIMED}"
DELETE = f"DELETE FROM mainspring_jobs WHERE {CLAIMED}"
UNSETTLED = f"""
SELECT 1 FROM mainspring_jobs
WHERE queue = 'default' AND priority = 2 AND run_at <= ? AND status < {RUNNING} AND crashes = 0 AND aside = 0
UNION ALL SELECT 1 FROM mainspring_jobs WHERE status = {RUNNING} LIMIT 1
"""


def connect(place: Path) -> sqlite3.Connection:
    """Open the floor's database, with our schema and settings. Commits are its user's own."""
    fresh = not (place / "floor.db").exists()
    db = sqlite3.connect(place / "floor.db", isolation_level=None)
    if fresh:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(SCHEMA.read_text("utf-8"))
    for setting in SETTINGS:
        db.execute(f"PRAGMA {setting}")
    return db


class Floor(Peer):
    async def open(self) -> None:
        self.db = connect(self.place)
        columns = [name for _, name, *_ in self.db.execute("PRAGMA table_info(mainspring_archive)")]
        values = [CHANGED.get(column, column) for column in columns]
        self.archive = ARCHIVE.format(columns=", ".join(columns), values=", ".join(values))

    async def close(self) -> None:
        self.db.close()

    async def enqueue(self, number: int) -> None:
        self.db.execute(INSERT, next(_rows([number])))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        self._insert(_rows(numbers))

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            self._insert(_rows(range(start, min(start + JOBS_PER_CALL, jobs))))

    def _insert(self, rows: Iterable[tuple[str, int, int, int, str]]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(INSERT, rows)
        self.db.execute("COMMIT")

    def _claim(self, limit: int) -> list[tuple[int, str, int, str]]:
        return self.db.execute(CLAIM, {"now": _now(), "limit": limit}).fetchall()

    def _ack(self, claimed: list[tuple[int, str, int, str]]) -> None:
        parameters = {"now": _now(), "claimed": json.dumps([seq for seq, *_ in claimed])}
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(self.archive, parameters)
        self.db.execute(DELETE, parameters)
        self.db.execute("COMMIT")

    async def settled(self) -> bool:
        return not self.db.execute(UNSETTLED, (_now(),)).fetchall()

    def worker(self) -> list[str]:
        return [sys.executable, "-m", "bench.peers.sqlite.floor"]

    def work(self) -> None:
        """Until the process is ended."""
        batch = self.settings.get("batch", 100)
        while True:
            if claimed := self._claim(batch):
                tally.mark(0, len(claimed))
                self._ack(claimed)
            else:
                time.sleep(IDLE_SECONDS)


def _rows(numbers: Iterable[int]) -> Iterator[tuple[str, int, int, int, str]]:
    now = _now()
    for number in numbers:
        yield _id(), NORMAL, now, now, json.dumps({"n": number, "s": TEXT})


def _id() -> str:
    """In the order of time, as ours are: random ones would cost SQLite ten times as much."""
    digits = f"{time.time_ns():016x}{os.urandom(8).hex()}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _now() -> int:
    return time.time_ns() // 1_000_000


peer = Floor

if __name__ == "__main__":
    import asyncio

    floor = peer(*here())
    asyncio.run(floor.open())
    floor.work()
