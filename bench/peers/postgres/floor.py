# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "raw PostgreSQL"
# finished = "kept"
# worker = "a bare loop in psycopg: claim a batch, call nothing, mark it as done"
# drain_jobs = 150_000
# backlog = 1_000_000
# history = 1_000_000
# skip = ["enqueue-50", "heard-*", "latency", "lateness", "idle*"]
#
# [tool.bench.variants]
# "batches of 500" = { batch = 500 }
# "batches of 1000" = { batch = 1000 }
# "batches of 2000" = { batch = 2000 }
# ///
"""The floor: what PostgreSQL itself takes for a job that is claimed, finished and kept, with nothing around it.

One table, one index, no validation, no tasks, no counts, no fencing, no wake-ups; two transactions per batch. The
connection's planner settings are those of a careful user: the claim must go by its index.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import psycopg

from bench import tally
from bench.peer import TEXT, Peer, database, here

if TYPE_CHECKING:
    from collections.abc import Sequence

JOBS_PER_CALL = 10_000
IDLE_SECONDS = 0.010

SCHEMA = """
CREATE TABLE IF NOT EXISTS floor (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status smallint NOT NULL DEFAULT 0, -- 0 waiting, 1 running, 2 done
    run_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    payload text NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS floor_waiting ON floor (run_at, id) WHERE status = 0;
"""
INSERT = "INSERT INTO floor (payload) VALUES (%s)"
COPY = "COPY floor (payload) FROM STDIN"
WAITING = """
INSERT INTO floor (run_at, payload)
SELECT now() + interval '7 days' + i * interval '1 ms', %s FROM generate_series(1, %s) AS i
"""
FINISHED = """
INSERT INTO floor (status, started_at, finished_at, payload) SELECT 2, now(), now(), %s FROM generate_series(1, %s)
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM floor WHERE status = 0 AND run_at <= now() ORDER BY run_at, id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE floor SET status = 1, started_at = now() FROM picked WHERE floor.id = picked.id RETURNING floor.id, floor.payload
"""
FINISH = "UPDATE floor SET status = 2, finished_at = now() WHERE id = ANY(%s)"
UNSETTLED = "SELECT EXISTS (SELECT 1 FROM floor WHERE status < 2 AND run_at <= now())"


class Floor(Peer):
    async def open(self) -> None:
        self.db = psycopg.connect(database(), autocommit=True, options="-c enable_seqscan=off -c enable_sort=off")
        self.db.execute(SCHEMA)

    async def close(self) -> None:
        self.db.close()

    async def enqueue(self, number: int) -> None:
        self.db.execute(INSERT, [_payload(number)], prepare=True)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self.db.cursor() as cursor, cursor.copy(COPY) as copy:
            for number in numbers:
                copy.write_row([_payload(number)])

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, JOBS_PER_CALL):
            await self.enqueue_many(range(start, min(start + JOBS_PER_CALL, jobs)))

    async def fill_waiting(self, jobs: int) -> None:
        self.db.execute(WAITING, [_payload(0), jobs])

    async def fill_finished(self, jobs: int) -> None:
        self.db.execute(FINISHED, [_payload(0), jobs])

    async def settled(self) -> bool:
        found = self.db.execute(UNSETTLED).fetchone()
        return found is not None and not found[0]

    def worker(self) -> list[str]:
        return [sys.executable, "-m", "bench.peers.postgres.floor"]

    def work(self) -> None:
        """Until the process is ended."""
        batch = self.settings.get("batch", 100)
        while True:
            if claimed := self.db.execute(CLAIM, [batch], prepare=True).fetchall():
                tally.mark(0, len(claimed))
                self.db.execute(FINISH, [[number for number, _ in claimed]], prepare=True)
            else:
                time.sleep(IDLE_SECONDS)


def _payload(number: int) -> str:
    return json.dumps({"n": number, "s": TEXT})


peer = Floor

if __name__ == "__main__":
    import asyncio

    floor = peer(*here())
    asyncio.run(floor.open())
    floor.work()
