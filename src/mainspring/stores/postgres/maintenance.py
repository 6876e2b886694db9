"""Maintain the tables: register workers, take over the jobs of dead ones, and remove what has expired."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from mainspring.clock import Millis
from mainspring.job import Outcome
from mainspring.queue_patterns import is_pattern
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import JobState, crashed, released, stalled, takeover
from mainspring.stores.postgres import changes, documents, numbers, partitions
from mainspring.stores.postgres.acks import write
from mainspring.stores.postgres.admin import BELONGINGS, end_expired_halts, forget_lines, remove_jobs
from mainspring.stores.postgres.rows import LIVE_STATE, only_ids, to_state
from mainspring.stores.postgres.transaction import PLAN_FREELY, SERVER_START, Transaction
from mainspring.stores.protocol import EVERY_QUEUE, AfterStall, Pulse, Takeover, WorkerInfo
from mainspring.stores.tables import RUNNING
from mainspring.stores.workers import TimedRun, to_data

# -- workers --------------------------------------------------------------------------------------------

JOIN = """
INSERT INTO {s}.workers (id, info, queues, beat, seen_at)
VALUES (%(id)s, %(info)s::jsonb, %(queues)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {now})
ON CONFLICT (id) DO UPDATE SET info = excluded.info, queues = excluded.queues, seen_at = excluded.seen_at,
                               beat = workers.beat + 1
