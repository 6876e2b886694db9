"""Writes the heartbeat metric of job workers, where monitoring reads it."""

from __future__ import annotations

import structlog
from psycopg import AsyncConnection

from examples.petitions.application.ports import Heartbeat
from examples.petitions.infrastructure.adapters.scheduling import PostgresJobScheduler

log = structlog.get_logger("petitions.worker")

BEAT = """
INSERT INTO petitions.worker_heartbeats AS known (worker, halted, processed) VALUES (%s, %s, %s)
ON CONFLICT (worker) DO UPDATE
SET beats = known.beats + 1, halted = excluded.halted, processed = excluded.processed, seen_at = now()
"""


class PostgresHeartbeats:
    def __init__(self, database: str, scheduler: PostgresJobScheduler) -> None:
        self._database = database
        self._scheduler = scheduler

    async def beat(self, heartbeat: Heartbeat) -> None:
        await self._scheduler.heartbeat()  # keeps the leases of a long job
        async with await AsyncConnection.connect(self._database) as connection:
            await connection.execute(BEAT, [heartbeat.worker, heartbeat.halted, heartbeat.processed])
        log.debug(
            "job_worker_heartbeat",
            worker=heartbeat.worker,
            halted=heartbeat.halted,
            processed=heartbeat.processed,
        )
