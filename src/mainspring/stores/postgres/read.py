"""Read jobs, their history, the audit log and statistics."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mainspring.clock import to_datetime, to_millis
from mainspring.job import Attempt, Counts, Job, Move, Priority, Status, TimelineEntry
from mainspring.queue_patterns import is_pattern
from mainspring.stores.columns import as_object
from mainspring.stores.postgres import steps
from mainspring.stores.postgres.rows import COLUMNS, FINISHED, LIVE, UPDATED_AT, is_id, only_ids, to_job
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import DUE_CAP, DUE_LOOK, AuditEntry, AuditFilter, AuditSpot, Filter, Stats, WorkerInfo
from mainspring.stores.tables import (
    CODES,
    COMPLETED,
    DEAD_LETTER,
    RUNNING,
    DueIn,
    by_queue,
    due_in,
    timeline_of,
    to_attempt,
)
from mainspring.stores.workers import from_data

NUMBER = re.compile(r"\s*[+-]?\d+\s*")  # a part of a path that PostgreSQL also takes for an array index


# -- filters --------------------------------------------------------------------------------------


class Conditions:
    """A filter as a WHERE clause for one of the two tables. Column names are fixed; values are parameters."""

    def __init__(self, where: Filter, table: str) -> None:
        self.terms: list[str] = []
        self.values: dict[str, Any] = {}
        self.impossible = False  # no row of this table can match
        self._table = table
        self._add_choices(where)
        self._add_equalities(where)
        self._add_times(where)
        self._add_payload(where)

    def __str__(self) -> str:
        return " AND ".join(self.terms) or "true"

    def add(self, term: str, *values: Any) -> None:
        """Add a condition. Each `?` in it stands for one of the values, in order."""
        for value in values:
            name = f"f{len(self.values)}"
            self.values[name] = value
            term = term.replace("?", f"%({name})s", 1)
        self.terms.append(term)

    def _add_choices(self, where: Filter) -> None:
        codes = [code for code in CODES.values() if (code >= COMPLETED) == (self._table == FINISHED)]
        if where.statuses:
            wanted = [CODES[status] for status in where.statuses if CODES[status] in codes]
            self.impossible = not wanted
            if len(wanted) == 1:
                self.add("status = ?::smallint", wanted[0])  # an index by status and id then gives them in order
            elif set(wanted) != set(codes):
                self.add("status = ANY(?::smallint[])", wanted)
        if where.ids:
            ids = only_ids(where.ids)
            self.impossible = self.impossible or not ids
            self.add("id = ANY(?::uuid[])", ids)
        for column, choices in (("queue", where.queues), ("task", where.tasks)):
            if choices:
                self.add(f"{column} = ANY(?)", list(choices))
        if where.tags:
            self.add("tags @> ?", list(where.tags))
        if where.within:
            self.add_within(where.within)

    def add_within(self, patterns: Sequence[str]) -> None:
        """Add the condition that the queue fits one of the patterns."""
        names = [pattern for pattern in patterns if not is_pattern(pattern)]
        beginnings = [pattern[:-1] for pattern in patterns if is_pattern(pattern)]
        terms = ["queue = ANY(?)"] if names else []
        terms += ["starts_with(queue, ?)" for _ in beginnings]
        self.add(f"({' OR '.join(terms)})", *([names] if names else []), *beginnings)

    def _add_equalities(self, where: Filter) -> None:
        for column in ("target_type", "target_id", "dedupe_key", "worker", "error_type", "fingerprint"):
            if (value := getattr(where, column)) is not None:
                self.add(f"{column} = ?", value)

        if where.operation is not None:
            self.add("id IN (SELECT job_id FROM {s}.audit_jobs WHERE operation = ?)", where.operation)

    def _add_times(self, where: Filter) -> None:
        for column, field in (("created_at", "created"), ("run_at", "due"), ("finished_at", "finished")):
            for comparison, bound in ((">=", f"{field}_after"), ("<", f"{field}_before")):
                moment = getattr(where, bound)
                if moment is None:
                    continue
                if field == "finished" and self._table == LIVE:
                    self.impossible = True
                else:
                    self.add(f"{column} {comparison} ?", to_millis(moment))
        changed = "finished_at" if self._table == FINISHED else UPDATED_AT
        for comparison, moment in ((">=", where.changed_after), ("<", where.changed_before)):
            if moment is not None:
                self.add(f"{changed} {comparison} ?", to_millis(moment))

    def _add_payload(self, where: Filter) -> None:
        """Match payload paths through objects only. PostgreSQL also reads a number in a path as an array index."""
        for path, value in where.payload.items():
            steps = path.split(".")
            for depth in (depth for depth, step in enumerate(steps) if NUMBER.fullmatch(step)):
                self.add("jsonb_typeof({s}.as_json(payload) #> ?::text[]) = 'object'", steps[:depth])
            self.add("{s}.as_json(payload) #> ?::text[] = ?::jsonb", steps, json.dumps(value))


# -- jobs -----------------------------------------------------------------------------------------


async def get(transaction: Transaction, ids: Sequence[str], within: Sequence[str] = ()) -> list[Job]:
    """Return the jobs in the order asked for, without ids that do not exist. Each has its last traceback.

    A job may move from one table to the other between the two statements: what is missing is looked for once more.
    """
    wanted = only_ids(ids)
    found = await jobs_of(transaction, wanted, within)
    if missing := [job_id for job_id in wanted if job_id not in found]:
        found |= await jobs_of(transaction, missing, within)
    return [found[job_id] for job_id in ids if job_id in found]


TAGS = " UNION ALL ".join(
    f"SELECT id::text, tags FROM {{s}}.{table} WHERE id = ANY(%(ids)s::uuid[]) AND tags IS NOT NULL"
    for table in ("jobs", "archive")
)  # one statement: a job may move from one table to the other


async def tags(transaction: Transaction, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {job_id: tuple(found) for job_id, found in await transaction.rows(TAGS, ids=only_ids(ids))}


async def jobs_of(transaction: Transaction, ids: Sequence[str], within: Sequence[str]) -> dict[str, Job]:
    found: dict[str, Job] = {}
    for table, columns in COLUMNS.items():
        conditions = Conditions(Filter(within=tuple(within)), table)
        statement = f"""
            SELECT {columns}, (SELECT traceback FROM {{s}}.attempts WHERE job_id = job.id AND error_type IS NOT NULL
                               ORDER BY number DESC LIMIT 1)
            FROM {{s}}.{table} AS job WHERE id = ANY(%(ids)s::uuid[]) AND {conditions}"""
        for *row, traceback in await transaction.rows(statement, ids=list(ids), **conditions.values):
            found[row[0]] = to_job(row, traceback or "")
    return found


async def count(transaction: Transaction, where: Filter) -> int:
    total = 0
    for table in (LIVE, FINISHED):
        conditions = Conditions(where, table)
        if not conditions.impossible:
            statement = f"SELECT count(*) FROM {{s}}.{table} WHERE {conditions}"
            total += await transaction.value(statement, **conditions.values)
    return total


# -- history --------------------------------------------------------------------------------------

ATTEMPTS = """
SELECT number, worker, started_at, finished_at, move, error_type, error, error_code, traceback, fingerprint, version
FROM {s}.attempts
WHERE job_id = %(id)s ORDER BY number
"""
SUCCESS = f"""
SELECT worker, started_at, finished_at, version FROM {{s}}.archive WHERE id = %(id)s AND status = {COMPLETED}
"""


async def attempts(transaction: Transaction, job_id: str) -> list[Attempt]:
    if not is_id(job_id):
        return []
    history = [to_attempt(row) for row in await transaction.rows(ATTEMPTS, id=job_id)]
    success = await transaction.row(SUCCESS, id=job_id)
    if success:
        *run, version = success
        history.append(to_attempt((len(history) + 1, *run, Move.DONE, *[None] * 5, version)))
    return history


AUDIT_OF_JOB = """
SELECT at, actor, action, reason FROM {s}.audit_jobs JOIN {s}.audit USING (operation, action)
WHERE job_id = %(id)s ORDER BY at
"""


async def timeline(transaction: Transaction, job_id: str) -> list[TimelineEntry]:
    found = await get(transaction, [job_id])
    if not found:
        return []
    job = found[0]
    by_hand = await transaction.rows(AUDIT_OF_JOB, id=job_id)
    return timeline_of(job, await attempts(transaction, job_id), by_hand, await steps.of_job(transaction, job_id))


AUDIT = """
SELECT at, actor, action, reason, detail, n, operation FROM {{s}}.audit WHERE {terms}
ORDER BY at DESC, operation DESC, action DESC LIMIT %(limit)s
"""
OF_JOB = "(operation, action) IN (SELECT operation, action FROM {s}.audit_jobs WHERE job_id = ?::uuid)"


async def audit(transaction: Transaction, where: AuditFilter, limit: int, after: AuditSpot | None) -> list[AuditEntry]:
    if where.job is not None and not is_id(where.job):
        return []
    conditions = Conditions(Filter(), LIVE)  # empty: it only numbers the parameters
    given: list[tuple[str, Any]] = [
        ("actor = ?", where.actor),
        ("action = ?", where.action),
        ("operation = ?", where.operation),
        ("at >= ?", where.since and to_millis(where.since)),
        ("at < ?", where.until and to_millis(where.until)),
        (OF_JOB, where.job),
    ]
    for term, value in given:
        if value is not None:
            conditions.add(term, value)
    if after is not None:
        conditions.add("(at, operation, action) < (?, ?, ?)", *after)
    rows = await transaction.rows(AUDIT.format(terms=conditions), **conditions.values, limit=limit)
    return [
        AuditEntry(to_datetime(at), actor, action, reason, as_object(detail), number, operation)
        for at, actor, action, reason, detail, number, operation in rows
    ]


# -- numbers --------------------------------------------------------------------------------------

COUNTS = """
SELECT queue, status, sum(n)::bigint FROM {{s}}.counts WHERE {within} GROUP BY queue, status ORDER BY queue, status
"""
MAIN = f"""FROM {{s}}.jobs WHERE queue = %(queue)s AND priority = {{level}} AND status < {RUNNING} AND crashes = 0
            AND NOT aside AND run_at <= {{now}} ORDER BY run_at LIMIT"""
LEVELS = [MAIN.replace("{level}", str(level)) for level in range(len(Priority))]
DUE = f"""
SELECT sum(n)::bigint, min(head) FROM (
{
    " UNION ALL ".join(
        f"SELECT count(*) AS n, min(run_at) AS head FROM (SELECT run_at {level} {DUE_CAP}) AS level_{number}"
        for number, level in enumerate(LEVELS)
    )
}) AS levels
"""
TASKS_DUE = f"""
SELECT task, min(run_at), count(*) FROM (
{" UNION ALL ".join(f"(SELECT task, run_at {level} {DUE_LOOK})" for level in LEVELS)}) AS levels GROUP BY task
"""
APART_DUE = f"""
WITH apart AS MATERIALIZED (SELECT {{s}}.look_apart(%(queue)s) AS heads)
SELECT line.key, line.value::bigint, (SELECT count(*) FROM (
    SELECT 1 FROM {{s}}.jobs WHERE queue = %(queue)s AND task = line.key AND status < {RUNNING} AND crashes > 0
    AND run_at <= {{now}} LIMIT {DUE_CAP}) AS suspects)
