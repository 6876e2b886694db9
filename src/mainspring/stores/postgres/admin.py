"""Manual operations on jobs: cancel, retry, delete, edit, halt. Each writes an entry in the audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mainspring.clock import Millis, to_millis
from mainspring.stores import columns as declared
from mainspring.stores.affected import listed
from mainspring.stores.audit import note_of_halt, note_of_resume
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
from mainspring.stores.postgres import read, steps, wakeups
from mainspring.stores.postgres.acks import finish
from mainspring.stores.postgres.halts import ALONE, current_halts
from mainspring.stores.postgres.insertion import LIVE_HOLDER, insert_jobs
from mainspring.stores.postgres.once import check_held, commit_once, put_document
from mainspring.stores.postgres.rows import FINISHED, FINISHED_STATE, LIVE, LIVE_STATE, is_id, to_state
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Action, Changed, Halt
from mainspring.stores.tables import CODES, COMPLETED, count_moves, to_columns

NOT_YET_CHANGED = """
NOT EXISTS (SELECT 1 FROM {s}.audit_jobs WHERE job_id = {table}.id AND operation = ? AND action = ?)
"""  # by this operation: a page may be repeated


async def change(transaction: Transaction, request: ChangeRequest) -> Changed:
    await check_held(transaction, request.by.only_while)
    found = await find_jobs(transaction, request)
    jobs = found[: request.limit]
    now = jobs[0].ref if jobs else 0
    planned = plan(request, jobs, await live_holders(transaction, wanted_keys(request, jobs)), now)
    if not request.dry_run:
        await carry_out(transaction, planned, request, now)
    return planned.answer(jobs[-1].id if len(found) > request.limit else None)


async def find_jobs(transaction: Transaction, request: ChangeRequest) -> list[JobState]:
    """Return up to one more than the limit, oldest first, so that the next page can start where this one ended.

    The rows are locked, so that nothing else changes them. If an ack is changing one just now, this waits for it.
    """
    found: list[JobState] = []
    more = compared(request)
    for table, state in ((LIVE, LIVE_STATE), (FINISHED, FINISHED_STATE)):
        conditions = read.Conditions(request.where, table)
        statuses = [CODES[s] for s in ALLOWED[request.action] if (CODES[s] >= COMPLETED) == (table == FINISHED)]
        conditions.add("status = ANY(?::smallint[])", statuses)
        if request.cursor is not None:
            conditions.impossible = conditions.impossible or not is_id(request.cursor)
            conditions.add("id > ?::uuid", request.cursor)
        if request.by.audited:
            conditions.add(NOT_YET_CHANGED.replace("{table}", table), request.by.operation, str(request.action))
        if conditions.impossible or not statuses:
            continue
        statement = f"""SELECT {", ".join([*more, state])} FROM {{s}}.{table}
                        WHERE {conditions} ORDER BY {table}.id LIMIT %(limit)s FOR UPDATE"""
        rows = await transaction.rows(statement, **conditions.values, limit=request.limit + 1)
        for row in rows:
            found.append(job := to_state(row[len(more) :]))
            job.before = dict(zip(more, row, strict=False))
    return sorted(found, key=lambda job: job.id)[: request.limit + 1]


async def live_holders(transaction: Transaction, keys: Sequence[Key]) -> dict[Key, str]:
    """Return the live jobs that hold these dedupe keys."""
    found = [(key, await transaction.value(LIVE_HOLDER, task=key[0], key=key[1])) for key in keys]
    return {key: holder for key, holder in found if holder is not None}


async def carry_out(transaction: Transaction, planned: ChangePlan, request: ChangeRequest, now: Millis) -> None:
    tags = await read.tags(transaction, [job.id for job in planned.deleted]) if planned.deleted else {}
    await transaction.record([*feed.ended(planned.ended), *feed.by_hand(planned, request, tags)])
    await finish(transaction, planned.ended)
    await insert_jobs(transaction, jobs_after(planned.ended))
    for ids, columns in planned.grouped(planned.updated):
        await update(transaction, ids, columns)
    for ids, columns in planned.grouped(planned.restored):
        await restore(transaction, ids, columns)
    await delete(transaction, planned.deleted)
    if request.action is Action.RETRY and request.edit is not None and request.edit.from_step is not None:
        await steps.forget(transaction, planned.changed, request.edit.from_step)
    count_moves(transaction, planned.moves())
    transaction.woken |= planned.woken
    transaction.cancellations = transaction.cancellations or bool(planned.requested)
    await write_audit(transaction, request, planned.changed + planned.requested, now)


async def update(transaction: Transaction, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Give live jobs new values."""
    assignments = ", ".join(f"{name} = %({name})s" for name in columns)
    statement = f"UPDATE {{s}}.jobs SET {assignments} WHERE id = ANY(%(ids)s::uuid[])"
    await transaction.do(statement, **to_columns(columns), ids=list(ids))


