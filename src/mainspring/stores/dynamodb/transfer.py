"""Read records from the table and write them: what `mainspring copy` moves between stores.

Records are loaded one by one, each whole or not at all, because DynamoDB writes at most a hundred items at once.
If one record fails, all of them are loaded again, and records that exist by then stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from mainspring.clock import to_datetime, to_millis
from mainspring.ids import new_id
from mainspring.job import FINISHED, Status, Step, end_of
from mainspring.stores.columns import JOB
from mainspring.stores.documents import ABSENT, Document, Key, Listing, Write
from mainspring.stores.dynamodb import documents, halts, items, read, steps, wakeups, workers
from mainspring.stores.dynamodb.admin import LINE_RETENTION, forget_lines
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.counts import day_of, sum_up
from mainspring.stores.dynamodb.document_items import register_collections, to_action
from mainspring.stores.dynamodb.failures import entry_of
from mainspring.stores.dynamodb.insertion import (
    KEPT_ATTRIBUTES,
    KEPT_FOR_EVER,
    KEPT_PLACE,
    MAX_TRIES,
    as_found,
    checked,
    is_kept,
    is_live,
    kept_as,
    new_key,
    register_queues,
)
from mainspring.stores.dynamodb.items import (
    PLACES,
    bucket,
    column,
    dedupe_key,
    history,
    key,
    payload_of,
    running_place,
    shard_of,
    stamp,
    status_of,
    text_of,
    ttl,
    unstamp,
)
from mainspring.stores.dynamodb.table import Action, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, absent, equals, pack, put, put_item, unpack, update
from mainspring.stores.protocol import Halt
from mainspring.stores.records import (
    DOCUMENT,
    JOBS,
    STEP,
    Kind,
    Record,
    RecordPage,
    job_record,
    kind_of,
    make_key,
    split_key,
)

HISTORIES_AT_ONCE = 32  # jobs whose histories are read in parallel
MAX_PAGE_BYTES = 8 * 2**20  # a table with long payloads must not fill the memory

# -- reading --------------------------------------------------------------------------------------------


async def dump(table: Table, kind: Kind, after: str | None, limit: int) -> RecordPage:
    if kind in JOBS:
        return await dump_jobs(table, kind, after, limit)
    if kind is Kind.AUDIT:
        return await dump_audit(table, after, limit)
    if kind is Kind.DOCUMENTS:
        return await dump_documents(table, after, limit)
    records = await (pauses if kind is Kind.PAUSES else kept_keys)(table)
    left = sorted((record for record in records if after is None or record["key"] > after), key=lambda r: str(r["key"]))
    return RecordPage(left[:limit], left[limit - 1]["key"] if limit < len(left) else None)


async def look_up(table: Table, kind: Kind, keys: Sequence[str]) -> list[Record]:
    if kind in JOBS:
        rows = await read.rows_of(table, keys)
        return await job_records(table, [row for row in rows.values() if kind_of(status_of(row)) is kind])
    if kind is Kind.AUDIT:
        known = await table.get_many([pointer(*split_key(name)) for name in keys])
        return [audit_record(row) for row in await table.get_many([key("audit", row["entry"]) for row in known])]
    if kind is Kind.DOCUMENTS:
        return [
            document_record(document)
            for document in await documents.documents(table, [Key(*split_key(text)) for text in keys])
        ]
    records = await (pauses if kind is Kind.PAUSES else kept_keys)(table)
    return [record for record in records if record["key"] in set(keys)]


async def dump_jobs(table: Table, kind: Kind, after: str | None, limit: int) -> RecordPage:
    """Read jobs by shard and id. Pending wake-ups are not copied, so they are delivered first."""
    if kind is Kind.LIVE and after is None:
        await wakeups.carry_out(table, await wakeups.pending(table, consistent=True))
    first = 0 if after is None else shard_of(after, table.shards)
    page = PageRows(limit)
    for shard in range(first, table.shards):
        beyond = [Condition("{name} > {value}", "SK", after)] if after is not None and shard == first else []
        pages = table.query(equals("PK", bucket(shard)), *beyond, consistent=True)
        while pages.more and not page.is_full:
            for row in await pages.next():
                if kind_of(status_of(row)) is kind and not read.is_over(table, row):
                    page.add(row)
    records = await records_within_bounds(table, page.rows)
    more = page.is_full or len(records) < len(page.rows)
    return RecordPage(records, records[-1]["key"] if more else None)


async def records_within_bounds(table: Table, rows: Sequence[Row]) -> list[Record]:
    """Read records until their steps are too large. Their size is known only after they have been read."""
    records: list[Record] = []
    outputs = 0
    for start in range(0, len(rows), HISTORIES_AT_ONCE):
        if outputs > MAX_PAGE_BYTES:
            break
        part = await job_records(table, rows[start : start + HISTORIES_AT_ONCE])
        outputs += sum(len(step[STEP.index("output")] or "") for record in part for step in record["steps"])
        records += part
    return records


class PageRows:
    """Rows for one page, until another row would exceed the limit or the size."""

    def __init__(self, limit: int) -> None:
        self.rows: list[Row] = []
        self.is_full = False
        self._limit = limit
        self._bytes = 0

    def add(self, row: Row) -> None:
        self._bytes += len(payload_of(row)) + len(text_of("result", row) or "")
        self.is_full = (
            self.is_full or len(self.rows) == self._limit or (bool(self.rows) and self._bytes > MAX_PAGE_BYTES)
        )
        if not self.is_full:
            self.rows.append(row)


async def job_records(table: Table, rows: Sequence[Row]) -> list[Record]:
    lines = await together([table.rows(history(row["SK"])) for row in rows])
    return [to_record(row, of_it) for row, of_it in zip(rows, lines, strict=True)]


def to_record(row: Row, lines: Sequence[Row]) -> Record:
    values = {name: column(name, row) for name in JOB}
    runs = [line for line in lines if line["SK"].startswith("run#")]
    by_hand = {(line["operation"], line["action"]): None for line in lines if line["SK"].startswith("hand#")}
    numbered = [[number, *run_values(run)] for number, run in enumerate(runs, 1)]
    done = [list(astuple(step)) for step in steps.in_order(lines)]
    return job_record(values, numbered, done, [list(operation) for operation in by_hand])


def run_values(run: Row) -> list[Any]:
    began, ended = unstamp(run["started_at"]), unstamp(run["completed_at"])
    why = [run.get(name) for name in ("error_type", "last_error", "error_code", "traceback", "fingerprint", "version")]
    return [run.get("locked_by", ""), began, ended, run["move"], *why]


async def dump_audit(table: Table, after: str | None, limit: int) -> RecordPage:
    beyond = [] if after is None else [Condition("{name} > {value}", "SK", after)]
    pages = table.query(equals("PK", "audit"), *beyond, consistent=True, limit=limit + 1)
    rows = await table.first(pages, limit + 1)
    return RecordPage([audit_record(row) for row in rows[:limit]], rows[limit - 1]["SK"] if len(rows) > limit else None)


def audit_record(row: Row) -> Record:
    return {
        "key": make_key(row["operation"], row["action"]),
        "operation": row["operation"],
        "action": row["action"],
        "at": unstamp(row["at"]),
        "actor": row["actor"],
        "reason": row.get("reason", ""),
        "detail": json.loads(row["detail"]),
        "n": row["count"],
    }


async def dump_documents(table: Table, after: str | None, limit: int) -> RecordPage:
    """Read documents by collection, group and id; few at once, because each may be large."""
    limit = min(limit, 100)
    last = None if after is None else Key(*split_key(after))
    found: list[Document] = []
    for name in await documents.collections(table):
        if last is None or name >= last.collection:
            seen = (last.group, last.id) if last is not None and name == last.collection else None
            found += await documents.browse(table, Listing(name, after=seen, limit=limit + 1 - len(found)))
        if len(found) > limit:
            break
    records = [document_record(document) for document in found[:limit]]
    return RecordPage(records, records[-1]["key"] if len(found) > limit else None)


def document_record(document: Document) -> Record:
    values = (*document.key, document.version, document.due_at, document.expires_at, document.data)
    return {"key": make_key(*document.key), **dict(zip(DOCUMENT, values, strict=True))}


async def pauses(table: Table) -> list[Record]:
    return [
        {
            "key": make_key(halt.queue),
            "queue": halt.queue,
            "actor": halt.actor,
            "reason": halt.reason,
            "since": to_millis(halt.since),
            "until": None if halt.until is None else to_millis(halt.until),
            "accept": halt.accept,
        }
        for halt in await halts.standing(table)
        if halt.queue is not None
    ]


async def kept_keys(table: Table) -> list[Record]:
    now = table.clock.now()
    entries = await table.query(equals("place", KEPT_PLACE), index=PLACES).rest()
    rows = await table.get_many([key(entry["PK"], entry["SK"]) for entry in entries])
    return [
        {
            "key": make_key(row["job_type"], row["dedupe_key"]),
            "task": row["job_type"],
            "dedupe_key": row["dedupe_key"],
            "job_id": row["kept_job"],
            "expires_at": None if row["kept_until"] == KEPT_FOR_EVER else unstamp(row["kept_until"]),
        }
        for row in rows
        if is_kept(row, now)
    ]


# -- writing --------------------------------------------------------------------------------------------


async def load(table: Table, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
    if kind in JOBS:
        return await load_jobs(table, records)
    load_one = {
        Kind.AUDIT: load_audit,
        Kind.PAUSES: load_pause,
        Kind.KEYS: load_key,
        Kind.DOCUMENTS: load_document,
    }[kind]
    in_the_way = [(record["key"], await load_one(table, record)) for record in records]
    return {name: holder for name, holder in in_the_way if holder is not None}


async def load_jobs(table: Table, records: Sequence[Record]) -> dict[str, str]:
    here = {row["SK"] for row in await table.get_many([table.job_key(record["id"]) for record in records], ["SK"])}
    new = [record for record in records if record["id"] not in here]
    rows = [checked_row(table, record) for record in new]
    await register_queues(table, {record["queue"] for record in new})
    lines = await lines_by_hand(table, new)
    await load_waiters(table, rows)
    holders = await together([load_job(table, record, row, lines) for record, row in zip(new, rows, strict=True)])
    for runner in {str(row["locked_by"]) for row in rows if status_of(row) is Status.RUNNING}:
        await workers.expect(table, runner)
    table.local_workers.wake({row["queue"] for row in rows})
    met = {record["id"]: holder for record, holder in zip(new, holders, strict=True) if holder is not None}
    return {job_id: job_id for job_id in here} | met


def checked_row(table: Table, record: Record) -> Row:
    row = to_row(table, record)
    checked(pack(row))
    for step in record["steps"]:
        steps.to_item(record["id"], Step(*step))
    return row


def to_row(table: Table, record: Record) -> Row:
    status = Status(record["status"])
    tracebacks = [traceback for *_, error_type, _, _, traceback, _, _ in record["runs"] if error_type is not None]
    row = items.to_row({name: record[name] for name in JOB} | {"status": status}, table.shards)
    row |= {"traceback": tracebacks[-1] if tracebacks else None, "steps": bool(record["steps"]) or None}
    if status is Status.RUNNING:
        row |= {"place": running_place(record["worker"]), "rank": record["id"]}
    return {name: value for name, value in row.items() if value is not None}


async def load_job(table: Table, record: Record, row: Row, lines: Mapping[tuple[str, str], Row]) -> str | None:
    """Load a job; return the job that is in the way, if any. History goes first, so no job exists without it."""
    status = status_of(row)
    keyed = "dedupe_key" in row and status not in FINISHED
    for _ in range(MAX_TRIES):
        found = await table.get(dedupe_key(row["job_type"], row["dedupe_key"])) if keyed else None
        if found is not None and found["job_sk"] != row["SK"] and await is_live(table, found["job_sk"]):
            return str(found["job_sk"])
        await load_past(table, record, lines)
        actions = [("Put", put_item(pack(row), [absent("PK")])), *relations(row)]
        if keyed:
            version = new_id()
            actions[0] = ("Put", put_item(pack(row | {"dedupe_version": version}), [absent("PK")]))
            kept = {name: (found or {}).get(name) for name in KEPT_ATTRIBUTES}
            actions.append(("Put", put({**new_key(row, version), **kept}, [as_found(found)])))
        try:
            await table.transact(*actions)
        except Cancelled as cancelled:
            if cancelled.failed(0):
                return str(row["SK"])
            continue
        table.counts.add(row["queue"], status, 1, day_of(status, row.get("expires_at")))
        return None
    return str(row["SK"])


def relations(row: Row) -> list[Action]:
    """Return what is written with a job: its waiter, and the note of how long its steps are kept."""
    waits = [wakeups.waiter(row)] if "waits_for" in row else []
    return waits + steps.note_of_end(row, row.get("expires_at"))


async def load_waiters(table: Table, rows: Sequence[Row]) -> None:
    """Write the waiters of jobs, and mark jobs whose end is waited for.

    A job that waits for another's end may be loaded before that job, after it, or together with it. So its waiter is
    written before any job. It is written again with the job itself, because a wake-up may have deleted it as void. And
    each live job checks whether another job waits for its end.
    """
    waiters = [wakeups.waiter(row) for row in rows if "waits_for" in row]
    await together([table.put(request) for _, request in waiters])
    await wakeups.mark(table, {named for row in rows if (named := wakeups.named_by(row.get("waits_for")))})
    live = [row for row in rows if status_of(row) not in FINISHED]
    awaited = await together([wakeups.has_waiters(table, end_of(row["SK"])) for row in live])
    for row, waited_for in zip(live, awaited, strict=True):
        if waited_for:
            row["awaited"] = True


async def load_past(table: Table, record: Record, lines: Mapping[tuple[str, str], Row]) -> None:
    """Write the history of a job. If it was deleted here by hand, what was done to it before does not come back."""
    await forget_lines(table, record["id"])
    beyond = ttl(table.clock.now() + LINE_RETENTION)
    for number, worker, began, ended, move, error_type, error, code, traceback, fingerprint, version in record["runs"]:
        words = {
            "PK": history(record["id"]),
            "SK": f"run#{number:012d}",  # later runs have higher tokens
            "locked_by": worker or None,
            "started_at": stamp(began),
            "completed_at": stamp(ended),
            "move": move,
            "error_type": error_type,
            "last_error": error,
            "error_code": code,
            "traceback": traceback,
            "fingerprint": fingerprint,
            "version": version,
            "ttl": beyond,
        }
        await table.put(put(words))
    for known in {run[-2] for run in record["runs"]} - {None}:
        await table.put(put(entry_of(known, record["id"], table.shards, table.clock.now() + LINE_RETENTION)))
    for step in record["steps"]:
        await table.put(put_item(steps.to_item(record["id"], Step(*step))))
    for operation, action in record["by_hand"]:
        entry = lines.get((operation, action), {})
        at = entry.get("at", stamp(record["created_at"]))
        words = {
            "PK": history(record["id"]),
            "SK": f"hand#{operation}#{action}",
            "at": at,
            "operation": operation,
            "actor": entry.get("actor", ""),
            "action": action,
            "reason": entry.get("reason"),
            "ttl": beyond,
        }
        await table.put(put(words))


async def lines_by_hand(table: Table, records: Sequence[Record]) -> dict[tuple[str, str], Row]:
    """Return the entries of the audit log that these jobs refer to."""
    operations = {(operation, action) for record in records for operation, action in record["by_hand"]}
    known = await table.get_many([pointer(*operation) for operation in operations])
    rows = await table.get_many([key("audit", row["entry"]) for row in known])
    return {(row["operation"], row["action"]): row for row in rows}


def pointer(operation: str, action: str) -> Any:
    return key(f"operation#{operation}", action)


async def load_audit(table: Table, record: Record) -> str | None:
    place = f"{stamp(record['at'])}#{record['operation']}#{record['action']}"
    entry = {
        "PK": "audit",
        "SK": place,
        "at": stamp(record["at"]),
        "operation": record["operation"],
        "action": record["action"],
        "actor": record["actor"],
        "reason": record["reason"] or None,
        "detail": json.dumps(record["detail"]),
        "count": record["n"],
    }
    known = {**unpack(pointer(record["operation"], record["action"])), "entry": place}
    try:
        await table.transact(("Put", put(known, [absent("PK")])), ("Put", put(entry)))
    except Cancelled:
        return str(record["operation"])
    return None


async def load_pause(table: Table, record: Record) -> str | None:
    for halt in await halts.standing(table):
        if halt.queue == record["queue"]:
            return halt.actor
    until = None if record["until"] is None else to_datetime(record["until"])
    since = to_datetime(record["since"])
    await halts.write(table, Halt(record["actor"], record["reason"], since, until, record["queue"], record["accept"]))
    return None


async def load_key(table: Table, record: Record) -> str | None:
    now = table.clock.now()
    where = dedupe_key(record["task"], record["dedupe_key"])
    until = KEPT_FOR_EVER if record["expires_at"] is None else stamp(record["expires_at"])
    for _ in range(MAX_TRIES):
        found = await table.get(where)
        if found is not None and is_kept(found, now):
            return str(found["kept_job"])
        try:
            if found is None:
                job = {"job_type": record["task"], "dedupe_key": record["dedupe_key"], "SK": record["job_id"]}
                words = new_key({**job, "PK": bucket(shard_of(record["job_id"], table.shards))}, new_id())
                await table.put(put(words | kept_as(words, record["job_id"], until), [absent("PK")]))
            else:
                changes = {**kept_as(found, record["job_id"], until), "ttl": None}
                await table.update(update(where, changes, only_if=[as_found(found)]))
        except ConditionFailed:
            continue
        return None
    return str(record["job_id"])


async def load_document(table: Table, record: Record) -> str | None:
    where = Key(record["collection"], record["grp"], record["id"])
    same = {name: record[name] for name in ("data", "version", "due_at", "expires_at")}
    await register_collections(table, {where.collection})
    _, request = to_action(Write(where, **same, expected=ABSENT), table.clock.now())
    try:
        await table.put(request)
    except ConditionFailed as failed:
        return str(unpack(failed.item or {}).get("version"))
    return None


# -- sizes ----------------------------------------------------------------------------------------------


async def sizes(table: Table) -> dict[Kind, int]:
    counts = sum_up(await table.read_counts(), None if table.prunes else stamp(table.clock.now())[:10])
    found = dict.fromkeys(Kind, 0)
    for numbers in counts.values():
        for status, number in numbers.items():
            found[kind_of(status)] += number
    entries = table.query(equals("PK", "audit"), count=True)
    await entries.rest()
    found[Kind.AUDIT] = entries.counted
    found[Kind.DOCUMENTS] = await documents.count(table)
    found[Kind.PAUSES] = len(await pauses(table))
    found[Kind.KEYS] = len(await kept_keys(table))
    return found


async def under_way(table: Table) -> int:
    everyone = [row["SK"] for row in await workers.listing(table)]
    return sum(len(held) for held in await together([read.what_runs(table, worker) for worker in everyone]))
