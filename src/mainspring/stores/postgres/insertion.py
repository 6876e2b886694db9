"""Insert new jobs, many in one statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.job import FOREVER, Inserted, NewJob, is_end
from mainspring.stores import columns
from mainspring.stores.engine import feed
from mainspring.stores.engine.creation import first_time, rounds_by_key
from mainspring.stores.engine.halts import refuse_while_halted
from mainspring.stores.feed import ChangeKind
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.halts import IN_COMMON, current_halts
from mainspring.stores.postgres.listen import channel, describe
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.postgres.wakeups import watch
from mainspring.stores.protocol import Wake
from mainspring.stores.tables import NEVER, PENDING, SUSPENDED

COPY_THRESHOLD = 200  # from this number of jobs on, COPY is the fastest way
COPY_ROWS = 200  # rows: while the server reads them, Python writes the next
PLAIN = f"\\N\t\\N\t\\N\t\\N\t{PENDING}\t\\N"  # no target, tags or options, and pending
ROW = (
    "id", "task", "queue", "priority", "max_attempts", "timeout", "keep", "keep_dead", "payload", "dedupe_key",
    "target_type", "target_id", "tags", "options",
)  # fmt: skip
COLUMNS = {
    **{name: columns.GIVEN[name] for name in ROW},
    "tags": "text",  # unnest rejects arrays of arrays of unequal length
    "run_at": "bigint",
    "delay": "bigint",
    "waits_for": "text",
}
ENDED_IN_RANGE = "EXISTS (SELECT 1 FROM {s}.archive WHERE id BETWEEN %(first)s::uuid AND %(last)s::uuid)"
"""New jobs have ids close together, and none of them has finished. One lookup for the range replaces one per job."""


DETAILS = """
CASE WHEN bool_or(target_type IS NOT NULL) THEN json_agg(json_build_array(target_type, target_id)) END
"""


def inserting(given: str) -> str:
    """Return a statement that inserts the given jobs and returns the number of new ones per queue.

    It leaves out jobs that are already in the tables, and all jobs if one of their queues rejects new jobs.
    """
    return f"""
WITH given AS MATERIALIZED ({given}),
new AS (
    INSERT INTO {{s}}.jobs (run_at, created_at, status, waits_for, {", ".join(ROW)})
    SELECT coalesce(run_at, (SELECT {{now}}) + delay), (SELECT {{now}}), -- engine.creation.created, again for speed
           CASE WHEN waits_for IS NULL THEN {PENDING} ELSE {SUSPENDED} END, waits_for,
           {", ".join(ROW).replace("tags", "tags::text[]")}
    FROM given
    WHERE ((SELECT NOT {ENDED_IN_RANGE}) OR NOT EXISTS (SELECT 1 FROM {{s}}.archive WHERE archive.id = given.id))
      AND (SELECT cardinality(%(unless)s::text[]) = 0 OR {{s}}.takes_new(%(unless)s::text[], {{now}}))
    ON CONFLICT DO NOTHING RETURNING queue, status, task, id, target_type, target_id
), counted AS (
    INSERT INTO {{s}}.counts (queue, status, n) SELECT queue, status, count(*) FROM new GROUP BY queue, status
), recorded AS (
    INSERT INTO {{s}}.changes (at, kind, queue, task, ids, details)
    SELECT (SELECT {{now}}), '{ChangeKind.CREATED}', queue, task, array_agg(id), {DETAILS} FROM new GROUP BY queue, task
)
SELECT queue, count(*), EXISTS (SELECT 1 FROM {{s}}.readers) FROM new GROUP BY queue
"""


ENQUEUE = f"""
CALL {{s}}.enqueue({", ".join(f"{name}_ => %({name})s::{kind}" for name, kind in COLUMNS.items())}, at => {{now}},
                   alone => %(alone)s, channel => %(channel)s, message => %(message)s, new => 0, heard => false)
"""
INSERT_SOME = inserting(f"SELECT * FROM unnest({arrays.casts(COLUMNS)}) AS given({', '.join(COLUMNS)})")
BEFORE_COPY = f"SELECT {{now}}, {ENDED_IN_RANGE}"
COPY = """
COPY {s}.jobs (id, task, queue, priority, run_at, created_at, max_attempts, timeout, keep, keep_dead, payload,
               target_type, target_id, tags, options, status, waits_for) FROM STDIN
