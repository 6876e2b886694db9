"""Queries. They run on their own connections, so that readers never wait for writers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.job import Attempt, Counts, Job, Move, Status, TimelineEntry
from mainspring.queue_patterns import after_all, is_pattern
from mainspring.stores.columns import as_object, decoded
from mainspring.stores.engine.halts import is_about
from mainspring.stores.protocol import (
    DUE_CAP,
    DUE_LOOK,
    AuditEntry,
    AuditFilter,
    AuditSpot,
    Filter,
    Halt,
    Stats,
    WorkerInfo,
)
from mainspring.stores.sqlite.claims import ASIDE, PRIORITIES, SET_ASIDE, SUSPECT, SUSPECTS, WAITING
from mainspring.stores.sqlite.rows import (
    COLUMNS,
    FINISHED,
    KEPT_A_WEEK,
    KEPT_OTHERWISE,
    LIVE,
    UPDATED_AT,
    read_tags,
    to_job,
)
from mainspring.stores.sqlite.steps import steps
from mainspring.stores.sqlite.transaction import HALTS, to_halt
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

# -- filters --------------------------------------------------------------------------------------


class Conditions:
    """A filter as a WHERE clause for one of the two tables. Column names are constants, values are parameters."""

    def __init__(self, where: Filter, table: str, *, correlated: bool = False) -> None:
        self.terms: list[str] = []
        self.values: list[Any] = []
        self.impossible = False  # no row of this table can match
        self.table = table
        self.by_end = False  # the indexes of ends may find the rows
        self._correlated = correlated  # checked row by row
        self._has_tag = HAS_TAG.format(table=table) if correlated else IS_TAGGED
        self._add_choices(where)
        self._add_equalities(where)
        self._add_times(where)
        self._add_payload(where)

    def __str__(self) -> str:
        return " AND ".join(self.terms) or "1"

    def add(self, term: str, *values: Any) -> None:
        self.terms.append(term)
        self.values += values

    def _add_choices(self, where: Filter) -> None:
        codes = [code for status, code in CODES.items() if (code >= COMPLETED) == (self.table == FINISHED)]
        if where.statuses:
            wanted = [CODES[status] for status in where.statuses if CODES[status] in codes]
            self.impossible = not wanted
            if set(wanted) != set(codes):
                self.add(f"status IN ({', '.join(map(str, wanted))})" if len(wanted) != 1 else f"status = {wanted[0]}")
            if wanted and min(wanted) > COMPLETED and where.fingerprint is None:  # failure groups have another index
                self.add(IN_FAILED)
        for column, choices in (("id", where.ids), ("queue", where.queues), ("task", where.tasks)):
            if choices:
                self._any_of(column, choices)
        for tag in where.tags:
            self.add(self._has_tag, tag)
        if where.within:
            self.add(*within_terms(where.within))

    def _any_of(self, column: str, choices: Sequence[Any]) -> None:
        if len(choices) == 1:
            self.add(f"{column} = ?", choices[0])
        else:
            self.add(f"{column} IN (SELECT value FROM json_each(?))", json.dumps(choices))

    def _add_equalities(self, where: Filter) -> None:
        for column in ("target_type", "target_id", "dedupe_key", "worker", "error_type", "fingerprint"):
            if (value := getattr(where, column)) is not None:
                self.add(f"{column} = ?", value)

        if where.operation is not None:
            self.add("id IN (SELECT job_id FROM mainspring_audit_jobs WHERE operation = ?)", where.operation)

    def _add_times(self, where: Filter) -> None:
        for column, after, before in (
            ("created_at", where.created_after, where.created_before),
            ("run_at", where.due_after, where.due_before),
        ):
            for term, moment in ((f"{column} >= ?", after), (f"{column} < ?", before)):
                if moment is not None:
                    self.add(term, to_millis(moment))
        ends = {">=": where.finished_after, "<": where.finished_before}
        if self.table == LIVE:
            self.impossible = self.impossible or any(ends.values())
            if where.changed_after is not None:
                self.add(f"{UPDATED_AT} >= ?", to_millis(where.changed_after))
        else:
            after = max(filter(None, (where.finished_after, where.changed_after)), default=None)
            self._add_ends({**ends, ">=": after})
        if where.changed_before is not None:  # nearly all rows match, so that no index of ends would help
            changed = UPDATED_AT if self.table == LIVE else "finished_at"
            self.add(f"{changed} < ?", to_millis(where.changed_before))

    def _add_ends(self, bounds: Mapping[str, datetime | None]) -> None:
        """Add bounds of the end. Two indexes have the ends, so if the rows are to be found by them, search both."""
        given = {sign: to_millis(moment) for sign, moment in bounds.items() if moment is not None}
        if not given:
            return
        term = " AND ".join(f"finished_at {sign} ?" for sign in given)
        if self._correlated:
            self.add(term, *given.values())
        else:
            self.by_end = True
            self.add(f"({KEPT_A_WEEK} AND {term} OR {KEPT_OTHERWISE} AND {term})", *given.values(), *given.values())

    def _add_payload(self, where: Filter) -> None:
        """Compare decoded field names: SQLite's own path syntax cannot name fields that JSON writes with escapes."""
        for path, value in where.payload.items():
            steps = path.split(".")
            objects = [BODY.format(table=self.table), *(NESTED.format(outer=depth) for depth in range(len(steps) - 1))]
            levels = ", ".join(f"json_each({source}) AS s{depth}" for depth, source in enumerate(objects))
            names = " AND ".join(f"s{depth}.key = ?" for depth in range(len(steps)))
            condition, compared = equality(f"s{len(steps) - 1}", value)
            self.add(f"EXISTS (SELECT 1 FROM {levels} WHERE {names} AND {condition})", *steps, *compared)