RETURNING xmax = 0
"""
LEAVE = "DELETE FROM {s}.workers WHERE id = ANY(%(ids)s)"
FORGET = """
DELETE FROM {s}.workers
WHERE id IN (SELECT id FROM {s}.workers WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id
"""  # a worker that was stopped in the middle of a heartbeat has locked its row; it is removed next time
BEAT = """
UPDATE {s}.workers
SET beat = beat + 1, seen_at = {now}, lock = %(lock)s::bigint, lock_server = %(lock_server)s::bigint,
    info = info || jsonb_build_object('polling', %(polling)s::boolean, 'stuck', %(stuck)s::integer)
WHERE id = %(id)s RETURNING {now}, EXISTS (SELECT 1 FROM {s}.readers)
"""
IDLE = "UPDATE {s}.workers SET idle = %(idle)s WHERE id = %(id)s AND idle <> %(idle)s"
HELD = f"SELECT {LIVE_STATE} FROM {{s}}.jobs WHERE status = {RUNNING} AND"
IN_ORDER = "ORDER BY jobs.id FOR NO KEY UPDATE"
HELD_BY = f"{HELD} worker = %(worker)s {IN_ORDER}"
TAKEN_BY = f"{HELD} worker = %(worker)s AND claim = ANY(%(claims)s::bigint[]) {IN_ORDER}"
LOST = f"""
SELECT held.id::text FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS held(id, token)
WHERE NOT EXISTS (
    SELECT 1 FROM {{s}}.jobs AS j WHERE j.id = held.id AND j.token = held.token AND status + 0 = {RUNNING})
"""
TO_CANCEL = f"""
SELECT id::text, reason FROM {{s}}.jobs WHERE status = {RUNNING} AND worker = %(worker)s AND cancel
"""


def told_of(queues: Sequence[str]) -> list[str]:
    """Return the queues of whose jobs a worker is told: all, if it serves a pattern. Its listener hears the names."""
    return [EVERY_QUEUE] if any(map(is_pattern, queues)) else list(queues)


async def join(transaction: Transaction, worker: WorkerInfo) -> None:
    info = json.dumps(to_data(worker))
    is_new = await transaction.value(JOIN, id=worker.id, info=info, queues=told_of(worker.queues))
    await transaction.record([feed.joined(worker)] if is_new else [])


async def leave(transaction: Transaction, worker: str) -> None:
    """Remove a worker that shuts down, and release the jobs that it may still hold."""
    await release(transaction, HELD_BY, blocked=False, worker=worker)
    await transaction.do(LEAVE, ids=[worker])
    await transaction.record([feed.left(worker)])


async def give_back(transaction: Transaction, worker: str, claims: Iterable[int]) -> int:
    """Release jobs taken by claims whose answer never arrived: no worker runs them. Return their number."""
    return await release(transaction, TAKEN_BY, blocked=True, worker=worker, claims=list(claims))


async def release(transaction: Transaction, held: str, *, blocked: bool, **given: Any) -> int:
    """Release the jobs that the statement `held` selects, and return their number."""
    jobs = await held_jobs(transaction, held, **given)
    return len(await write(transaction, [(job, released(job, blocked=blocked)) for job in jobs]))


async def held_jobs(transaction: Transaction, statement: str, **given: Any) -> list[JobState]:
    """Return running jobs. They are locked in the order of their ids, so that two transactions never deadlock."""
    return [to_state(row) for row in await transaction.rows(statement, **given)]


async def pulse(transaction: Transaction, worker: str, held: Mapping[str, int]) -> Pulse:
    if not held:
        return Pulse()
    ids = only_ids(held)
    lost = {job_id for (job_id,) in await transaction.rows(LOST, ids=ids, tokens=[held[job_id] for job_id in ids])}
    cancelled = await transaction.rows(TO_CANCEL, worker=worker)
    return Pulse(frozenset(lost | (held.keys() - set(ids))), {job: reason for job, reason in cancelled if job in held})


# -- takeover -------------------------------------------------------------------------------------------

HOLDERS = f"SELECT DISTINCT worker FROM {{s}}.jobs WHERE status = {RUNNING}"
TO_TAKE_FROM = f"{HELD_BY} SKIP LOCKED"
TO_TAKE_STALLED = f"""
{HELD} (id, token) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[])) {IN_ORDER} SKIP LOCKED
"""
MISSED_BEATS = 1.5  # heartbeats that a worker without any session may be late with before it counts as dead
MIN_CONFIRMATION = 0.75  # seconds to wait for a heartbeat on its way: its connection may have been cut as well
LOCK_IS_FREE = f"CASE WHEN lock_server = {SERVER_START} THEN pg_try_advisory_xact_lock(lock) ELSE false END"
LOOK = f"""
SELECT (SELECT json_agg(json_build_array(id, beat, {LOCK_IS_FREE}, {{now}} - seen_at,
                                               coalesce(info->>'heartbeat', '0')))
        FROM {{s}}.workers),
       ARRAY({HOLDERS}),
       (SELECT json_agg(json_build_array(id, token, deadline - claimed_at)) FROM {{s}}.jobs
        WHERE status = {RUNNING} AND timeout > 0)
"""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A worker whose sessions have ended, although the server did not restart."""

    worker: str
    beat: int
    silent: float  # seconds since its last heartbeat, by the server's clock
    heartbeat: float  # seconds between its heartbeats

    @property
    def confirmed_in(self) -> float:
        """Seconds after which the worker is known to be dead, unless it sends a heartbeat."""
        return max(MIN_CONFIRMATION, MISSED_BEATS * self.heartbeat - self.silent)


@dataclass(slots=True)
class Overview:
    """What one query shows of all workers and running jobs."""

    beats: dict[str, int]
    disconnected: list[Disconnected]
    holders: list[str]
    timed: list[TimedRun]


async def look(transaction: Transaction) -> Overview:
    workers, holders, timed = await transaction.row(LOOK) or ([], [], [])
    beats = {worker: beat for worker, beat, *_ in workers or ()}
    disconnected = [
        Disconnected(worker, beat, silent / 1000, float(heartbeat))
        for worker, beat, is_free, silent, heartbeat in workers or ()
        if is_free
    ]
    return Overview(beats, disconnected, holders, [TimedRun(*row) for row in timed or ()])


BEATS = "SELECT id, beat FROM {s}.workers WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE SKIP LOCKED"