"""
KNOWN_IDS = """
SELECT count(*) FROM unnest(%(ids)s::uuid[]) AS given(id)
WHERE EXISTS (SELECT 1 FROM {s}.jobs WHERE id = given.id) OR EXISTS (SELECT 1 FROM {s}.archive WHERE id = given.id)
"""
LIVE_HOLDER = "SELECT id::text FROM {s}.jobs WHERE task = %(task)s AND dedupe_key = %(key)s"
HOLDERS = f"""
SELECT place, is_known, holder
FROM unnest(%(places)s::integer[], %(ids)s::uuid[], %(tasks)s::text[], %(keys)s::text[]) AS given(place, id, task, key)
CROSS JOIN LATERAL (SELECT
    (SELECT id FROM {{s}}.jobs WHERE jobs.id = given.id) IS NOT NULL
    OR ((SELECT {ENDED_IN_RANGE}) AND (SELECT id FROM {{s}}.archive WHERE archive.id = given.id LIMIT 1) IS NOT NULL),
    coalesce(
        (SELECT id::text FROM {{s}}.jobs WHERE task = given.task AND dedupe_key = given.key),
        (SELECT job_id::text FROM {{s}}.dedupe
         WHERE task = given.task AND dedupe_key = given.key AND expires_at > {{now}}))
) AS found(is_known, holder) WHERE is_known OR holder IS NOT NULL
"""  # not EXISTS: a planner without good statistics turns that into a scan of all jobs
HOLD_LASTINGLY = f"""
INSERT INTO {{s}}.dedupe (task, dedupe_key, job_id, expires_at)
SELECT task, key, id, CASE WHEN length < 0 THEN {NEVER} ELSE {{now}} + length END
FROM unnest(%(tasks)s::text[], %(keys)s::text[], %(ids)s::uuid[], %(lengths)s::bigint[]) AS given(task, key, id, length)
ON CONFLICT (task, dedupe_key) DO UPDATE SET job_id = excluded.job_id, expires_at = excluded.expires_at
"""
LOCK_JOBS = "SELECT 1 FROM {s}.jobs WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR UPDATE"
LOCK_KEYS = "SELECT pg_advisory_xact_lock(hashtextextended(key, 1)) FROM unnest(%(keys)s::text[]) AS key"


async def insert(transaction: Transaction, jobs: list[NewJob], *, lent: bool = False) -> list[Inserted]:
    """Insert jobs in this transaction.

    `lent`: the transaction is the caller's own, so it does not take the shared lock. Otherwise a halt would wait for
    the caller's commit, and all other inserts would wait for the halt.
    """
    if not lent:
        await transaction.rows(IN_COMMON)
    await refuse_if_halted(transaction, jobs)
    return await insert_jobs(transaction, jobs)


async def insert_again(transaction: Transaction, jobs: list[NewJob]) -> list[Inserted]:
    """Insert jobs that may already be in the tables. If one is about to end, wait, and find it in the archive."""
    await transaction.rows(LOCK_JOBS, ids=[job.id for job in jobs])
    return await insert(transaction, jobs)


async def insert_at_once(transaction: Transaction, jobs: list[NewJob]) -> list[Inserted]:
    """Insert jobs without dedupe keys in one statement. It is a transaction by itself and checks for halts too."""
    ids, unless = list({job.id for job in jobs}), ["", *{job.queue for job in jobs}]
    new = known = 0
    while not new and known < len(ids):  # none new: rejected, all inserted before, or the halt has ended just now
        if len(jobs) == 1:
            new = await enqueue(transaction, jobs[0], alone=True)
        else:
            new = await insert_rows(transaction, jobs, unless)
        if not new:
            await refuse_if_halted(transaction, jobs)
            known = await transaction.value(KNOWN_IDS, ids=ids)
    return [Inserted(job.id, created=True) for job in jobs]


async def copy(transaction: Transaction, jobs: list[NewJob]) -> list[Inserted]:
    """Insert many new jobs without dedupe keys. Raise UniqueViolation if one of them is in the tables already."""
    await transaction.rows(IN_COMMON)
    await refuse_if_halted(transaction, jobs)
    row = await transaction.row(BEFORE_COPY, **range_of(jobs))
    now, some_ended = row or (0, True)
    if some_ended:
        return await insert_jobs(transaction, jobs)
    async with transaction.connection.cursor().copy(transaction.dialect.statement(COPY)) as writer:
        for start in range(0, len(jobs), COPY_ROWS):
            await writer.write("".join([line_of(job, now) for job in jobs[start : start + COPY_ROWS]]))
    suspended = Counter([job.queue for job in jobs if job.waits_for is not None])
    for queue, number in Counter([job.queue for job in jobs]).items():
        transaction.count(queue, PENDING, number - suspended[queue])
        transaction.count(queue, SUSPENDED, suspended[queue])
        transaction.woken.add(queue)
    await transaction.record(feed.created(jobs))
    await watch_ends(transaction, jobs)
    return [Inserted(job.id, created=True) for job in jobs]


def line_of(job: NewJob, now: Millis) -> str:
    """Return the job as a line in COPY's format: tabs separate the columns."""
    run_at = first_time(job)
    run_at = now + job.delay if run_at is None else run_at
    start = f"{job.id}\t{escaped(job.task)}\t{escaped(job.queue)}\t{int(job.priority)}\t{run_at}\t{now}"
    numbers = f"{job.max_attempts}\t{job.timeout}\t{job.keep}\t{job.keep_dead}"
    rest = PLAIN
    if job.target or job.tags or job.options or job.waits_for is not None:
        tags = arrays.of_texts(job.tags) if job.tags else None
        status = PENDING if job.waits_for is None else SUSPENDED
        texts = (*(job.target or (None, None)), tags, job.options, str(status), job.waits_for)
        rest = "\t".join("\\N" if text is None else escaped(text) for text in texts)
    return f"{start}\t{numbers}\t{escaped(job.payload)}\t{rest}\n"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def range_of(jobs: Sequence[NewJob]) -> dict[str, str]:
    ids = [job.id for job in jobs]
    return {"first": min(ids), "last": max(ids)}


