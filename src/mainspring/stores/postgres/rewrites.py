"""Replaces stored texts of jobs by others that mean the same, such as those that are sealed with a new key."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Rewrite

# Rows that another transaction has locked are left out: two writers with different orders would wait for each other.
OF_JOBS = """
WITH wanted AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(olds)s::text[], %(news)s::text[]) AS given(job_id, old, new)
), locked AS (
    SELECT t.id, wanted.new FROM {{s}}.{table} AS t JOIN wanted ON t.id = wanted.job_id AND t.{column} = wanted.old
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {{s}}.{table} AS t SET {column} = locked.new FROM locked WHERE t.id = locked.id
"""
OF_STEPS = """
WITH wanted AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(names)s::text[], %(olds)s::text[], %(news)s::text[])
        AS given(id, step, old, new)
), locked AS (
    SELECT t.job_id, t.name, wanted.new FROM {s}.steps AS t
    JOIN wanted ON t.job_id = wanted.id AND t.name = wanted.step AND t.output = wanted.old
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {s}.steps AS t SET output = locked.new FROM locked WHERE t.job_id = locked.job_id AND t.name = locked.name
"""
TABLES = {"payload": ("jobs", "archive"), "options": ("jobs", "archive"), "result": ("archive",)}


async def rewrite(transaction: Transaction, texts: Sequence[Rewrite]) -> int:
    number = 0
    for column, tables in TABLES.items():
        if some := [text for text in texts if text.step is None and text.column == column]:
            for table in tables:
                number += await transaction.do(OF_JOBS.format(table=table, column=column), **values_of(some))
    if some := [text for text in texts if text.step is not None]:
        number += await transaction.do(OF_STEPS, **values_of(some), names=[text.step for text in some])
    return number


def values_of(texts: Sequence[Rewrite]) -> dict[str, list[str]]:
    return {
        "ids": [text.job_id for text in texts],
        "olds": [text.old for text in texts],
        "news": [text.new for text in texts],
    }