def within_terms(patterns: Sequence[str]) -> tuple[str, *tuple[str, ...]]:
    """Return the condition that a queue fits one of the patterns, and its values."""
    names = [pattern for pattern in patterns if not is_pattern(pattern)]
    terms = ["queue IN (SELECT value FROM json_each(?))"] if names else []
    values = [json.dumps(names)] if names else []
    for beginning in (pattern[:-1] for pattern in patterns if is_pattern(pattern)):
        terms.append("(queue >= ? AND queue < ?)" if beginning else "1")
        values += [beginning, after_all(beginning)] if beginning else []
    return f"({' OR '.join(terms)})", *values


# The condition of an index, which SQLite does not derive. It holds for every row that is read: `likelihood` keeps the
# planner from choosing it as the range to scan.
IN_FAILED = f"likelihood(status > {COMPLETED}, 1.0)"
IS_TAGGED = "id IN (SELECT job_id FROM mainspring_tags WHERE tag = ?)"
HAS_TAG = "EXISTS (SELECT 1 FROM mainspring_tags WHERE tag = ? AND job_id = {table}.id)"
BODY = """(SELECT CASE WHEN json_valid(body) THEN body ELSE '{{}}' END FROM (SELECT
    coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = {table}.id)) AS body))"""
NESTED = "CASE WHEN s{outer}.type = 'object' THEN s{outer}.value ELSE '{{}}' END"


def equality(found: str, value: Any) -> tuple[str, Sequence[Any]]:
    """Return the condition that a row of json_each has this JSON value. In JSON, true is not 1."""
    if value is None or isinstance(value, bool):
        return f"{found}.type = ?", (json.dumps(value),)
    if isinstance(value, (dict, list)):
        return f"{found}.type IN ('object', 'array') AND {found}.value = json(?)", (json_of(value),)
    if isinstance(value, str):
        return f"{found}.type = 'text' AND {found}.value = ?", (value,)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{found}.type IN ('integer', 'real') AND {found}.value = CAST(? AS REAL)", (str(value),)
    return f"{found}.type IN ('integer', 'real') AND {found}.value = ?", (value,)


def json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- jobs -----------------------------------------------------------------------------------------


GET = tuple(
    f"""
    SELECT {columns}, (SELECT traceback FROM mainspring_attempts
                       WHERE job_id = {table}.id AND error_type IS NOT NULL ORDER BY number DESC LIMIT 1)
    FROM {table} WHERE id IN (SELECT value FROM json_each(?)) AND {{within}}"""
    for table, columns in COLUMNS.items()
)


def get(connection: sqlite3.Connection, ids: Sequence[str], within: Sequence[str] = ()) -> list[Job]:
    """Return jobs with their last traceback, in the order of the ids. Unknown ids are skipped."""
    found: dict[str, Job] = {}
    condition, *values = within_terms(within) if within else ("1",)
    given = (json.dumps(list(ids)), *values)
    for statement in GET:
        for *row, traceback in connection.execute(statement.format(within=condition), given):
            found[row[0]] = to_job(row, traceback or "")
    return [found[job_id] for job_id in ids if job_id in found]