async def refuse_if_halted(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    if halts := await current_halts(transaction):
        refuse_while_halted(halts, {job.queue for job in jobs})


async def insert_jobs(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Insert jobs. Those with a dedupe key go in together as far as no key occurs twice."""
    await insert_rows(transaction, [job for job in jobs if job.dedupe_key is None])
    if keys := {f"{job.task}\n{job.dedupe_key}" for job in jobs if job.dedupe_key is not None}:
        await transaction.rows(LOCK_KEYS, keys=sorted(keys))  # always sorted: otherwise two inserts could deadlock
    answers = [Inserted(job.id, created=True) for job in jobs]
    for places in rounds_by_key(jobs) if keys else ():
        for place, holder in (await insert_unique(transaction, {place: jobs[place] for place in places})).items():
            answers[place] = Inserted(holder, created=False)
    await watch_ends(transaction, jobs)
    return answers


async def watch_ends(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    await watch(transaction, {job.id: job.waits_for for job in jobs if is_end(job.waits_for)})


def waits_for_an_end(jobs: Iterable[NewJob]) -> bool:
    """Return whether a job waits for another's end. Then one statement is not enough, see wakeups.py."""
    return any(is_end(job.waits_for) for job in jobs)


async def insert_rows(transaction: Transaction, jobs: Sequence[NewJob], unless: Sequence[str] = ()) -> int:
    """Insert jobs and return how many are new; a known id is a repeated insert. If one is refused, insert none."""
    if not jobs:
        return 0
    if len(jobs) == 1 and not unless:
        return await enqueue(transaction, jobs[0], alone=False)
    new = await transaction.rows(INSERT_SOME, **columns_of(jobs), **range_of(jobs), unless=list(unless))
    for queue, _, heard in new:
        transaction.woken.add(queue)
        transaction.note_readers(heard)
    return sum(number for _, number, _ in new)


async def enqueue(transaction: Transaction, job: NewJob, *, alone: bool) -> int:
    """Insert one job. With `alone`, one round trip also commits it and then notifies a worker that sleeps."""
    message = describe(Wake.JOBS, [job.queue]) if alone else None
    place = channel(transaction.dialect.schema)
    row = await transaction.row(ENQUEUE, **row_of(job), alone=alone, channel=place, message=message)
    new, heard = row or (0, False)
    if new and not alone:
        transaction.woken.add(job.queue)
        transaction.note_readers(heard)
    return int(new)


def row_of(job: NewJob) -> dict[str, Any]:
    return dict(zip(COLUMNS, values_of(job), strict=True))


def columns_of(jobs: Sequence[NewJob]) -> dict[str, str]:
    return arrays.of_columns(COLUMNS, [values_of(job) for job in jobs])


def values_of(job: NewJob) -> tuple[Any, ...]:
    """Return the values in the order of COLUMNS."""
    return (
        job.id,
        job.task,
        job.queue,
        int(job.priority),
        job.max_attempts,
        job.timeout,
        job.keep,
        job.keep_dead,
        job.payload,
        job.dedupe_key,
        *(job.target or (None, None)),
        arrays.of_texts(job.tags) if job.tags else None,
        job.options,
        first_time(job),
        job.delay,
        job.waits_for,
    )


async def insert_unique(transaction: Transaction, new: Mapping[int, NewJob]) -> dict[int, str]:
    """Insert jobs of different dedupe keys unless the key is held; return the holders for the others.

    The keys are locked, so of two transactions with one key the second waits, and then sees the first one's job. A job
    whose id is known was inserted before, and gets the same answer as then, whichever job holds the key.
    """
    jobs = list(new.values())
    keys = {
        "tasks": arrays.of_texts(job.task for job in jobs),
        "keys": arrays.of_texts(job.dedupe_key for job in jobs),
        "ids": arrays.of_plain(job.id for job in jobs),
    }
    rows = await transaction.rows(HOLDERS, places=list(new), **keys, **range_of(jobs))
    found = {place: None if is_known else holder for place, is_known, holder in rows}
    free = [job for place, job in new.items() if place not in found]
    await insert_rows(transaction, free)
    await hold_lastingly(transaction, free)
    return {place: holder for place, holder in found.items() if holder is not None}


async def hold_lastingly(transaction: Transaction, jobs: Iterable[NewJob]) -> None:
    lasting = [job for job in jobs if job.dedupe_for is not None]
    if lasting:
        await transaction.do(
            HOLD_LASTINGLY,
            tasks=arrays.of_texts(job.task for job in lasting),
            keys=arrays.of_texts(job.dedupe_key for job in lasting),
            ids=arrays.of_plain(job.id for job in lasting),
            lengths=arrays.of_plain(-1 if job.dedupe_for == FOREVER else job.dedupe_for for job in lasting),
        )