async def still_dead(transaction: Transaction, dead: Iterable[str], beats: Mapping[str, int]) -> list[str]:
    """Leave out workers that have sent a heartbeat since they were found dead.

    The rows of the others are locked, so that they cannot send one until the takeover is written.
    """
    now = dict(await transaction.rows(BEATS, ids=list(dead)))
    return [worker for worker in dead if now.get(worker) in {None, beats.get(worker)}]


async def take_over(
    transaction: Transaction, dead: Iterable[str], stalled_claims: Sequence[TimedRun], after_stall: AfterStall
) -> list[Takeover]:
    """Take over the jobs of dead workers, and the jobs that have run for too long.

    They are acked like any run, so that the fence, the counts and the history have one implementation.
    """
    ended: list[tuple[JobState, Outcome]] = []
    for worker in dead:
        ended += [(job, crashed(job)) for job in await held_jobs(transaction, TO_TAKE_FROM, worker=worker)]
    late = {"ids": [job.id for job in stalled_claims], "tokens": [job.token for job in stalled_claims]}
    jobs = await held_jobs(transaction, TO_TAKE_STALLED, **late) if stalled_claims else []
    taken = {job.id for job, _ in ended}
    ended += [(job, stalled(job, after_stall)) for job in jobs if job.id not in taken]
    transaction.cancellations = transaction.cancellations or bool(ended)
    await transaction.record(feed.stalled(ended))
    written = await write(transaction, ended)
    return [takeover(job, outcome, end.status) for (job, outcome), end in zip(ended, written, strict=True)]


# -- retention ------------------------------------------------------------------------------------------