async def restore(transaction: Transaction, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Move finished jobs back to the live table: as they were enqueued, with their token and these values."""
    kept = ", ".join(name for name in declared.RESTORED if name not in columns)
    values = ", ".join(f"%({name})s::{declared.LIVE[name]}" for name in columns)
    statement = f"""WITH gone AS (DELETE FROM {{s}}.archive WHERE id = ANY(%(ids)s::uuid[]) RETURNING *)
                    INSERT INTO {{s}}.jobs ({kept}, {", ".join(columns)}) SELECT {kept}, {values} FROM gone"""
    await transaction.do(statement, **to_columns(columns), ids=list(ids))


# -- delete ---------------------------------------------------------------------------------------

BELONGINGS = ("attempts", "steps")
FREE_KEYS = """
DELETE FROM {s}.dedupe WHERE (task, dedupe_key, job_id) IN (
    SELECT * FROM unnest(%(tasks)s::text[], %(keys)s::text[], %(ids)s::uuid[]))
"""


async def delete(transaction: Transaction, jobs: Sequence[JobState]) -> None:
    if not jobs:
        return
    ids = [job.id for job in jobs]
    await remove_jobs(transaction, ids)
    if held := [job for job in jobs if job.dedupe_key is not None]:
        tasks, keys, holders = ([getattr(job, name) for job in held] for name in ("task", "dedupe_key", "id"))
        await transaction.do(FREE_KEYS, tasks=tasks, keys=keys, ids=holders)
    await wakeups.wake_for_ends(transaction, ids)


async def remove_jobs(transaction: Transaction, ids: Sequence[str]) -> None:
    """Delete jobs and all that belongs to them, except dedupe keys and lines of the audit log: these may stay."""
    for table in (LIVE, FINISHED):
        await transaction.do(f"DELETE FROM {{s}}.{table} WHERE id = ANY(%(ids)s::uuid[])", ids=list(ids))
    for table in BELONGINGS:
        await transaction.do(f"DELETE FROM {{s}}.{table} WHERE job_id = ANY(%(ids)s::uuid[])", ids=list(ids))


async def forget_lines(transaction: Transaction, ids: Sequence[str]) -> None:
    """Have the audit log no longer name these jobs."""
    await transaction.do("DELETE FROM {s}.audit_jobs WHERE job_id = ANY(%(ids)s::uuid[])", ids=list(ids))


# -- halt -----------------------------------------------------------------------------------------

PUT_HALT = """
INSERT INTO {s}.halts (queue, actor, reason, since, until, accept)
VALUES (%(queue)s, %(actor)s, %(reason)s, coalesce(%(since)s, {now}), %(until)s, %(accept)s)
ON CONFLICT (queue) DO UPDATE SET actor = excluded.actor, reason = excluded.reason, since = excluded.since,
                                  until = excluded.until, accept = excluded.accept, number = excluded.number
RETURNING number
"""
FORGET_CONFIRMATIONS = "DELETE FROM {s}.confirmations"
END_EXPIRED_HALTS = "DELETE FROM {s}.halts WHERE until <= {now} RETURNING queue"


async def halt(transaction: Transaction, wanted: Halt) -> Halt:
    """Halt the system or a queue. Confirmations of earlier halts are deleted, because workers confirm the new one."""
    await transaction.rows(ALONE)
    await end_expired_halts(transaction)
    standing = next((other for other in await current_halts(transaction) if other.queue == wanted.queue), None)
    halt = combined(standing, wanted)
    await transaction.do(FORGET_CONFIRMATIONS)
    number = await transaction.value(
        PUT_HALT,
        queue=halt.queue or "",
        actor=halt.actor,
        reason=halt.reason,
        since=to_millis(halt.since) if halt.since != wanted.since else None,
        until=None if halt.until is None else to_millis(halt.until),
        accept=halt.accept,
    )
    await write_entry(transaction, note_of_halt(wanted))
    await commit_once(transaction, wanted.once)
    await transaction.record([feed.halted(halt)])
    transaction.halts_changed = True
    return replace(halt, number=number, once=None)


async def end_expired_halts(transaction: Transaction) -> None:
    """Remove halts whose time is over, and record that they have ended."""
    ended = await transaction.rows(END_EXPIRED_HALTS)
    await transaction.record([feed.halt_ended(None, queue or None) for (queue,) in ended])


async def resume(transaction: Transaction, by: By, queue: str | None) -> bool:
    await end_expired_halts(transaction)
    over = any(halt.queue == queue for halt in await current_halts(transaction))
    await transaction.do("DELETE FROM {s}.halts WHERE queue = %(queue)s", queue=queue or "")
    if over:
        await write_entry(transaction, note_of_resume(by, queue))
        await commit_once(transaction, by.once)
        await transaction.record([feed.halt_ended(by.actor, queue)])
        transaction.woken.add(queue or "*")
        transaction.halts_changed = True
    return over


# -- audit ----------------------------------------------------------------------------------------

PUT_ENTRY = """
INSERT INTO {s}.audit (operation, at, actor, action, reason, detail, n)
VALUES (%(operation)s, {now}, %(actor)s, %(action)s, %(reason)s, %(detail)s::jsonb, %(n)s)
ON CONFLICT (operation, action) DO UPDATE SET n = audit.n + excluded.n
"""
PUT_JOBS = """
INSERT INTO {s}.audit_jobs SELECT id, %(operation)s, %(action)s FROM unnest(%(ids)s::uuid[]) AS id
ON CONFLICT DO NOTHING
"""


async def write_audit(transaction: Transaction, request: ChangeRequest, ids: Sequence[str], now: Millis) -> None:
    if not ids or not request.by.audited:
        return
    await write_entry(transaction, note_of(request), len(ids))
    await commit_once(transaction, request.by.once)
    for write in listed(request.by, ids, now):
        await put_document(transaction, write)
    await transaction.do(PUT_JOBS, operation=request.by.operation, action=str(request.action), ids=list(ids))


async def write_entry(transaction: Transaction, note: Note, number: int = 0) -> None:
    await transaction.do(
        PUT_ENTRY,
        operation=note.by.operation,
        actor=note.by.actor,
        action=note.action,
        reason=note.by.reason,
        detail=json.dumps(note.detail),
        n=number,
    )
