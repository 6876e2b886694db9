"""Maintenance: register workers, take over jobs of dead ones, delete expired data, diagnose and repair."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mainspring.clock import Millis
from mainspring.job import Outcome
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import JobState, crashed, released, stalled, takeover
from mainspring.stores.protocol import AfterStall, Finding, Pulse, Severity, Takeover, WorkerInfo
from mainspring.stores.sqlite import changes, documents, numbers, schema
from mainspring.stores.sqlite.acks import write
from mainspring.stores.sqlite.admin import end_expired_halts, forget_lines, remove_jobs
from mainspring.stores.sqlite.connection import DatabaseFile, file_system
from mainspring.stores.sqlite.liveness import Liveness, Registry
from mainspring.stores.sqlite.rows import FINISHED, KEPT_A_WEEK, KEPT_OTHERWISE, LIVE_STATE, WEEK, to_state
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.tables import COUNT_JOBS, NEVER, ODD_ROWS, RUNNING, odd_rows, status_name
from mainspring.stores.workers import Heartbeat, TimedRun

# -- workers that join and leave ------------------------------------------------------------------

JOIN = "INSERT INTO mainspring_workers VALUES (?) ON CONFLICT DO NOTHING"
LEAVE = "DELETE FROM mainspring_workers WHERE worker = ?"


def join(transaction: Transaction, workers: list[WorkerInfo]) -> list[None]:
    """Record workers that are new. Call it after their files are made: a worker that has only a row is dead."""
    new = [worker for worker in workers if transaction.execute(JOIN, (worker.id,)).rowcount]
    transaction.record(feed.joined(worker) for worker in new)
    return [None] * len(workers)


def leave(transaction: Transaction, workers: list[str]) -> list[int]:
    """Record that these workers leave, and release all jobs that they still hold; return their number per worker."""
    numbers: list[int] = []
    for worker in workers:
        held = held_jobs(transaction, HELD_BY, worker)
        numbers.append(len(write(transaction, [(job, released(job)) for job in held])))
        transaction.execute(LEAVE, (worker,))
        transaction.record([feed.left(worker)])
    return numbers


# -- takeover -------------------------------------------------------------------------------------

JOINED = "SELECT worker FROM mainspring_workers"
HOLDERS = f"SELECT DISTINCT worker FROM mainspring_jobs INDEXED BY mainspring_jobs_running WHERE status = {RUNNING}"
TIMED = f"""
SELECT json_group_array(json_array(id, token, deadline - claimed_at))
FROM mainspring_jobs INDEXED BY mainspring_jobs_running
WHERE status = {RUNNING} AND deadline < {NEVER}
"""
HELD = f"SELECT {LIVE_STATE} FROM mainspring_jobs"
HELD_BY = f"{HELD} INDEXED BY mainspring_jobs_running WHERE status = {RUNNING} AND worker = ?"
HELD_AS = f"{HELD} WHERE id = ? AND token = ? AND status = {RUNNING}"


class Overview(NamedTuple):
    """What one look shows of all workers and running jobs."""

    joined: set[str]  # workers that have joined, and of which the change feed has no end
    holders: set[str]  # workers that hold jobs
    timed: list[TimedRun]  # runs of jobs with a timeout


def look(connection: sqlite3.Connection) -> Overview:
    joined = {worker for (worker,) in connection.execute(JOINED)}
    timed = [TimedRun(*row) for row in json.loads(connection.execute(TIMED).fetchone()[0])]
    return Overview(joined, set(holders(connection)), timed)


def holders(connection: sqlite3.Connection) -> list[str]:
    return [worker for (worker,) in connection.execute(HOLDERS)]


class Death(NamedTuple):
    """A worker that was found dead after this heartbeat."""

    worker: str
    heartbeat: Heartbeat | None
    liveness: Registry

    def is_certain(self) -> bool:
        return self.liveness.dead(self.worker)

    def is_silent(self) -> bool:
        """Return whether the worker has sent no heartbeat since it was found dead."""
        return self.liveness.heartbeat_of(self.worker) == self.heartbeat


def take_over(transaction: Transaction, dead: list[Death]) -> list[list[Takeover]]:
    """Take over the jobs of dead workers, and record the deaths that are certain; return the takeovers per worker."""
    return [take_from(transaction, death) for death in dead]


def take_from(transaction: Transaction, death: Death) -> list[Takeover]:
    """Take over the jobs of a worker, unless it turns out to be alive.

    This transaction may have waited for a worker that was stopped in the middle of a write and runs again now. Such a
    worker still has its file. If another one joins by this name from now on, its row is written after this commit.
    """
    is_certain = death.is_certain()
    if not is_certain and not death.is_silent():
        return []
    taken = take(transaction, [(job, crashed(job)) for job in held_jobs(transaction, HELD_BY, death.worker)])
    if is_certain and transaction.execute(LEAVE, (death.worker,)).rowcount:  # 0: another process has recorded it
        transaction.record([feed.died(death.worker)])
    return taken


def take_stalled(transaction: Transaction, late: list[tuple[TimedRun, AfterStall]]) -> list[list[Takeover]]:
    """Take over stalled jobs, if they still run under the token that was watched."""
    return [
        take(transaction, [(job, stalled(job, after)) for job in held_jobs(transaction, HELD_AS, run.id, run.token)])
        for run, after in late
    ]


def held_jobs(transaction: Transaction, statement: str, *given: Any) -> list[JobState]:
    return [to_state(row) for row in transaction.execute(statement, given).fetchall()]


def take(transaction: Transaction, ended: Sequence[tuple[JobState, Outcome]]) -> list[Takeover]:
    """End runs in place of their workers, like any ack: fence, counts and history have only one implementation."""
    transaction.cancellations = transaction.cancellations or bool(ended)
    transaction.record(feed.stalled(ended))
    written = write(transaction, ended)
    return [takeover(job, outcome, end.status) for (job, outcome), end in zip(ended, written, strict=True)]


# -- retention ------------------------------------------------------------------------------------

EXPIRED = f"""
SELECT * FROM (SELECT id, queue, status FROM {FINISHED} INDEXED BY mainspring_archive_week
               WHERE {KEPT_A_WEEK} AND finished_at <= :now - {WEEK} ORDER BY finished_at LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT id, queue, status FROM {FINISHED} INDEXED BY mainspring_archive_expiry
               WHERE {KEPT_OTHERWISE} AND expires_at <= :now ORDER BY expires_at LIMIT :limit)
