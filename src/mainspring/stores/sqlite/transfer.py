"""Read and insert the records that `mainspring copy` moves from store to store."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

from mainspring.clock import Millis
from mainspring.job import Status
from mainspring.stores import columns
from mainspring.stores.columns import decoded
from mainspring.stores.records import (
    AUDIT,
    DOCUMENT,
    KEY,
    PAUSE,
    STEP,
    Kind,
    Record,
    RecordPage,
    job_record,
    make_key,
    split_key,
)
from mainspring.stores.sqlite.admin import forget_lines
from mainspring.stores.sqlite.insertion import INSERT_PAYLOADS, INSERT_TAGS, LONG_PAYLOAD
from mainspring.stores.sqlite.rows import COLUMNS, FINISHED, LIVE, from_row
from mainspring.stores.sqlite.steps import PUT as PUT_STEPS
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import (
    CODES,
    COMPLETED,
    DEAD_LETTER,
    PENDING,
    RUNNING,
    STATUSES,
    deadline_of,
    grouped,
    none_if_never,
    or_never,
)

MAX_PAGE_BYTES = 8 * 2**20  # so that a store with long payloads does not fill the memory
MAX_STATEMENT_ROWS = 512  # SQLite allows 32,766 parameters per statement


@dataclass(slots=True)
class LoadRequest:
    kind: Kind
    records: Sequence[Record]
    stall_grace: Millis


class Place(Protocol):
    """The tables that hold the records of one kind."""

    def page(self, connection: sqlite3.Connection, after: str | None, limit: int, now: Millis) -> RecordPage: ...
    def find(self, connection: sqlite3.Connection, keys: Sequence[str], now: Millis) -> list[Record]: ...
    def put(self, transaction: Transaction, request: LoadRequest) -> dict[str, str]: ...
    def size(self, connection: sqlite3.Connection) -> int: ...


def dump(connection: sqlite3.Connection, kind: Kind, after: str | None, limit: int, now: Millis) -> RecordPage:
    return PLACES[kind].page(connection, after, limit, now)


def look_up(connection: sqlite3.Connection, kind: Kind, keys: Sequence[str], now: Millis) -> list[Record]:
    return PLACES[kind].find(connection, keys, now)


def load(transaction: Transaction, requests: list[LoadRequest]) -> list[dict[str, str]]:
    return [PLACES[request.kind].put(transaction, request) for request in requests]


def sizes(connection: sqlite3.Connection) -> dict[Kind, int]:
    return {kind: place.size(connection) for kind, place in PLACES.items()}


def under_way(connection: sqlite3.Connection) -> int:
    """Return the number of running jobs.

    Open transactions of callers need no count: they hold the file's write lock, so none is open once a halt is written.
    """
    number: int = connection.execute(f"SELECT count(*) FROM mainspring_jobs WHERE status = {RUNNING}").fetchone()[0]
    return number


# -- jobs ---------------------------------------------------------------------------------------------

RECORD = """
SELECT {columns},
       (SELECT json_group_array(json_array(name, number, kind, output, started_at, finished_at)) FROM mainspring_steps
        WHERE job_id = {table}.id) -- as a column, so that their outputs count among the page's bytes
FROM {table} WHERE
"""
LIVE_RECORD, FINISHED_RECORD = (RECORD.format(columns=COLUMNS[table], table=table) for table in (LIVE, FINISHED))
RUNS = """
SELECT job_id, number, worker, started_at, finished_at, move, error_type, error, error_code, traceback, fingerprint,
       version
FROM mainspring_attempts
WHERE job_id IN (SELECT value FROM json_each(?)) ORDER BY job_id, number
"""
BY_HAND = """
SELECT job_id, operation, action FROM mainspring_audit_jobs WHERE job_id IN (SELECT value FROM json_each(?))
ORDER BY job_id, operation, action
"""
HERE = """
SELECT id FROM mainspring_jobs WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL SELECT id FROM mainspring_archive WHERE id IN (SELECT value FROM json_each(:ids))
"""
HOLDERS = """
WITH wanted(key, wanted_task, wanted_key) AS (VALUES {values})
SELECT key, id FROM wanted CROSS JOIN mainspring_jobs ON task = wanted_task AND dedupe_key = wanted_key
"""
PUT_LIVE, PUT_FINISHED = (
    f"INSERT INTO {table} ({', '.join(names)}) VALUES {{values}}"
    for table, names in ((LIVE, (*columns.LIVE, "deadline")), (FINISHED, columns.FINISHED))
)
PUT_RUNS = """
INSERT OR IGNORE INTO mainspring_attempts
    (job_id, number, worker, started_at, finished_at, move, error_type, error, error_code, traceback, fingerprint,
     version)