EXPIRED = """
SELECT id::text, queue, status FROM {s}.archive_short WHERE expires_at <= {now}
ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""
FORGET_KEYS = """
WITH gone AS MATERIALIZED ( -- see documents.PRUNE
    SELECT task, dedupe_key FROM {s}.dedupe WHERE expires_at <= {now} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
DELETE FROM {s}.dedupe AS old USING gone WHERE old.task = gone.task AND old.dedupe_key = gone.dedupe_key
"""
FOLD_COUNTS = """
WITH gone AS (DELETE FROM {s}.counts RETURNING queue, status, n)
INSERT INTO {s}.counts SELECT queue, status, sum(n) FROM gone GROUP BY queue, status HAVING sum(n) <> 0
"""
MANY_COUNTS = "SELECT count(*) > 200 FROM (SELECT 1 FROM {s}.counts LIMIT 201) AS few"


FORGET_LINES = """
WITH old AS MATERIALIZED (
    SELECT operation, action FROM {s}.audit WHERE at < {now} - %(keep)s ORDER BY at LIMIT %(limit)s
), gone AS MATERIALIZED (
    SELECT job_id, operation, action FROM old JOIN {s}.audit_jobs USING (operation, action) LIMIT %(limit)s
)
DELETE FROM {s}.audit_jobs AS line USING gone
WHERE line.job_id = gone.job_id AND line.operation = gone.operation AND line.action = gone.action
"""
FORGET_ENTRIES = """
DELETE FROM {s}.audit WHERE (operation, action) IN (
    SELECT operation, action FROM {s}.audit AS old WHERE at < {now} - %(keep)s AND NOT EXISTS (
        SELECT 1 FROM {s}.audit_jobs WHERE operation = old.operation AND action = old.action)
    ORDER BY at LIMIT %(limit)s)
"""


async def prune(transaction: Transaction, limit: int, keep_audit: Millis) -> int:
    """Remove what has expired and return how much.

    Jobs kept for at least a day go by whole partitions. Jobs kept for less are deleted by row, up to the limit.
    """
    if await transaction.value(MANY_COUNTS):
        await transaction.do(FOLD_COUNTS)
    await transaction.rows(PLAN_FREELY, freely="off")
    rows = await transaction.rows(EXPIRED, limit=limit)
    if rows:
        ids = [job_id for job_id, _, _ in rows]
        await remove_jobs(transaction, ids)
        await forget_lines(transaction, ids)
        for (queue, status), number in Counter((queue, status) for _, queue, status in rows).items():
            transaction.count(queue, status, -number)
    folded = await numbers.fold(transaction)
    await transaction.rows(PLAN_FREELY, freely="on")
    forgotten = await transaction.do(FORGET_KEYS, limit=limit) + await transaction.do(documents.PRUNE, limit=limit)
    if folded is not None:
        forgotten += await changes.prune(transaction, limit, folded)
        await numbers.prune(transaction)
    forgotten += await prune_audit(transaction, limit, keep_audit)
    await end_expired_halts(transaction)
    dropped = await drop_days(transaction)
    await give_space_back(transaction)
    return len(rows) + forgotten + dropped


async def prune_audit(transaction: Transaction, limit: int, keep: Millis) -> int:
    """Delete old entries that have no lines any more; return the number of lines deleted if there may be more, else 0.

    An operation may have deleted a million jobs, and has a line for each of them.
    """
    lines = await transaction.do(FORGET_LINES, keep=keep, limit=limit)
    await transaction.do(FORGET_ENTRIES, keep=keep, limit=limit)
    return lines if lines >= limit else 0


SMALL_TABLE, LARGE_INDEXES = 1 << 20, 16 << 20  # bytes
BLOATED = """
SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{s}') AND relname = ANY(%(tables)s)
    AND pg_relation_size(oid) <= %(small)s AND pg_indexes_size(oid) > %(large)s
"""
EMPTIED = ("jobs", "archive_short", "attempts", "steps")  # tables that are empty again and again


async def give_space_back(transaction: Transaction) -> None:
    """Truncate tables that are empty and have large indexes: vacuum empties an index, but never makes it smaller.

    This happens only if nothing uses the table at this moment. Others wait for the truncation itself, and no longer.
    """
    sizes = {"small": SMALL_TABLE, "large": LARGE_INDEXES}
    for (table,) in await transaction.rows(BLOATED, tables=list(EMPTIED), **sizes):
        with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            async with transaction.connection.transaction():
                await transaction.do(f"LOCK TABLE {{s}}.{table} IN ACCESS EXCLUSIVE MODE NOWAIT")
                if not await transaction.value(f"SELECT EXISTS (SELECT 1 FROM {{s}}.{table})"):
                    await transaction.do(f"TRUNCATE {{s}}.{table}")


async def drop_days(transaction: Transaction) -> int:
    """Drop all partitions whose day is over, or none while something reads the archive.

    Waiting for a reader would make every later transaction wait behind this one.
    """
    if not await partitions.over(transaction):
        return 0
    dropped: list[tuple[str, int, int]] = []
    try:
        async with transaction.connection.transaction():
            await transaction.do("SET LOCAL lock_timeout = '50ms'")
            await transaction.rows(partitions.LOCK)
            days = await partitions.over(transaction)  # again: another worker may have dropped some
            for day in days:
                dropped += await empty_day(transaction, f"archive_{day}")
            for day in days:
                await transaction.do(f"DROP TABLE {{s}}.archive_{day}")
    except psycopg.errors.LockNotAvailable:
        return 0
    for queue, status, number in dropped:
        transaction.count(queue, status, -number)
    return sum(number for _, _, number in dropped)


async def empty_day(transaction: Transaction, name: str) -> list[tuple[Any, ...]]:
    """Delete what belongs to the day's jobs; return the number of jobs by queue and status."""
    await transaction.do(f"LOCK TABLE {{s}}.{name} IN SHARE ROW EXCLUSIVE MODE")  # no job is moved out meanwhile
    for table in (*BELONGINGS, "audit_jobs"):
        await transaction.do(f"DELETE FROM {{s}}.{table} AS part USING {{s}}.{name} AS job WHERE part.job_id = job.id")
    return await transaction.rows(f"SELECT queue, status, count(*) FROM {{s}}.{name} GROUP BY queue, status")