LIMIT :limit
"""
FORGET_KEYS = """
DELETE FROM mainspring_dedupe WHERE (task, dedupe_key) IN (
    SELECT task, dedupe_key FROM mainspring_dedupe INDEXED BY mainspring_dedupe_expiry WHERE expires_at <= ? LIMIT ?)
"""
SOMETHING_EXPIRED = f"""
SELECT EXISTS (SELECT 1 FROM {FINISHED} WHERE {KEPT_A_WEEK} AND finished_at <= :now - {WEEK})
    OR EXISTS (SELECT 1 FROM {FINISHED} WHERE {KEPT_OTHERWISE} AND expires_at <= :now)
    OR EXISTS (SELECT 1 FROM mainspring_audit WHERE at < :now - :keep_audit)
    OR EXISTS (SELECT 1 FROM mainspring_dedupe WHERE expires_at <= :now)
    OR EXISTS (SELECT 1 FROM mainspring_halts WHERE until <= :now)
    OR EXISTS (SELECT 1 FROM mainspring_documents WHERE expires_at <= :now AND expires_at < 4611686018427387904)
"""
PAGES_TO_FREE = 256  # at a time; a full VACUUM would block all writers until it has finished


class Prune(NamedTuple):
    now: Millis
    limit: int  # for jobs, keys and documents each
    keep_audit: Millis


def something_expired(connection: sqlite3.Connection, now: Millis, keep_audit: Millis) -> bool:
    expired = connection.execute(SOMETHING_EXPIRED, {"now": now, "keep_audit": keep_audit}).fetchone()[0]
    return bool(expired) or changes.something_expired(connection, now) or numbers.something_expired(connection, now)


def prune(transaction: Transaction, requests: list[Prune]) -> list[int]:
    return [prune_some(transaction, *request) for request in requests]


def prune_some(transaction: Transaction, now: Millis, limit: int, keep_audit: Millis) -> int:
    rows = transaction.execute(EXPIRED, {"now": now, "limit": limit}).fetchall()
    if rows:
        ids = [job_id for job_id, _, _ in rows]
        remove_jobs(transaction, ids)
        forget_lines(transaction, ids)
    for (queue, status), number in Counter((queue, status) for _, queue, status in rows).items():
        transaction.count(queue, status, -number)
    keys = transaction.execute(FORGET_KEYS, (now, limit)).rowcount
    numbers.prune(transaction.execute, now)
    lines = prune_audit(transaction, now - keep_audit, limit)
    end_expired_halts(transaction, now)
    if rows:
        transaction.pages_to_free = PAGES_TO_FREE
    forgotten = documents.prune(transaction, now, limit) + changes.prune(transaction, now, limit)
    return len(rows) + keys + lines + forgotten


OLD_ENTRIES = "SELECT operation, action FROM mainspring_audit WHERE at < ? ORDER BY at LIMIT ?"
FORGET_ENTRY = "DELETE FROM mainspring_audit WHERE operation = ? AND action = ?"
FORGET_LINES = """
DELETE FROM mainspring_audit_jobs WHERE (job_id, operation, action) IN (
    SELECT job_id, operation, action FROM mainspring_audit_jobs INDEXED BY mainspring_audit_jobs_of
    WHERE operation = ? AND action = ? LIMIT ?)