VALUES {values}
"""
PUT_BY_HAND = "INSERT OR IGNORE INTO mainspring_audit_jobs (job_id, operation, action) VALUES {values}"


@dataclass(frozen=True, slots=True)
class Jobs:
    select: str
    condition: str
    statuses: tuple[int, ...]

    def page(self, connection: sqlite3.Connection, after: str | None, limit: int, now: Millis) -> RecordPage:
        del now
        statement = f"{self.select} {self.condition} AND id > ? ORDER BY id LIMIT ?"
        rows, more = up_to(connection.execute(statement, (after or "", limit + 1)), limit)
        return RecordPage(complete(connection, rows), rows[-1][0] if more else None)

    def find(self, connection: sqlite3.Connection, keys: Sequence[str], now: Millis) -> list[Record]:
        del now
        statement = f"{self.select} {self.condition} AND id IN (SELECT value FROM json_each(?))"
        return complete(connection, connection.execute(statement, (json.dumps(keys),)).fetchall())

    def size(self, connection: sqlite3.Connection) -> int:
        statement = "SELECT coalesce(sum(n), 0) FROM mainspring_counts WHERE status IN (SELECT value FROM json_each(?))"
        number: int = connection.execute(statement, (json.dumps(self.statuses),)).fetchone()[0]
        return number

    def put(self, transaction: Transaction, request: LoadRequest) -> dict[str, str]:
        live = request.kind is Kind.LIVE
        ids = json.dumps([record["id"] for record in request.records])
        in_the_way = {job_id: job_id for (job_id,) in transaction.execute(HERE, {"ids": ids})}
        new = [record for record in request.records if record["id"] not in in_the_way]
        if live:
            in_the_way |= holders(transaction, new)
            new = [record for record in new if record["id"] not in in_the_way]
        to_row = live_row if live else finished_row
        rows = [to_row(record, request.stall_grace) for record in new]
        put_rows(transaction, PUT_LIVE if live else PUT_FINISHED, rows)
        put_belongings(transaction, new)
        for (queue, status), number in Counter((record["queue"], record["status"]) for record in new).items():
            transaction.count(queue, CODES[Status(status)], number)
            if live:
                transaction.woken.add(queue)
        return in_the_way


def up_to(rows: Iterable[tuple[Any, ...]], limit: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the first rows, as many as fit into a page (at least one), and whether there are more."""
    taken: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        if len(taken) == limit or size > MAX_PAGE_BYTES:
            return taken, True
        taken.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
    return taken, False


