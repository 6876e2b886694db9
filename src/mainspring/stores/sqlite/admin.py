"""Changes by hand: cancel, retry, delete, edit, halt. Each writes an entry into the audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.stores.affected import listed
from mainspring.stores.audit import note_of_halt, note_of_resume
from mainspring.stores.columns import RESTORED
from mainspring.stores.documents import By, Note
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import JobState
from mainspring.stores.engine.change import (
    ALLOWED,
    ChangePlan,
    ChangeRequest,
    Key,
    compared,
    note_of,
    plan,
    wanted_keys,
)
from mainspring.stores.engine.ends import jobs_after
from mainspring.stores.engine.halts import combined
from mainspring.stores.protocol import Action, Changed, Halt
from mainspring.stores.sqlite import read
from mainspring.stores.sqlite.acks import finish
from mainspring.stores.sqlite.insertion import LIVE_HOLDER, LONG_PAYLOAD, insert_jobs, prepare
from mainspring.stores.sqlite.once import check_held, commit_once, put_document
from mainspring.stores.sqlite.rows import FINISHED, FINISHED_STATE, LIVE, LIVE_STATE, PAYLOAD, to_state
from mainspring.stores.sqlite.steps import forget_steps
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.sqlite.wakeups import wake_for_ends
from mainspring.stores.tables import CODES, COMPLETED, count_moves, to_columns

NOT_YET_CHANGED = """
NOT EXISTS (SELECT 1 FROM mainspring_audit_jobs WHERE job_id = {table}.id AND operation = ? AND action = ?)
"""  # by this operation: a page may be repeated


def change(transaction: Transaction, requests: list[ChangeRequest]) -> list[Changed]:
    return [change_one(transaction, request) for request in requests]


def change_one(transaction: Transaction, request: ChangeRequest) -> Changed:
    check_held(transaction, request.by.only_while)
    found = find_jobs(transaction, request)
    jobs = found[: request.limit]
    planned = plan(request, jobs, live_holders(transaction, wanted_keys(request, jobs)), transaction.now)
    if not request.dry_run:
        carry_out(transaction, planned, request)
    return planned.answer(jobs[-1].id if len(found) > request.limit else None)


def find_jobs(transaction: Transaction, request: ChangeRequest) -> list[JobState]:
    """Return the matching jobs, oldest first, up to one more than the limit: that one shows that a page follows."""
    found: list[JobState] = []
    more = compared(request)
    for table, state in ((LIVE, LIVE_STATE), (FINISHED, FINISHED_STATE)):
        conditions = read.Conditions(request.where, table)
        statuses = [CODES[s] for s in ALLOWED[request.action] if (CODES[s] >= COMPLETED) == (table == FINISHED)]
        if conditions.impossible or not statuses:
            continue
        conditions.add("status IN (SELECT value FROM json_each(?))", json.dumps(statuses))
        if request.cursor is not None:
            conditions.add("id > ?", request.cursor)
        if request.by.audited:
            conditions.add(NOT_YET_CHANGED.format(table=table), request.by.operation, request.action)
        columns = ", ".join([*(PAYLOAD.format(table=table) if name == "payload" else name for name in more), state])
        statement = f"SELECT {columns} FROM {table} WHERE {conditions} ORDER BY id LIMIT ?"
        rows = transaction.execute(statement, (*conditions.values, request.limit + 1)).fetchall()
        for row in rows:
            found.append(job := to_state(row[len(more) :]))
            job.before = dict(zip(more, row, strict=False))
    return sorted(found, key=lambda job: job.id)[: request.limit + 1]


def live_holders(transaction: Transaction, keys: Sequence[Key]) -> dict[Key, str]:
    """Return the live jobs that hold these dedupe keys."""
    found = ((key, transaction.value(LIVE_HOLDER, key)) for key in keys)
    return {key: holder for key, holder in found if holder is not None}


def carry_out(transaction: Transaction, planned: ChangePlan, request: ChangeRequest) -> None:
    tags = read.tags(transaction.connection, [job.id for job in planned.deleted]) if planned.deleted else {}
    transaction.record([*feed.ended(planned.ended), *feed.by_hand(planned, request, tags)])
    finish(transaction, planned.ended)
    insert_jobs(transaction, prepare(jobs_after(planned.ended)))
    for ids, columns in planned.grouped(planned.updated):
        update(transaction, ids, columns)
    for ids, columns in planned.grouped(planned.restored):
        restore(transaction, ids, columns)
    delete(transaction, planned.deleted)
    if request.action is Action.RETRY and request.edit is not None and request.edit.from_step is not None:
        forget_steps(transaction, planned.changed, request.edit.from_step)
    count_moves(transaction, planned.moves())
    transaction.woken |= planned.woken
    transaction.cancellations = transaction.cancellations or bool(planned.requested)
    write_audit(transaction, request, planned.changed + planned.requested)


def update(transaction: Transaction, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Give live jobs new values."""
    values = to_columns(columns)
    if "payload" in columns:
        values["payload"] = replace_payloads(transaction, ids, columns["payload"])
    assignments = ", ".join(f"{name} = ?" for name in values)
    statement = f"UPDATE mainspring_jobs SET {assignments} WHERE id IN (SELECT value FROM json_each(?))"
    transaction.execute(statement, (*values.values(), json.dumps(ids)))