TAGS = " UNION ALL ".join(
    f"SELECT id, tags FROM {table} WHERE id IN (SELECT value FROM json_each(:ids)) AND tags IS NOT NULL"
    for table in (LIVE, FINISHED)
)


def tags(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    rows = connection.execute(TAGS, {"ids": json.dumps(list(ids))})
    return {job_id: read_tags(text) for job_id, text in rows}


MOST_BY_END = 50_000  # jobs that are counted by the indexes of ends; if there are more, it is faster to read all rows


def count(connection: sqlite3.Connection, where: Filter) -> int:
    return sum(count_in(connection, where, table) for table in (LIVE, FINISHED))


def count_in(connection: sqlite3.Connection, where: Filter, table: str) -> int:
    conditions = Conditions(where, table)
    if conditions.impossible:
        return 0
    if conditions.by_end:
        number = number_of(connection, conditions, MOST_BY_END)
        if number < MOST_BY_END:
            return number
        conditions = Conditions(where, table, correlated=True)
    statement = f"SELECT count(*) FROM {table} WHERE {conditions}"
    total: int = connection.execute(statement, conditions.values).fetchone()[0]
    return total


def number_of(connection: sqlite3.Connection, conditions: Conditions, most: int) -> int:
    """Count the rows that match, up to `most`."""
    statement = f"SELECT count(*) FROM (SELECT 1 FROM {conditions.table} WHERE {conditions} LIMIT ?)"
    number: int = connection.execute(statement, (*conditions.values, most)).fetchone()[0]
    return number


# -- history --------------------------------------------------------------------------------------

ATTEMPTS = """
SELECT number, worker, started_at, finished_at, move, error_type, error, error_code, traceback, fingerprint, version
FROM mainspring_attempts
WHERE job_id = ? ORDER BY number
"""
SUCCESS = f"""
SELECT worker, started_at, finished_at, version FROM mainspring_archive WHERE id = ? AND status = {COMPLETED}
"""


def attempts(connection: sqlite3.Connection, job_id: str) -> list[Attempt]:
    history = [to_attempt(row) for row in connection.execute(ATTEMPTS, (job_id,))]
    success = connection.execute(SUCCESS, (job_id,)).fetchone()
    if success:
        *run, version = success
        history.append(to_attempt((len(history) + 1, *run, Move.DONE, *[None] * 5, version)))
    return history


AUDIT_OF_JOB = """
SELECT at, actor, action, reason FROM mainspring_audit_jobs JOIN mainspring_audit USING (operation, action)
WHERE job_id = ? ORDER BY at
"""


def timeline(connection: sqlite3.Connection, job_id: str) -> list[TimelineEntry]:
    found = get(connection, [job_id])
    if not found:
        return []
    job = found[0]
    by_hand = connection.execute(AUDIT_OF_JOB, (job_id,))
    return timeline_of(job, attempts(connection, job_id), by_hand, steps(connection, job_id))


AUDIT = """
SELECT at, actor, action, reason, detail, n, operation FROM mainspring_audit WHERE {terms}
ORDER BY at DESC, operation DESC, action DESC LIMIT ?
"""
OF_JOB = "(operation, action) IN (SELECT operation, action FROM mainspring_audit_jobs WHERE job_id = ?)"


def audit(connection: sqlite3.Connection, where: AuditFilter, limit: int, after: AuditSpot | None) -> list[AuditEntry]:
    given: list[tuple[str, Any]] = [
        ("actor = ?", where.actor),
        ("action = ?", where.action),
        ("operation = ?", where.operation),
        ("at >= ?", where.since and to_millis(where.since)),
        ("at < ?", where.until and to_millis(where.until)),
        (OF_JOB, where.job),
    ]
    terms = {term: value for term, value in given if value is not None}
    before = [] if after is None else ["at <= ?", "(at, operation, action) < (?, ?, ?)"]
    statement = AUDIT.format(terms=" AND ".join([*terms, *before]) or "1")
    values = (*terms.values(), *(() if after is None else (after[0], *after)), limit)
    return [
        AuditEntry(to_datetime(at), actor, action, reason, as_object(decoded(detail)), number, operation)
        for at, actor, action, reason, detail, number, operation in connection.execute(statement, values)
    ]


# -- numbers --------------------------------------------------------------------------------------

DUE = f"""
SELECT sum(n), min(head) FROM (
{
    " UNION ALL ".join(
        f'''SELECT count(*) AS n, min(run_at) AS head FROM (
            SELECT run_at {WAITING.format(queue=":queue", level=level)} AND run_at <= :now
            ORDER BY run_at LIMIT {DUE_CAP})'''
        for level in PRIORITIES
    )
})
"""
TASKS_DUE = " UNION ALL ".join(
    f"""SELECT * FROM (SELECT task, run_at {WAITING.format(queue=":queue", level=level)} AND run_at <= :now
                       ORDER BY run_at LIMIT {DUE_LOOK})"""
    for level in PRIORITIES
)
SUSPECTS_DUE = f"""
SELECT task, head, (SELECT count(*) FROM (
    SELECT 1 {SUSPECT.format(queue=":queue")} AND task = line.task AND run_at <= :now LIMIT {DUE_CAP}))
FROM ({SUSPECTS}) AS line WHERE head <= :now
"""
ASIDE_DUE = f"""
SELECT task, head, (SELECT count(*) FROM (
    SELECT 1 {ASIDE.format(queue=":queue")} AND task = line.task AND priority = line.priority AND run_at <= :now
    LIMIT {DUE_CAP}))
FROM ({SET_ASIDE}) AS line WHERE head <= :now
"""


def counts(connection: sqlite3.Connection, within: Sequence[str] = ()) -> list[Counts]:
    condition, *values = within_terms(within) if within else ("1",)
    statement = f"SELECT queue, status, n FROM mainspring_counts WHERE {condition} ORDER BY queue, status"
    return by_queue(connection.execute(statement, values))


def due(connection: sqlite3.Connection, queue: str, now: Millis) -> DueIn:
    """Return the due jobs of a queue, in numbers."""
    given = {"queue": queue, "now": now}
    number, oldest = connection.execute(DUE, given).fetchone()
    apart = [row for statement in (SUSPECTS_DUE, ASIDE_DUE) for row in connection.execute(statement, given)]
    first = [(task, run_at, 1) for task, run_at in connection.execute(TASKS_DUE, given)]
    return due_in(queue, number, oldest, first, apart)


OLDEST_DEAD = f"""
SELECT min(finished_at) FROM mainspring_archive INDEXED BY mainspring_archive_dead
WHERE status = {DEAD_LETTER} AND queue = ?
"""
STALLED = f"""
SELECT count(*) FROM mainspring_jobs INDEXED BY mainspring_jobs_running
WHERE status = {RUNNING} AND deadline <= ? AND {{within}}
"""


def oldest_dead(connection: sqlite3.Connection, queues: Sequence[str]) -> dict[str, datetime]:
    """Return when the oldest dead letter of each queue failed."""
    found = {queue: connection.execute(OLDEST_DEAD, (queue,)).fetchone()[0] for queue in queues}
    return {queue: to_datetime(at) for queue, at in found.items() if at is not None}


def stats(
    connection: sqlite3.Connection, now: Millis, workers: Callable[[], list[WorkerInfo]], within: Sequence[str] = ()
) -> Stats:
    queues = counts(connection, within)
    lines = [due(connection, queue.queue, now) for queue in queues]
    return Stats(
        queues=queues,
        due={line.queue: line.number for line in lines},
        oldest_due={line.queue: to_datetime(line.oldest) for line in lines if line.oldest is not None},
        workers=workers(),
        halts=[halt for halt in halts(connection, now) if is_about(halt, within)],
        oldest_dead=oldest_dead(connection, [queue.queue for queue in queues if queue[Status.DEAD_LETTER]]),
        stalled=stalled(connection, now, within),
        due_tasks=[task for line in lines for task in line.tasks],
    )


def stalled(connection: sqlite3.Connection, now: Millis, within: Sequence[str]) -> int:
    condition, *values = within_terms(within) if within else ("1",)
    number: int = connection.execute(STALLED.format(within=condition), (now, *values)).fetchone()[0]
    return number


# -- halts ----------------------------------------------------------------------------------------

CONFIRMED = "SELECT worker FROM mainspring_confirmations WHERE number >= ?"


def halts(connection: sqlite3.Connection, now: Millis) -> list[Halt]:
    return [to_halt(row) for row in connection.execute(HALTS, (now,))]


def is_over(connection: sqlite3.Connection, halt: Halt, now: Millis) -> bool:
    return all(current.number < halt.number for current in halts(connection, now))


def confirmed_by(connection: sqlite3.Connection, number: int) -> set[str]:
    return {worker for (worker,) in connection.execute(CONFIRMED, (number,))}
