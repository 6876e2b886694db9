"""Insert new jobs, many in a few statements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from mainspring.job import FOREVER, Inserted, NewJob
from mainspring.stores.engine import feed
from mainspring.stores.engine.creation import first_time, refuse_unkeepable, rounds_by_key
from mainspring.stores.engine.halts import refuse_while_halted
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.sqlite.wakeups import wake_if_ended
from mainspring.stores.tables import NEVER, PENDING, SUSPENDED

LONG_PAYLOAD = 1024  # characters; longer payloads go into a separate table

ROW = (
    "id", "task", "queue", "priority", "max_attempts", "timeout", "keep", "keep_dead", "payload", "dedupe_key",
    "target_type", "target_id", "tags", "options",
)  # fmt: skip
RUN_AT, DELAY, WAITS_FOR = (f"column{len(ROW) + number}" for number in (1, 2, 3))
INTO = f"""
INSERT INTO mainspring_jobs (run_at, created_at, {", ".join(ROW)}{{columns}})
SELECT coalesce({RUN_AT}, ? + {DELAY}), ?, {", ".join(f"column{number}" for number, _ in enumerate(ROW, 1))}{{values}}
FROM (VALUES {{{{values}}}}) WHERE NOT EXISTS (SELECT 1 FROM mainspring_archive WHERE id = column1)
ON CONFLICT DO NOTHING
"""  # engine.creation.created, stated again for speed
INSERT = INTO.format(columns="", values="")  # without rarely used columns: each would cost 0.35 of 4 µs per job
INSERT_SUSPENDED = INTO.format(columns=", waits_for, status", values=f", {WAITS_FOR}, {SUSPENDED}")
INSERT_PAYLOADS = "INSERT OR IGNORE INTO mainspring_payloads VALUES {values}"
INSERT_TAGS = "INSERT OR IGNORE INTO mainspring_tags VALUES {values}"
KNOWN = """
SELECT column1 FROM (VALUES {values}) WHERE EXISTS (SELECT 1 FROM mainspring_jobs WHERE id = column1)
OR EXISTS (SELECT 1 FROM mainspring_archive WHERE id = column1)
"""
LIVE_HOLDER = "SELECT id FROM mainspring_jobs WHERE task = ? AND dedupe_key = ?"
HOLDERS = """
SELECT task, dedupe_key, holder FROM (
    SELECT column1 AS task, column2 AS dedupe_key, coalesce(
        (SELECT id FROM mainspring_jobs WHERE task = column1 AND dedupe_key = column2),
        (SELECT job_id FROM mainspring_dedupe WHERE task = column1 AND dedupe_key = column2 AND expires_at > ?)
    ) AS holder FROM (VALUES {values})
) WHERE holder IS NOT NULL
"""
PUT_DEDUPE_KEYS = "INSERT OR REPLACE INTO mainspring_dedupe (task, dedupe_key, job_id, expires_at) VALUES {values}"


@dataclass(slots=True)
class PreparedJob:
    """A job and its row. The calling thread makes the row, to save the time of the writer thread, which all share."""

    job: NewJob
    row: tuple[Any, ...]


def prepare(jobs: Sequence[NewJob]) -> list[PreparedJob]:
    """Make the rows of new jobs; raise if one of them cannot be stored."""
    refuse_unkeepable(jobs)
    return [PreparedJob(job, to_row(job)) for job in jobs]


def to_row(job: NewJob) -> tuple[Any, ...]:
    """Return the values of ROW and of the two or three columns after it. The transaction adds the time."""
    target_type, target_id = job.target or (None, None)
    return (
        job.id,
        job.task,
        job.queue,
        int(job.priority),
        job.max_attempts,
        job.timeout,
        job.keep,
        job.keep_dead,
        job.payload if len(job.payload) <= LONG_PAYLOAD else None,
        job.dedupe_key,
        target_type,
        target_id,
        json.dumps(job.tags) if job.tags else None,
        job.options,
        first_time(job),
        job.delay,
        *(() if job.waits_for is None else (job.waits_for,)),
    )


def insert(transaction: Transaction, new: list[PreparedJob]) -> list[Inserted]:
    if halts := transaction.halts():
        refuse_while_halted(halts, {item.job.queue for item in new})
    return insert_jobs(transaction, new)


def insert_jobs(transaction: Transaction, new: Sequence[PreparedJob]) -> list[Inserted]:
    """Insert jobs, even during a halt. Only jobs that share a dedupe key are inserted one after the other."""
    plain = [item for item in new if item.job.dedupe_key is None]
    insert_rows(transaction, plain)
    answers = [Inserted(item.job.id, created=True) for item in new]
    for places in rounds_by_key([item.job for item in new]) if len(plain) < len(new) else ():
        for place, holder in insert_unique(transaction, {place: new[place] for place in places}).items():
            answers[place] = Inserted(holder, created=False)
    if waiting := {item.job.id: item.job.waits_for for item in new if item.job.waits_for is not None}:
        wake_if_ended(transaction, waiting)
    return answers


def insert_rows(transaction: Transaction, new: Sequence[PreparedJob]) -> list[NewJob]:
    """Insert jobs; return those whose ids did not exist before."""
    if not new:
        return []
    waiting = [item for item in new if item.job.waits_for is not None]
    at_once = [item for item in new if item.job.waits_for is None] if waiting else new
    inserted = insert_all(transaction, INSERT, [item.row for item in at_once])
    inserted += insert_all(transaction, INSERT_SUSPENDED, [item.row for item in waiting])
    jobs = [item.job for item in new] if inserted == len(new) else really_new(transaction, new, inserted)
    suspended = Counter([job.queue for job in jobs if job.waits_for is not None] if waiting else ())
    for queue, number in Counter([job.queue for job in jobs]).items():
        transaction.count(queue, PENDING, number - suspended[queue])
        transaction.count(queue, SUSPENDED, suspended[queue])
        transaction.woken.add(queue)
    insert_payloads_and_tags(transaction, jobs)
    transaction.record(feed.created(jobs))
    return jobs


def insert_all(transaction: Transaction, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
    parts = in_values(statement, rows, transaction.now, transaction.now)
    return sum(transaction.execute(*part).rowcount for part in parts)


def really_new(transaction: Transaction, new: Sequence[PreparedJob], inserted: int) -> list[NewJob]:
    """Return the jobs that were inserted, if some ids existed already: a repeated insert counts once."""
    first = {item.job.id: item.job for item in reversed(new)}
    newest = transaction.execute("SELECT id FROM mainspring_jobs ORDER BY seq DESC LIMIT ?", (inserted,))
    return [first[job_id] for (job_id,) in newest]


def insert_payloads_and_tags(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    """Insert what is kept in separate tables."""
    long = [(job.id, job.payload) for job in jobs if len(job.payload) > LONG_PAYLOAD]
    tags = [(tag, job.id) for job in jobs for tag in job.tags]
    if long or tags:  # most jobs have neither
        for part in chain(in_values(INSERT_PAYLOADS, long), in_values(INSERT_TAGS, tags)):
            transaction.execute(*part)


def insert_unique(transaction: Transaction, new: Mapping[int, PreparedJob]) -> dict[int, str]:
    """Insert jobs with different dedupe keys unless another job holds the key; return the holders of those keys.

    A job whose id exists was inserted before. The answer is the same as then, whichever job holds the key now.
    """
    held = holders(transaction, [item.job for item in new.values()])
    taken = {place: item.job for place, item in new.items() if (item.job.task, item.job.dedupe_key) in held}
    record_dedupe_keys(
        transaction, insert_rows(transaction, [item for place, item in new.items() if place not in taken])
    )
    known = known_ids(transaction, [job.id for job in taken.values()])
    return {place: held[job.task, job.dedupe_key] for place, job in taken.items() if job.id not in known}


def holders(transaction: Transaction, jobs: Iterable[NewJob]) -> dict[tuple[str, str | None], str]:
    """Return the job that holds each (task, dedupe key): a live one, or one whose key outlives it."""
    keys = [(job.task, job.dedupe_key) for job in jobs]
    parts = in_values(HOLDERS, keys, transaction.now)
    return {(task, key): holder for part in parts for task, key, holder in transaction.execute(*part)}


def known_ids(transaction: Transaction, ids: Iterable[str]) -> set[str]:
    parts = in_values(KNOWN, [(job_id,) for job_id in ids])
    return {job_id for part in parts for (job_id,) in transaction.execute(*part)}


def record_dedupe_keys(transaction: Transaction, jobs: Iterable[NewJob]) -> None:
    """Record the dedupe keys that are to outlive their jobs."""
    rows = [
        (job.task, job.dedupe_key, job.id, NEVER if job.dedupe_for == FOREVER else transaction.now + job.dedupe_for)
        for job in jobs
        if job.dedupe_for is not None
    ]
    for part in in_values(PUT_DEDUPE_KEYS, rows):
        transaction.execute(*part)