"""


def prune_audit(transaction: Transaction, before: Millis, limit: int) -> int:
    """Delete old entries, each after its lines; return the number of lines if there may be more of them, otherwise 0.

    An operation may have deleted a million jobs: others could not write while all its lines are deleted.
    """
    left = limit
    for entry in transaction.execute(OLD_ENTRIES, (before, limit)).fetchall():
        left -= transaction.execute(FORGET_LINES, (*entry, left)).rowcount
        if left <= 0:
            return limit
        transaction.execute(FORGET_ENTRY, entry)
    return 0


# -- diagnosis ------------------------------------------------------------------------------------

REAL_COUNTS = COUNT_JOBS.format(jobs="mainspring_jobs", archive="mainspring_archive")
ORPHANS = """
SELECT count(*) FROM mainspring_{table} AS part
WHERE NOT EXISTS (SELECT 1 FROM mainspring_jobs WHERE id = part.job_id)
  AND NOT EXISTS (SELECT 1 FROM mainspring_archive WHERE id = part.job_id)
"""
TABLES_OF_JOBS = ("payloads", "attempts", "steps", "tags")  # their rows belong to a job
ODD = ODD_ROWS.format(jobs="mainspring_jobs", archive="mainspring_archive")
TWICE = "SELECT count(*) FROM mainspring_jobs JOIN mainspring_archive USING (id)"


def diagnose(connection: sqlite3.Connection, file: DatabaseFile, liveness: Liveness) -> list[Finding]:
    """Return the results of all checks, the good ones too."""
    return [
        check_version(connection),
        check_journal(connection),
        check_file_system(file),
        check_integrity(connection),
        check_counts(connection),
        check_doubles(connection),
        odd_rows(connection.execute(ODD).fetchall()),
        *(check_orphans(connection, table) for table in TABLES_OF_JOBS),
        check_holders(connection, liveness),
        check_leftovers(liveness),
    ]


def ok(check: str, message: str) -> Finding:
    return Finding(Severity.OK, check, message)


def check_version(connection: sqlite3.Connection) -> Finding:
    version = schema.version_of(connection.cursor())
    return ok("version", f"SQLite {sqlite3.sqlite_version}, schema {version} of {len(schema.MIGRATIONS)}")


def check_journal(connection: sqlite3.Connection) -> Finding:
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        advice = "run `PRAGMA journal_mode = WAL` on the file while nothing uses it"
        return Finding(Severity.ERROR, "journal", f"journal mode is {mode}, not wal: readers and writers block", advice)
    return ok("journal", "write-ahead log")


def check_file_system(file: DatabaseFile) -> Finding:
    return ok("file system", f"{file_system(file.path.parent) or 'unknown'}, local")


def check_integrity(connection: sqlite3.Connection) -> Finding:
    found = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
    if found != ["ok"]:
        advice = "keep a copy of the file, then restore a backup or run `sqlite3 FILE .recover`"
        return Finding(Severity.ERROR, "integrity", "; ".join(found), advice)
    return ok("integrity", "no damage found")


def check_counts(connection: sqlite3.Connection) -> Finding:
    real = {(queue, status): n for queue, status, n in connection.execute(REAL_COUNTS)}
    kept = {
        (queue, status): n
        for queue, status, n in connection.execute("SELECT queue, status, n FROM mainspring_counts")
        if n
    }
    wrong = [key for key in real.keys() | kept.keys() if real.get(key, 0) != kept.get(key, 0)]
    if wrong:
        shown = ", ".join(
            f"{queue} {status_name(status)}: {kept.get((queue, status), 0)} kept, {real.get((queue, status), 0)} real"
            for queue, status in sorted(wrong)[:5]
        )
        return Finding(Severity.ERROR, "counts", shown, "run `mainspring doctor --repair`")
    return ok("counts", f"{sum(real.values())} jobs, kept numbers agree")


def check_doubles(connection: sqlite3.Connection) -> Finding:
    number = connection.execute(TWICE).fetchone()[0]
    if number:
        return Finding(Severity.ERROR, "doubles", f"{number} jobs are both live and finished", "please report this")
    return ok("doubles", "no job is both live and finished")


def check_orphans(connection: sqlite3.Connection, table: str) -> Finding:
    number = connection.execute(ORPHANS.format(table=table)).fetchone()[0]
    if number:
        return Finding(Severity.WARNING, table, f"{number} rows belong to no job", "run `mainspring doctor --repair`")
    return ok(table, "every row belongs to a job")


def check_holders(connection: sqlite3.Connection, liveness: Liveness) -> Finding:
    dead = [worker for worker in holders(connection) if liveness.dead(worker)]
    if dead:
        advice = "start a worker: it takes them over within a second"
        return Finding(Severity.WARNING, "claims", f"jobs are held by dead workers: {', '.join(dead)}", advice)
    return ok("claims", "every running job has a live worker")


def check_leftovers(liveness: Liveness) -> Finding:
    dead = [info.id for info in liveness.workers() if not info.alive]
    if dead:
        return Finding(
            Severity.WARNING, "workers", f"files of dead workers: {', '.join(dead)}", "the next worker removes them"
        )
    return ok("workers", f"{sum(1 for _ in liveness.workers())} alive")


def repair(transaction: Transaction, requests: list[None]) -> list[None]:
    """Count all jobs again, and delete rows that belong to no job."""
    transaction.execute("DELETE FROM mainspring_counts")
    transaction.execute(f"INSERT INTO mainspring_counts {REAL_COUNTS}")
    for table in TABLES_OF_JOBS:
        orphans = ORPHANS.format(table=table).replace("count(*)", "job_id")
        transaction.execute(f"DELETE FROM mainspring_{table} WHERE job_id IN ({orphans})")
    return requests


# -- heartbeat ------------------------------------------------------------------------------------

LOST = f"""
SELECT json_group_array(held.key) FROM json_each(?) AS held
WHERE NOT EXISTS (
    SELECT 1 FROM mainspring_jobs WHERE mainspring_jobs.id = held.key AND token = held.value AND status = {RUNNING})
"""
TO_CANCEL = f"""
SELECT json_group_array(json_array(id, reason)) FROM mainspring_jobs INDEXED BY mainspring_jobs_running
WHERE status = {RUNNING} AND worker = ? AND cancel = 1
"""


def pulse(connection: sqlite3.Connection, worker: str, held: Mapping[str, int]) -> Pulse:
    lost = json.loads(connection.execute(LOST, (json.dumps(dict(held)),)).fetchone()[0])
    cancelled = json.loads(connection.execute(TO_CANCEL, (worker,)).fetchone()[0])
    return Pulse(frozenset(lost), {job_id: reason for job_id, reason in cancelled if job_id in held})
