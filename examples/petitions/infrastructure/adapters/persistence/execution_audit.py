"""Writes the audit of executions (CT-12)."""

from __future__ import annotations

from psycopg import AsyncConnection

from examples.petitions.application.ports import Execution

RECORD = """
INSERT INTO petitions.job_executions (change_id, job_id, number, job_type, outcome, error_type, reason, ended_at)
SELECT %(key)s, %(job_id)s, 1 + count(*), %(job_type)s, %(outcome)s, %(error_type)s, %(reason)s, %(ended_at)s
FROM petitions.job_executions WHERE job_id = %(job_id)s
ON CONFLICT (change_id) DO NOTHING
"""


class PostgresExecutionAudit:
    def __init__(self, database: str) -> None:
        self._database = database

    async def record(self, execution: Execution) -> None:
        values = {
            "key": execution.key,
            "job_id": execution.job_id,
            "job_type": execution.job_type,
            "outcome": execution.outcome,
            "error_type": execution.error_type,
            "reason": execution.reason,
            "ended_at": execution.ended_at,
        }
        async with await AsyncConnection.connect(self._database) as connection:
            await connection.execute(RECORD, values)
