"""New jobs into the tables, a whole batch in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.errors import SystemHalted
from mainspring.job import FOREVER, Inserted, NewJob
from mainspring.stores.postgres.halts import IN_COMMON, current_halts
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Halt
from mainspring.stores.tables import NEVER, PENDING

COLUMNS = {
    "id": "uuid",
    "task": "text",
    "queue": "text",
    "priority": "smallint",
    "run_at": "bigint",
    "delay": "bigint",
    "max_attempts": "integer",
    "timeout": "bigint",
    "keep": "bigint",
    "keep_dead": "bigint",
    "payload": "text",
    "dedupe_key": "text",
    "target_type": "text",
    "target_id": "text",
    "tags": "text",
    "options": "text",
}
INSERT = f"""
WITH new AS (
INSERT INTO {{s}}.jobs (id, task, queue, priority, run_at, created_at, max_attempts, timeout, keep, keep_dead, payload,
                        dedupe_key, target_type, target_id, tags, options)
SELECT id, task, queue, priority, coalesce(run_at, {{now}} + delay), {{now}}, max_attempts, timeout, keep, keep_dead,
       payload, dedupe_key, target_type, target_id, tags::text[], options
FROM unnest({", ".join(f"%({name})s::{kind}[]" for name, kind in COLUMNS.items())}) AS new({", ".join(COLUMNS)})
WHERE NOT EXISTS (SELECT 1 FROM {{s}}.archive WHERE archive.id = new.id)
  AND NOT EXISTS (SELECT 1 FROM {{s}}.halts
                  WHERE NOT accept AND (until IS NULL OR until > {{now}}) AND halts.queue = ANY(%(unless)s::text[]))
ON CONFLICT DO NOTHING RETURNING id, queue
), counted AS (
INSERT INTO {{s}}.counts (queue, status, n) SELECT queue, {PENDING}, count(*) FROM new GROUP BY queue
)
SELECT id::text, queue FROM new
"""
KNOWN = """
SELECT EXISTS (SELECT 1 FROM {s}.jobs WHERE id = %(id)s) OR EXISTS (SELECT 1 FROM {s}.archive WHERE id = %(id)s)
"""
KNOWN_IDS = """
SELECT count(*) FROM unnest(%(ids)s::uuid[]) AS given(id)
WHERE EXISTS (SELECT 1 FROM {s}.jobs WHERE id = given.id) OR EXISTS (SELECT 1 FROM {s}.archive WHERE id = given.id)
"""
LIVE_HOLDER = "SELECT id::text FROM {s}.jobs WHERE task = %(task)s AND dedupe_key = %(key)s"
LASTING_HOLDER = """
SELECT job_id::text FROM {s}.dedupe WHERE task = %(task)s AND dedupe_key = %(key)s AND expires_at > {now}
"""
HOLD_LASTINGLY = f"""
INSERT INTO {{s}}.dedupe (task, dedupe_key, job_id, expires_at)
VALUES (%(task)s, %(key)s, %(id)s, CASE WHEN %(length)s < 0 THEN {NEVER} ELSE {{now}} + %(length)s END)
ON CONFLICT (task, dedupe_key) DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
"""
LOCK_KEYS = "SELECT pg_advisory_xact_lock(hashtextextended(key, 1)) FROM unnest(%(keys)s::text[]) AS key"


async def insert(transaction: Transaction, jobs: list[NewJob], *, lent: bool = False) -> list[Inserted]:
    """One that is lent to us takes no part in the lock: a halt would wait for its end, and all others for the halt."""
    if not lent:
        await transaction.rows(IN_COMMON)
    refuse_while_halted(await current_halts(transaction), jobs)
    return await insert_jobs(transaction, jobs)


async def insert_at_once(transaction: Transaction, jobs: list[NewJob]) -> list[Inserted]:
    """Jobs without dedupe keys, in one statement, which is a transaction by itself and asks for halts too.

    It needs no lock: who inserts while somebody halts may as well have come first.
    """
    ids, unless = list({job.id for job in jobs}), ["", *{job.queue for job in jobs}]
    new: list[tuple[Any, ...]] = []
    known = False
    while not new and not known:  # none: refused, or all of it a repeated insert; or the halt has ended just now
        new = await transaction.rows(INSERT, **columns_of(jobs), unless=unless)
        if not new:
            refuse_while_halted(await current_halts(transaction), jobs)
            known = await transaction.value(KNOWN_IDS, ids=ids) == len(ids)
    transaction.woken.update(queue for _, queue in new)
    return [Inserted(job.id, created=True) for job in jobs]


def refuse_while_halted(halts: Sequence[Halt], jobs: Sequence[NewJob]) -> None:
    for halt in halts:
        if not halt.accept and (halt.queue is None or any(job.queue == halt.queue for job in jobs)):
            what = "the system is halted" if halt.queue is None else f"queue {halt.queue!r} is paused"
            msg = f"{what} by {halt.actor} ({halt.reason or 'no reason given'}) and refuses new jobs"
            raise SystemHalted(msg)


async def insert_jobs(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Jobs without a dedupe key go in together; those with one are looked up first, in their order."""
    await insert_rows(transaction, [job for job in jobs if job.dedupe_key is None])
    if keys := {f"{job.task}\n{job.dedupe_key}" for job in jobs if job.dedupe_key is not None}:
        await transaction.rows(LOCK_KEYS, keys=sorted(keys))  # always in this order, else two batches could deadlock
    return [
        Inserted(job.id, created=True) if job.dedupe_key is None else await insert_unique(transaction, job)
        for job in jobs
    ]


async def insert_rows(transaction: Transaction, jobs: Sequence[NewJob]) -> bool:
    """Whether all of them are new; an id that is here already is a repeated insert, and counts once."""
    if not jobs:
        return True
    new = await transaction.rows(INSERT, **columns_of(jobs), unless=[])
    transaction.woken.update(queue for _, queue in new)
    return len(new) == len(jobs)


def columns_of(jobs: Sequence[NewJob]) -> dict[str, list[Any]]:
    rows = [
        (
            job.id,
            job.task,
            job.queue,
            int(job.priority),
            job.run_at,
            job.delay,
            job.max_attempts,
            job.timeout,
            job.keep,
            job.keep_dead,
            job.payload,
            job.dedupe_key,
            *(job.target or (None, None)),
            to_array(job.tags) if job.tags else None,
            job.options,
        )
        for job in jobs
    ]
    return {name: list(column) for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True)}


def to_array(texts: Sequence[str]) -> str:
    """As PostgreSQL writes an array of texts: unnest takes no arrays of unequal arrays."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


async def insert_unique(transaction: Transaction, job: NewJob) -> Inserted:
    """Under the lock of its key: who comes second has waited, and sees the first."""
    key = {"task": job.task, "key": job.dedupe_key}
    if await transaction.value(KNOWN, id=job.id):
        return Inserted(job.id, created=True)
    holder = await transaction.value(LIVE_HOLDER, **key) or await transaction.value(LASTING_HOLDER, **key)
    if holder:
        return Inserted(holder, created=False)
    await insert_rows(transaction, [job])
    if job.dedupe_for is not None:
        length = -1 if job.dedupe_for == FOREVER else job.dedupe_for
        await transaction.do(HOLD_LASTINGLY, **key, id=job.id, length=length)
    return Inserted(job.id, created=True)