FROM apart, json_each_text(heads -> 'suspects') AS line WHERE line.value::bigint <= {{now}}
UNION ALL
SELECT line ->> 0, (line ->> 2)::bigint, (SELECT count(*) FROM (
    SELECT 1 FROM {{s}}.jobs WHERE queue = %(queue)s AND task = line ->> 0 AND priority = (line ->> 1)::smallint
    AND status < {RUNNING} AND crashes = 0 AND aside AND run_at <= {{now}} LIMIT {DUE_CAP}) AS jobs)
FROM apart, json_array_elements(heads -> 'aside') AS line WHERE (line ->> 2)::bigint <= {{now}}
"""
WORKERS = "SELECT id, info, seen_at FROM {s}.workers ORDER BY id"


OLDEST_DEAD = f"""
SELECT queue, (SELECT min(finished_at) FROM {{s}}.archive WHERE status = {DEAD_LETTER} AND archive.queue = asked.queue)
FROM unnest(%(queues)s::text[]) AS asked(queue)
"""
STALLED = f"SELECT count(*) FROM {{{{s}}}}.jobs WHERE status = {RUNNING} AND deadline <= {{{{now}}}} AND {{within}}"


async def oldest_dead(transaction: Transaction, queues: list[str]) -> dict[str, datetime]:
    """Return when the oldest dead letter of each queue failed."""
    rows = await transaction.rows(OLDEST_DEAD, queues=queues) if queues else []
    return {queue: to_datetime(at) for queue, at in rows if at is not None}


async def counts(transaction: Transaction, within: Sequence[str] = ()) -> list[Counts]:
    conditions = Conditions(Filter(within=tuple(within)), LIVE)
    return by_queue(await transaction.rows(COUNTS.format(within=conditions), **conditions.values))


async def stalled(transaction: Transaction, within: Sequence[str]) -> int:
    conditions = Conditions(Filter(within=tuple(within)), LIVE)
    number: int = await transaction.value(STALLED.format(within=conditions), **conditions.values)
    return number


async def stats(transaction: Transaction, within: Sequence[str] = ()) -> Stats:
    """Count the jobs and list the workers. The caller adds the halts."""
    queues = await counts(transaction, within)
    due = [await read_due(transaction, line.queue) for line in queues]
    return Stats(
        queues=queues,
        due={queue.queue: queue.number for queue in due},
        oldest_due={queue.queue: to_datetime(queue.oldest) for queue in due if queue.oldest is not None},
        workers=await workers(transaction),
        halts=[],
        oldest_dead=await oldest_dead(transaction, [line.queue for line in queues if line[Status.DEAD_LETTER]]),
        stalled=await stalled(transaction, within),
        due_tasks=[task for queue in due for task in queue.tasks],
    )


async def read_due(transaction: Transaction, queue: str) -> DueIn:
    """Count the due jobs of a queue that wait, and find the oldest."""
    row = await transaction.row(DUE, queue=queue)
    assert row is not None  # noqa: S101 - an aggregate always returns a row
    first: list[Any] = await transaction.rows(TASKS_DUE, queue=queue) if row[0] else []
    apart: list[Any] = await transaction.rows(APART_DUE, queue=queue)
    return due_in(queue, row[0], row[1], first, apart)


async def workers(transaction: Transaction) -> list[WorkerInfo]:
    """List workers. Rows that cannot be read are left out: edited by hand, or written by a newer version."""
    found: list[WorkerInfo] = []
    for row in await transaction.rows(WORKERS):
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            found.append(from_data(*row))
    return found
