"""Read records from the tables and write them: what `mainspring copy` moves between stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mainspring.clock import Millis
from mainspring.job import Status, Step
from mainspring.stores import columns
from mainspring.stores.postgres import arrays, steps
from mainspring.stores.postgres.admin import forget_lines
from mainspring.stores.postgres.partitions import DAY, FOREVER_DAY
from mainspring.stores.postgres.rows import COLUMNS, FINISHED, LIVE, only_ids
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.records import STEP, Kind, Record, RecordPage, job_record, make_key, split_key
from mainspring.stores.tables import (
    CODES,
    COMPLETED,
    DEAD_LETTER,
    PENDING,
    RUNNING,
    STATUSES,
    deadline_of,
    from_row,
    grouped,
    none_if_never,
    or_never,
)

MAX_PAGE_BYTES = 8 * 2**20  # a store with long payloads must not fill the memory


class Place(Protocol):
    """Where records of one kind are stored."""

    async def page(self, transaction: Transaction, after: str | None, limit: int) -> RecordPage: ...
    async def find(self, transaction: Transaction, keys: Sequence[str]) -> list[Record]: ...
    async def put(self, transaction: Transaction, records: Sequence[Record], stall_grace: Millis) -> dict[str, str]: ...
    async def size(self, transaction: Transaction) -> int: ...


BY_INDEX = """
SELECT set_config(setting, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort']) AS setting
"""  # a planner with stale statistics may expect few rows, and sort all that are left for each page


async def dump(transaction: Transaction, kind: Kind, after: str | None, limit: int) -> RecordPage:
    await transaction.rows(BY_INDEX)
    return await PLACES[kind].page(transaction, after, limit)


async def look_up(transaction: Transaction, kind: Kind, keys: Sequence[str]) -> list[Record]:
    return await PLACES[kind].find(transaction, keys)


async def load(transaction: Transaction, kind: Kind, records: Sequence[Record], stall_grace: Millis) -> dict[str, str]:
    return await PLACES[kind].put(transaction, records, stall_grace)


async def sizes(transaction: Transaction) -> dict[Kind, int]:
    return {kind: await place.size(transaction) for kind, place in PLACES.items()}


UNDER_WAY = f"""
SELECT (SELECT count(*) FROM {{s}}.jobs WHERE status = {RUNNING})
     + (SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND relation = to_regclass('{{s}}.jobs')
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid())
"""


async def under_way(transaction: Transaction) -> int:
    """Count running jobs, and transactions of callers that have enqueued: each locks the table until it commits."""
    number: int = await transaction.value(UNDER_WAY)
    return number


# -- jobs ---------------------------------------------------------------------------------------------

LIVE_TYPES = {**columns.LIVE, "deadline": "bigint"}
FINISHED_TYPES = {**columns.FINISHED, "drop_day": "integer"}
encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

RUNS = """
SELECT job_id::text, number, worker, started_at, finished_at, move, error_type, error, error_code, traceback,
       fingerprint, version
FROM {s}.attempts
WHERE job_id = ANY(%(ids)s::uuid[]) ORDER BY attempts.job_id, number
"""
STEPS = f"""
SELECT job_id::text, {", ".join(STEP)} FROM {{s}}.steps
WHERE job_id = ANY(%(ids)s::uuid[]) ORDER BY steps.job_id, number
"""
BY_HAND = """
SELECT job_id::text, operation, action FROM {s}.audit_jobs WHERE job_id = ANY(%(ids)s::uuid[])
ORDER BY audit_jobs.job_id, operation COLLATE "C", action COLLATE "C"
"""
PUT_RUNS = """
INSERT INTO {s}.attempts (job_id, number, worker, started_at, finished_at, move, error_type, error, error_code,
                          traceback, fingerprint, version)
SELECT * FROM unnest(%(ids)s::uuid[], %(numbers)s::integer[], %(workers)s::text[], %(began)s::bigint[],
                     %(ended)s::bigint[], %(moves)s::text[], %(error_types)s::text[], %(errors)s::text[],
                     %(codes)s::text[], %(tracebacks)s::text[], %(fingerprints)s::text[], %(versions)s::text[])
ON CONFLICT DO NOTHING
"""
PUT_BY_HAND = """
INSERT INTO {s}.audit_jobs (job_id, operation, action)
SELECT * FROM unnest(%(ids)s::uuid[], %(operations)s::text[], %(actions)s::text[]) ON CONFLICT DO NOTHING
"""
HERE = """
SELECT id::text FROM {s}.jobs WHERE id = ANY(%(ids)s::uuid[])
UNION ALL SELECT id::text FROM {s}.archive WHERE id = ANY(%(ids)s::uuid[])
"""
HOLDERS = """
SELECT wanted.id::text, jobs.id::text
FROM unnest(%(ids)s::uuid[], %(tasks)s::text[], %(keys)s::text[]) AS wanted(id, task, key)
JOIN {s}.jobs ON jobs.task = wanted.task AND jobs.dedupe_key = wanted.key
"""


def put_statement(table: str, types: Mapping[str, str]) -> str:
    """Return a statement that inserts rows from one JSON text, which costs less to write than thirty arrays."""
    names = ", ".join(types)
    given = ", ".join(f"{name} {kind}" for name, kind in types.items())
    return f"""
WITH new AS (
    INSERT INTO {{s}}.{table} ({names})
    SELECT {names} FROM json_to_recordset(%(rows)s::json) AS given({given})
    ON CONFLICT DO NOTHING RETURNING id, queue, status
), counted AS (
    INSERT INTO {{s}}.counts (queue, status, n) SELECT queue, status, count(*) FROM new GROUP BY queue, status
)
SELECT id::text FROM new
"""


PUT_LIVE = put_statement(LIVE, LIVE_TYPES)
PUT_FINISHED = put_statement(FINISHED, FINISHED_TYPES)


@dataclass(frozen=True, slots=True)
class Jobs:
    table: str
    condition: str
    statuses: tuple[int, ...]

    async def page(self, transaction: Transaction, after: str | None, limit: int) -> RecordPage:
        """Read the next records. Sizes are known without reading long values; only rows that fit are fetched."""
        of_steps = "coalesce((SELECT sum(octet_length(output)) FROM {s}.steps WHERE job_id = next.id), 0)"
        result = "coalesce(octet_length(result), 0)" if self.table == FINISHED else "0"
        beyond = "AND id > %(after)s::uuid" if after is not None else ""
        statement = f"""
            WITH page AS (
                SELECT *, sum(octet_length(payload) + {result} + {of_steps}) OVER (ORDER BY id) AS so_far,
                       count(*) OVER (ORDER BY id) AS place
                FROM (SELECT * FROM {{s}}.{self.table} WHERE {self.condition} {beyond}
                      ORDER BY {self.table}.id LIMIT %(limit)s) AS next
            )
            SELECT {COLUMNS[self.table]} FROM page
            WHERE place = 1 OR so_far <= {MAX_PAGE_BYTES} ORDER BY page.id"""
        rows = await transaction.rows(statement, limit=limit, after=after)
        cursor = rows[-1][0] if rows and (len(rows) == limit or await self._any(transaction, rows[-1][0])) else None
        return RecordPage(await complete(transaction, rows), cursor)

    async def _any(self, transaction: Transaction, after: str) -> bool:
        statement = f"SELECT EXISTS (SELECT 1 FROM {{s}}.{self.table} WHERE {self.condition} AND id > %(after)s::uuid)"
        return bool(await transaction.value(statement, after=after))

    async def find(self, transaction: Transaction, keys: Sequence[str]) -> list[Record]:
        statement = f"""SELECT {COLUMNS[self.table]} FROM {{s}}.{self.table}
                        WHERE {self.condition} AND id = ANY(%(ids)s::uuid[])"""
        return await complete(transaction, await transaction.rows(statement, ids=arrays.of_plain(only_ids(keys))))

    async def size(self, transaction: Transaction) -> int:
        statement = "SELECT coalesce(sum(n), 0)::bigint FROM {s}.counts WHERE status = ANY(%(statuses)s::smallint[])"
        number: int = await transaction.value(statement, statuses=list(self.statuses))
        return number

    async def put(self, transaction: Transaction, records: Sequence[Record], stall_grace: Millis) -> dict[str, str]:
        ids = arrays.of_plain([record["id"] for record in records])
        in_the_way = {job_id: job_id for (job_id,) in await transaction.rows(HERE, ids=ids)}
        new = [record for record in records if record["id"] not in in_the_way]
        live = self.table == LIVE
        rows = [live_row(record, stall_grace) if live else finished_row(record) for record in new]
        statement = PUT_LIVE if live else PUT_FINISHED
        done = {job_id for (job_id,) in await transaction.rows(statement, rows=encode(rows))} if new else set()
        await put_belongings(transaction, [record for record in new if record["id"] in done])
        if live:
            transaction.woken.update(record["queue"] for record in new if record["id"] in done)
        if left := [record for record in new if record["id"] not in done]:
            in_the_way |= await holders(transaction, left)
        return in_the_way


async def complete(transaction: Transaction, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
    ids = arrays.of_plain([row[0] for row in rows])
    parts = [grouped(await transaction.rows(each, ids=ids)) if rows else {} for each in (RUNS, STEPS, BY_HAND)]
    return [job_record(from_row(row), *(part.get(row[0], []) for part in parts)) for row in rows]


async def holders(transaction: Transaction, records: Sequence[Record]) -> dict[str, str]:
    """Return, for jobs that were not inserted, the job that holds their dedupe key.

    If none does, another process has just inserted the job itself, and its own id is returned.
    """
    found = await transaction.rows(
        HOLDERS,
        ids=[record["id"] for record in records],
        tasks=[record["task"] for record in records],
        keys=[record["dedupe_key"] for record in records],
    )
    return {record["id"]: record["id"] for record in records} | dict(found)


def live_row(record: Record, stall_grace: Millis) -> dict[str, Any]:
    more = {"claimed_at": record["started_at"] or 0, "deadline": deadline_of(record, stall_grace)}
    return {**stored(record, columns.LIVE), **more}


def finished_row(record: Record) -> dict[str, Any]:
    more = {"started_at": record["started_at"] or 0, "expires_at": or_never(record["expires_at"])}
    return {**stored(record, columns.FINISHED), **more, "drop_day": drop_day(record)}


def stored(record: Record, names: Iterable[str]) -> dict[str, Any]:
    """Return the columns of a record, without NULLs: a column that is left out becomes NULL."""
    row = {name: value for name in names if (value := record.get(name)) is not None}
    row["status"] = CODES[Status(record["status"])]
    row["tags"] = record["tags"] or None
    return row


def drop_day(record: Record) -> int:
    """Return the day on which the record's partition is dropped, as the SQL function drop_day does."""
    keep = record["keep_dead"] if record["status"] == Status.DEAD_LETTER else record["keep"]
    if keep < DAY:
        return 0
    day = or_never(record["expires_at"]) // DAY + 1
    return int(min(day, FOREVER_DAY))


def days_of(kind: Kind, records: Sequence[Record]) -> set[int]:
    """Return the days whose partitions must exist before these records are written."""
    return {drop_day(record) for record in records} - {0, FOREVER_DAY} if kind in {Kind.DEAD, Kind.HISTORY} else set()


async def put_belongings(transaction: Transaction, records: Sequence[Record]) -> None:
    """Insert the attempts, steps and audit entries of jobs, which have tables of their own.

    A job that was deleted here by hand may come back. The audit log then names it for what its record says.
    """
    await forget_lines(transaction, [record["id"] for record in records])
    runs = [(record["id"], *run) for record in records for run in record["runs"]]
    await steps.put(transaction, [(record["id"], Step(*step)) for record in records for step in record["steps"]])
    by_hand = [(record["id"], *operation) for record in records for operation in record["by_hand"]]
    names = ("ids", "numbers", "workers", "began", "ended", "moves", "error_types", "errors", "codes",
             "tracebacks", "fingerprints", "versions")  # fmt: skip
    for statement, parts, rows in (
        (PUT_RUNS, names, runs),
        (PUT_BY_HAND, ("ids", "operations", "actions"), by_hand),
    ):
        if rows:
            columns = zip(*rows, strict=True)
            await transaction.do(statement, **{part: list(values) for part, values in zip(parts, columns, strict=True)})


# -- records that are rows of one table ------------------------------------------------------------------

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    key: tuple[str, ...]
    columns: Mapping[str, str]  # name -> type
    owner: str  # the column that `put` returns of a row that is in the way
    ours: str = "true"  # condition for rows that are records
    over: str = "false"  # condition for rows that have expired
    read: Mapping[str, Convert] = field(default_factory=dict)  # from a column's value to a record's
    write: Mapping[str, Convert] = field(default_factory=dict)  # from a record's value to a column's

    async def page(self, transaction: Transaction, after: str | None, limit: int) -> RecordPage:
        names = ", ".join(self.key)
        parts = {} if after is None else dict(zip(self.key, split_key(after), strict=True))
        beyond = f"AND ({names}) > ({', '.join(f'%({name})s' for name in parts)})" if parts else ""
        statement = f"""{self._select()} WHERE {self.ours} AND NOT coalesce({self.over}, false) {beyond}
                        ORDER BY {names} LIMIT %(limit)s"""
        records = [self._record(row) for row in await transaction.rows(statement, **parts, limit=limit + 1)]
        return RecordPage(records[:limit], records[limit - 1]["key"] if len(records) > limit else None)

    async def find(self, transaction: Transaction, keys: Sequence[str]) -> list[Record]:
        if not keys:
            return []
        wanted = ", ".join(f"%({name})s::text[]" for name in self.key)
        statement = f"""{self._select()} WHERE ({", ".join(self.key)}) IN (SELECT * FROM unnest({wanted}))
                        AND NOT coalesce({self.over}, false)"""
        parts = zip(*(split_key(key) for key in keys), strict=True)
        given = {name: list(values) for name, values in zip(self.key, parts, strict=True)}
        return [self._record(row) for row in await transaction.rows(statement, **given)]

    async def put(self, transaction: Transaction, records: Sequence[Record], stall_grace: Millis) -> dict[str, str]:
        del stall_grace
        if not records:
            return {}
        await transaction.do(f"DELETE FROM {{s}}.{self.name} WHERE {self.over}")
        names, keys = ", ".join(self.columns), ", ".join(self.key)
        given = ", ".join(f"%({name})s::{kind}[]" for name, kind in self.columns.items())
        statement = f"""INSERT INTO {{s}}.{self.name} ({names}) SELECT * FROM unnest({given})
                        ON CONFLICT DO NOTHING RETURNING {keys}"""
        columns = {name: [self.write.get(name, same)(record[name]) for record in records] for name in self.columns}
        done = {make_key(*row) for row in await transaction.rows(statement, **columns)}
        left = await self.find(transaction, [record["key"] for record in records if record["key"] not in done])
        return {record["key"]: str(record[self.owner]) for record in left}

    async def size(self, transaction: Transaction) -> int:
        number: int = await transaction.value(f"SELECT count(*) FROM {{s}}.{self.name} WHERE {self.ours}")
        return number

    def _select(self) -> str:
        columns = (f"{name}::text" if kind == "uuid" else name for name, kind in self.columns.items())
        return f"SELECT {', '.join(columns)} FROM {{s}}.{self.name}"

    def _record(self, row: Sequence[Any]) -> Record:
        values = dict(zip(self.columns, row, strict=True))
        values |= {name: convert(values[name]) for name, convert in self.read.items()}
        return {"key": make_key(*(values[name] for name in self.key)), **values}


def same(value: Any) -> Any:
    return value


AUDIT = {
    "operation": "text", "action": "text", "at": "bigint", "actor": "text", "reason": "text", "detail": "jsonb",
    "n": "bigint",
}  # fmt: skip
PAUSE = {
    "queue": "text", "actor": "text", "reason": "text", "since": "bigint", "until": "bigint", "accept": "boolean"
}  # fmt: skip
KEY = {"task": "text", "dedupe_key": "text", "job_id": "uuid", "expires_at": "bigint"}
DOCUMENT = {
    "collection": "text", "grp": "text", "id": "text", "version": "text", "due_at": "bigint", "expires_at": "bigint",
    "data": "text",
}  # fmt: skip

PLACES: Mapping[Kind, Place] = {
    Kind.AUDIT: Table("audit", ("operation", "action"), AUDIT, "operation", write={"detail": json.dumps}),
    Kind.PAUSES: Table("halts", ("queue",), PAUSE, "actor", "queue <> ''", "queue <> '' AND until <= {now}"),
    Kind.KEYS: Table(
        "dedupe", ("task", "dedupe_key"), KEY, "job_id", over="expires_at <= {now}",
        read={"expires_at": none_if_never}, write={"expires_at": or_never},
    ),
    Kind.DOCUMENTS: Table(
        "documents", ("collection", "grp", "id"), DOCUMENT, "version", over="expires_at <= {now}",
        read={"due_at": none_if_never, "expires_at": none_if_never}, write={"due_at": or_never, "expires_at": or_never},
    ),
    Kind.LIVE: Jobs(LIVE, "true", tuple(range(PENDING, COMPLETED))),
    Kind.DEAD: Jobs(FINISHED, f"status = {DEAD_LETTER}", (DEAD_LETTER,)),
    Kind.HISTORY: Jobs(
        FINISHED, f"status <> {DEAD_LETTER}", tuple(set(range(COMPLETED, len(STATUSES))) - {DEAD_LETTER}),
    ),
}  # fmt: skip
