"""Reads the dead-letter queue."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import class_row

from examples.petitions.application.ports import QueueDepth
from examples.petitions.domain.models import DeadLetterJob

COLUMNS = "id, original_job_id, job_type, payload, failure_reason, failed_at, attempts"
DEPTH = "SELECT count(*), coalesce(clock_timestamp() - min(failed_at), interval '0') FROM petitions.dead_letter_queue"


class PostgresDeadLetters:
    def __init__(self, database: str) -> None:
        self._database = database

    async def get(self, job_id: UUID) -> DeadLetterJob | None:
        async with await AsyncConnection.connect(self._database, row_factory=class_row(DeadLetterJob)) as connection:
            query = f"SELECT {COLUMNS} FROM petitions.dead_letter_queue WHERE id = %s"
            return await (await connection.execute(query.encode(), [job_id])).fetchone()

    async def depth(self) -> QueueDepth:
        async with await AsyncConnection.connect(self._database) as connection:
            row = await (await connection.execute(DEPTH)).fetchone()
        count, age = row or (0, timedelta())
        return QueueDepth(count, age)
