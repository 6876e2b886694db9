"""The finished steps of durable functions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from mainspring.job import Outcome, Save, Step
from mainspring.stores.sqlite.transaction import Transaction, in_values

PUT = """
INSERT OR REPLACE INTO mainspring_steps (job_id, name, number, kind, output, started_at, finished_at) VALUES {values}
"""
OF_JOB = """
SELECT name, number, kind, output, started_at, finished_at FROM mainspring_steps WHERE job_id = ?
"""
FORGET = """
DELETE FROM mainspring_steps WHERE job_id IN (SELECT value FROM json_each(?))
    AND number >= (SELECT first.number FROM mainspring_steps AS first
                   WHERE first.job_id = mainspring_steps.job_id AND first.name = ?)
"""


NEVER_CLAIMED = "SELECT id FROM mainspring_jobs WHERE token = 0 AND id IN (SELECT value FROM json_each(?))"


def put_steps(transaction: Transaction, of: Iterable[Outcome | Save]) -> None:
    rows = [
        (item.job_id, step.name, step.number, step.kind, step.output, step.started_at, step.finished_at)
        for item in of
        for step in item.steps
    ]
    for part in in_values(PUT, rows):
        transaction.execute(*part)


def put_first_steps(transaction: Transaction, steps: Mapping[str, tuple[Step, ...]]) -> None:
    """Write steps of jobs that this transaction inserts. If they were inserted before, they may have run since."""
    new = transaction.execute(NEVER_CLAIMED, (json.dumps(list(steps)),)).fetchall()
    put_steps(transaction, [Save(job_id, 0, steps[job_id]) for (job_id,) in new])


def forget_steps(transaction: Transaction, ids: Sequence[str], first: str) -> None:
    """Delete the step `first` and all later ones from the jobs that have this step."""
    transaction.execute(FORGET, (json.dumps(ids), first))


def steps(connection: sqlite3.Connection, job_id: str) -> list[Step]:
    return sorted((Step(*row) for row in connection.execute(OF_JOB, (job_id,))), key=lambda step: step.number)