REPLACE_PAYLOADS = "INSERT INTO mainspring_payloads SELECT value, ? FROM json_each(?)"


def replace_payloads(transaction: Transaction, ids: Sequence[str], payload: str) -> str | None:
    """Write a payload that is too long for the jobs' own rows; return what belongs in these."""
    listed = json.dumps(ids)
    transaction.execute("DELETE FROM mainspring_payloads WHERE job_id IN (SELECT value FROM json_each(?))", (listed,))
    if len(payload) <= LONG_PAYLOAD:
        return payload
    transaction.execute(REPLACE_PAYLOADS, (payload, listed))
    return None


def restore(transaction: Transaction, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Move finished jobs back to the live table: as they were enqueued, with their token and these values."""
    values = to_columns(columns)
    kept = ", ".join(name for name in RESTORED if name not in values)
    statement = f"""INSERT INTO mainspring_jobs ({kept}, {", ".join(values)})
                    SELECT {kept}, {", ".join("?" * len(values))} FROM mainspring_archive
                    WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"""
    listed = json.dumps(ids)
    transaction.execute(statement, (*values.values(), listed))
    transaction.execute("DELETE FROM mainspring_archive WHERE id IN (SELECT value FROM json_each(?))", (listed,))


# -- delete ---------------------------------------------------------------------------------------

BELONGINGS = ("mainspring_payloads", "mainspring_attempts", "mainspring_steps")
FORGET_LINES = "DELETE FROM mainspring_audit_jobs WHERE job_id IN (SELECT value FROM json_each(?))"
REMOVE_TAGS = """
DELETE FROM mainspring_tags WHERE (tag, job_id) IN (
    SELECT tag.value, job.id FROM {table} AS job, json_each(iif(json_valid(job.tags), job.tags, '[]')) AS tag
    WHERE job.id IN (SELECT value FROM json_each(?)))
"""
FREE_KEYS = """
DELETE FROM mainspring_dedupe WHERE (task, dedupe_key, job_id) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(?))
"""


def delete(transaction: Transaction, jobs: Sequence[JobState]) -> None:
    if not jobs:
        return
    ids = [job.id for job in jobs]
    remove_jobs(transaction, ids)
    keys = [(job.task, job.dedupe_key, job.id) for job in jobs if job.dedupe_key is not None]
    transaction.execute(FREE_KEYS, (json.dumps(keys),))
    wake_for_ends(transaction, ids)


def remove_jobs(transaction: Transaction, ids: Sequence[str]) -> None:
    """Delete jobs and all rows that belong to them, except dedupe keys and lines of the audit log: these may stay."""
    listed = (json.dumps(ids),)
    for table in (LIVE, FINISHED):
        transaction.execute(REMOVE_TAGS.format(table=table), listed)  # by tag, the first column of the table's key
        transaction.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", listed)
    for table in BELONGINGS:
        transaction.execute(f"DELETE FROM {table} WHERE job_id IN (SELECT value FROM json_each(?))", listed)


def forget_lines(transaction: Transaction, ids: Sequence[str]) -> None:
    """Have the audit log no longer name these jobs."""
    transaction.execute(FORGET_LINES, (json.dumps(ids),))


# -- halt -----------------------------------------------------------------------------------------

PUT_HALT = "INSERT OR REPLACE INTO mainspring_halts VALUES (?, ?, ?, ?, ?, ?, ?)"
END_EXPIRED_HALTS = "DELETE FROM mainspring_halts WHERE until <= ? RETURNING queue"
FORGET_CONFIRMATIONS = "DELETE FROM mainspring_confirmations WHERE worker <> ''"
CONFIRM = """
INSERT INTO mainspring_confirmations VALUES (?, ?) ON CONFLICT DO UPDATE SET number = max(number, excluded.number)
"""
NEXT_NUMBER = """
INSERT INTO mainspring_confirmations VALUES ('', 1) ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number
"""


def halt(transaction: Transaction, halts: list[Halt]) -> list[Halt]:
    """Write halts and return them with their numbers.

    This deletes the confirmations of earlier halts: they are not needed any more, because workers confirm the new one.
    """
    transaction.execute(FORGET_CONFIRMATIONS)
    end_expired_halts(transaction, transaction.now)
    written: list[Halt] = []
    for given in halts:
        standing = next((halt for halt in transaction.halts() if halt.queue == given.queue), None)
        halt = combined(standing, replace(given, since=to_datetime(transaction.now)))
        until = None if halt.until is None else to_millis(halt.until)
        number = transaction.value(NEXT_NUMBER)
        row = (halt.queue or "", halt.actor, halt.reason, to_millis(halt.since), until, int(halt.accept), number)
        transaction.execute(PUT_HALT, row)
        write_entry(transaction, note_of_halt(given))
        commit_once(transaction, given.once)
        transaction.record([feed.halted(halt)])
        transaction.forget_halts()
        written.append(replace(halt, number=number, once=None))
    transaction.halts_changed = True
    return written


def resume(transaction: Transaction, requests: list[tuple[By, str | None]]) -> list[bool]:
    ended: list[bool] = []
    end_expired_halts(transaction, transaction.now)
    for by, queue in requests:
        over = any(halt.queue == queue for halt in transaction.halts())
        transaction.execute("DELETE FROM mainspring_halts WHERE queue = ?", (queue or "",))
        if over:
            write_entry(transaction, note_of_resume(by, queue))
            commit_once(transaction, by.once)
            transaction.record([feed.halt_ended(by.actor, queue)])
            transaction.woken.add(queue or "*")
            transaction.halts_changed = True
        transaction.forget_halts()
        ended.append(over)
    return ended


def end_expired_halts(transaction: Transaction, now: Millis) -> None:
    """Remove halts whose time is over, and record that they have ended."""
    for (queue,) in transaction.execute(END_EXPIRED_HALTS, (now,)).fetchall():
        transaction.record([feed.halt_ended(None, queue or None)])


def confirm(transaction: Transaction, confirmations: list[tuple[str, int]]) -> list[None]:
    """Record that these workers have stopped for the halts with these numbers, or earlier ones."""
    for worker, number in confirmations:
        transaction.execute(CONFIRM, (worker, number))
    return [None] * len(confirmations)


# -- audit ----------------------------------------------------------------------------------------

PUT_ENTRY = """
INSERT INTO mainspring_audit (operation, at, actor, action, reason, detail, n) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET n = n + excluded.n
"""
PUT_JOBS = "INSERT OR IGNORE INTO mainspring_audit_jobs SELECT value, ?, ? FROM json_each(?)"


def write_audit(transaction: Transaction, request: ChangeRequest, ids: Sequence[str]) -> None:
    if not ids or not request.by.audited:
        return
    write_entry(transaction, note_of(request), len(ids))
    commit_once(transaction, request.by.once)
    for write in listed(request.by, ids, transaction.now):
        put_document(transaction, write)
    transaction.execute(PUT_JOBS, (request.by.operation, request.action, json.dumps(ids)))


def write_entry(transaction: Transaction, note: Note, number: int = 0) -> None:
    by = note.by
    values = (by.operation, transaction.now, by.actor, note.action, by.reason, json.dumps(note.detail), number)
    transaction.execute(PUT_ENTRY, values)