def complete(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
    """Make the records of jobs: add their runs, steps and audit entries to their rows."""
    ids = json.dumps([row[0] for row in rows])
    runs = grouped(connection.execute(RUNS, (ids,)))
    by_hand = grouped(connection.execute(BY_HAND, (ids,)))
    return [
        job_record(from_row(row), runs.get(row[0], []), by_number(steps), by_hand.get(row[0], []))
        for *row, steps in rows
    ]


def by_number(steps: str) -> list[list[Any]]:
    return sorted(json.loads(steps), key=itemgetter(STEP.index("number")))


def holders(transaction: Transaction, records: Sequence[Record]) -> dict[str, str]:
    """Return the live job that holds the dedupe key of each record (record's key -> job's id)."""
    wanted = [
        (record["id"], record["task"], record["dedupe_key"]) for record in records if record["dedupe_key"] is not None
    ]
    return {key: holder for part in in_values(HOLDERS, wanted) for key, holder in transaction.execute(*part)}


def put_rows(transaction: Transaction, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    for start in range(0, len(rows), MAX_STATEMENT_ROWS):
        for part in in_values(statement, rows[start : start + MAX_STATEMENT_ROWS]):
            transaction.execute(*part)


LIVE_FIELDS, FINISHED_FIELDS = itemgetter(*columns.LIVE), itemgetter(*columns.FINISHED)


def stored(record: Record) -> Record:
    """Return a record's values in the form that both tables have."""
    return {
        **record,
        "status": CODES[Status(record["status"])],
        "tags": json.dumps(record["tags"]) if record["tags"] else None,
        "payload": record["payload"] if len(record["payload"]) <= LONG_PAYLOAD else None,
        "started_at": record["started_at"] or 0,
    }


def live_row(record: Record, stall_grace: Millis) -> tuple[Any, ...]:
    values = stored(record)
    values |= {"claimed_at": values["started_at"], "cancel": int(record["cancel"])}
    return (*LIVE_FIELDS(values), deadline_of(record, stall_grace))


def finished_row(record: Record, _: Millis) -> tuple[Any, ...]:
    row: tuple[Any, ...] = FINISHED_FIELDS({**stored(record), "expires_at": or_never(record["expires_at"])})
    return row


def put_belongings(transaction: Transaction, records: Sequence[Record]) -> None:
    """Insert the parts of jobs that are kept in separate tables.

    A job that was deleted here by hand may come back. The audit log then names it for what its record says.
    """
    forget_lines(transaction, [record["id"] for record in records])
    long = [(record["id"], record["payload"]) for record in records if len(record["payload"]) > LONG_PAYLOAD]
    tags = [(tag, record["id"]) for record in records for tag in record["tags"]]
    runs = [(record["id"], *run) for record in records for run in record["runs"]]
    steps = [(record["id"], *step) for record in records for step in record["steps"]]
    by_hand = [(record["id"], *operation) for record in records for operation in record["by_hand"]]
    for part in chain(
        in_values(INSERT_PAYLOADS, long), in_values(INSERT_TAGS, tags), in_values(PUT_RUNS, runs),
        in_values(PUT_STEPS, steps), in_values(PUT_BY_HAND, by_hand),
    ):  # fmt: skip
        transaction.execute(*part)


# -- records that are a row of one table --------------------------------------------------------------------------

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    owner: str  # column to report if the row is in the way of a record
    is_record: str = "1"  # condition: the row is a record
    is_expired: str = "0"  # condition: the row has expired
    read: Mapping[str, Convert] = field(default_factory=dict)  # conversions from a column to a record
    write: Mapping[str, Convert] = field(default_factory=dict)  # and from a record to a column

    def page(self, connection: sqlite3.Connection, after: str | None, limit: int, now: Millis) -> RecordPage:
        names, marks = ", ".join(self.key), ", ".join("?" * len(self.key))
        condition = f"({names}) > ({marks})" if after is not None else "1"
        statement = f"""SELECT {", ".join(self.columns)} FROM {self.name}
                        WHERE {condition} AND {self.is_record} AND NOT coalesce({self.is_expired}, 0)
                        ORDER BY {names} LIMIT ?"""
        parts = [] if after is None else split_key(after)
        statement = statement.replace("{now}", str(now))
        rows, more = up_to(connection.execute(statement, (*parts, limit + 1)), limit)
        records = [self._record(row) for row in rows]
        return RecordPage(records, records[-1]["key"] if more else None)

    def find(self, connection: sqlite3.Connection, keys: Sequence[str], now: Millis) -> list[Record]:
        names = " AND ".join(f"{name} = column{number}" for number, name in enumerate(self.key, 1))
        template = f"""SELECT {", ".join(self.columns)} FROM (VALUES {{values}}) CROSS JOIN {self.name} ON {names}
                       WHERE NOT coalesce({self.is_expired.replace("{now}", str(now))}, 0)"""
        return [
            self._record(row)
            for part in in_values(template, [split_key(key) for key in keys])
            for row in connection.execute(*part)
        ]

    def put(self, transaction: Transaction, request: LoadRequest) -> dict[str, str]:
        is_expired = self.is_expired.replace("{now}", str(transaction.now))
        transaction.execute(f"DELETE FROM {self.name} WHERE {is_expired}")
        here = self.find(transaction.connection, [record["key"] for record in request.records], transaction.now)
        in_the_way = {record["key"]: str(record[self.owner]) for record in here}
        new = [self._row(record) for record in request.records if record["key"] not in in_the_way]
        put_rows(transaction, f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES {{values}}", new)
        transaction.forget_halts()
        return in_the_way

    def size(self, connection: sqlite3.Connection) -> int:
        number: int = connection.execute(f"SELECT count(*) FROM {self.name}").fetchone()[0]
        return number

    def _record(self, row: Sequence[Any]) -> Record:
        values = dict(zip(self.columns, row, strict=True))
        values |= {name: convert(values[name]) for name, convert in self.read.items()}
        return {"key": make_key(*(values[name] for name in self.key)), **values}

    def _row(self, record: Record) -> list[Any]:
        return [self.write.get(name, same)(record[name]) for name in self.columns]


def same(value: Any) -> Any:
    return value


PLACES: Mapping[Kind, Place] = {
    Kind.AUDIT: Table(
        "mainspring_audit", ("operation", "action"), AUDIT, "operation",
        read={"detail": decoded}, write={"detail": json.dumps},
    ),
    Kind.PAUSES: Table(
        "mainspring_halts", ("queue",), PAUSE, "actor", "queue <> ''", "queue <> '' AND until <= {now}",
        read={"accept": bool}, write={"accept": int},
    ),
    Kind.KEYS: Table(
        "mainspring_dedupe", ("task", "dedupe_key"), KEY, "job_id", is_expired="expires_at <= {now}",
        read={"expires_at": none_if_never}, write={"expires_at": or_never},
    ),
    Kind.DOCUMENTS: Table(
        "mainspring_documents", ("collection", "grp", "id"), DOCUMENT, "version", is_expired="expires_at <= {now}",
        read={"due_at": none_if_never, "expires_at": none_if_never}, write={"due_at": or_never, "expires_at": or_never},
    ),
    Kind.LIVE: Jobs(LIVE_RECORD, "1", tuple(range(PENDING, COMPLETED))),
    Kind.DEAD: Jobs(FINISHED_RECORD, f"status = {DEAD_LETTER}", (DEAD_LETTER,)),
    Kind.HISTORY: Jobs(
        FINISHED_RECORD, f"status <> {DEAD_LETTER}", tuple(set(range(COMPLETED, len(STATUSES))) - {DEAD_LETTER})
    ),
}  # fmt: skip
