"""Manual operations on jobs: cancel, retry, delete, edit, halt. Each writes an entry in the audit log."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mainspring.clock import to_millis
from mainspring.stores.audit import action_of_halt, detail_of_change, detail_of_halt
from mainspring.stores.postgres import steps, wakeups
from mainspring.stores.postgres.acks import finish
from mainspring.stores.postgres.halts import ALONE, current_halts
from mainspring.stores.postgres.insertion import LIVE_HOLDER
from mainspring.stores.postgres.read import FINISHED, LIVE, Conditions
from mainspring.stores.postgres.rows import is_id
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Action, By, Changed, Edit, Halt
from mainspring.stores.rules import combined
from mainspring.stores.tables import (
    ALLOWED,
    CANCELLED,
    CODES,
    COMPLETED,
    PENDING,
    RUNNING,
    ChangeRequest,
    Effect,
    Target,
    count_moves,
)


class DryRun(Exception):
    pass


async def change(transaction: Transaction, request: ChangeRequest) -> Changed:
    found = await find_targets(transaction, request)
    targets = found[: request.limit]
    effect = await (try_out if request.dry_run else carry_out)(transaction, targets, request)
    cursor = targets[-1].id if len(found) > request.limit else None
    return Changed(tuple(effect.changed), tuple(effect.requested), effect.conflicts, cursor)


async def carry_out(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    effect = await EFFECTS[request.action](transaction, targets, request)
    await write_audit(transaction, request, effect.changed + effect.requested)
    return effect


async def try_out(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Do a dry run: make the changes, and roll them back."""
    effect = Effect()
    try:
        async with transaction.connection.transaction():
            effect = await carry_out(Transaction(transaction.connection, transaction.dialect), targets, request)
            raise DryRun  # noqa: TRY301 - it takes all of the block back
    except DryRun:
        return effect


async def find_targets(transaction: Transaction, request: ChangeRequest) -> list[Target]:
    """Return up to one more than the limit, oldest first, so that the next chunk can start where this one ended.

    The rows are locked, so that nothing else changes them. If an ack is changing one just now, this waits for it.
    """
    targets: list[Target] = []
    for table in (LIVE, FINISHED):
        conditions = Conditions(request.where, table)
        statuses = [CODES[s] for s in ALLOWED[request.action] if (CODES[s] >= COMPLETED) == (table == FINISHED)]
        conditions.add("status = ANY(?::smallint[])", statuses)
        if request.cursor is not None:
            conditions.impossible = conditions.impossible or not is_id(request.cursor)
            conditions.add("id > ?::uuid", request.cursor)
        if conditions.impossible or not statuses:
            continue
        statement = f"""SELECT '{table}', id::text, queue, status, task, dedupe_key FROM {{s}}.{table}
                        WHERE {conditions} ORDER BY {table}.id LIMIT %(limit)s FOR UPDATE"""
        rows = await transaction.rows(statement, **conditions.values, limit=request.limit + 1)
        targets += (Target(*row) for row in rows)
    return sorted(targets, key=lambda target: target.id)[: request.limit + 1]


# -- cancel ---------------------------------------------------------------------------------------

ASK_TO_STOP = "UPDATE {s}.jobs SET cancel = true, reason = %(reason)s WHERE id = ANY(%(ids)s::uuid[])"


async def cancel(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Cancel waiting jobs at once. Ask running ones to stop: their worker is notified and ends them."""
    effect = Effect(
        [target.id for target in targets if target.status != RUNNING],
        [target.id for target in targets if target.status == RUNNING],
    )
    if effect.changed:
        row = CANCELLED, 0, 0, None, request.by.reason, None, None, None
        await finish(transaction, [(job_id, *row) for job_id in effect.changed])
        count_moves(transaction, [t for t in targets if t.status != RUNNING], CANCELLED)
        await wakeups.wake_for_ends(transaction, effect.changed)
    if effect.requested:
        await transaction.do(ASK_TO_STOP, reason=request.by.reason, ids=effect.requested)
        transaction.cancellations = True
    return effect


# -- retry ----------------------------------------------------------------------------------------

REPLAY_LIVE = f"""
UPDATE {{s}}.jobs SET status = {PENDING}, run_at = {{now}}, attempts = 0, crashes = 0, error_type = NULL, error = NULL,
                      reason = '', progress = NULL, note = NULL
WHERE id = %(id)s
"""
REPLAY_FINISHED = f"""
WITH gone AS (DELETE FROM {{s}}.archive WHERE id = %(id)s RETURNING *)
INSERT INTO {{s}}.jobs (id, task, queue, status, priority, run_at, max_attempts, token, timeout, created_at, keep,
                        keep_dead, dedupe_key, target_type, target_id, tags, options, payload)
SELECT id, task, queue, {PENDING}, priority, {{now}}, max_attempts, token, timeout, created_at, keep, keep_dead,
       dedupe_key, target_type, target_id, tags, options, payload
FROM gone
"""


async def replay(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Make jobs due now, with a full budget. Skip a job if another live job holds its dedupe key."""
    effect = Effect()
    for target in targets:
        if target.table == LIVE:
            await transaction.do(REPLAY_LIVE, id=target.id)
        elif holder := await live_holder(transaction, target):
            effect.conflicts[target.id] = holder
            continue
        else:
            await transaction.do(REPLAY_FINISHED, id=target.id)
        effect.changed.append(target.id)
    if request.edit is not None and request.edit.from_step is not None:
        await steps.forget(transaction, effect.changed, request.edit.from_step)
    moved = set(effect.changed)
    count_moves(transaction, [t for t in targets if t.id in moved], PENDING)
    transaction.woken.update(t.queue for t in targets if t.id in moved)
    return effect


async def live_holder(transaction: Transaction, target: Target) -> str | None:
    if target.dedupe_key is None:
        return None
    holder: str | None = await transaction.value(LIVE_HOLDER, task=target.task, key=target.dedupe_key)
    return holder


# -- delete ---------------------------------------------------------------------------------------

BELONGINGS = ("attempts", "steps", "audit_jobs")


FREE_KEYS = """
DELETE FROM {s}.dedupe WHERE (task, dedupe_key, job_id) IN (
    SELECT * FROM unnest(%(tasks)s::text[], %(keys)s::text[], %(ids)s::uuid[]))
"""


async def delete(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    del request
    ids = [target.id for target in targets]
    await remove_jobs(transaction, ids)
    if held := [target for target in targets if target.dedupe_key is not None]:
        tasks, keys, holders = ([getattr(target, name) for target in held] for name in ("task", "dedupe_key", "id"))
        await transaction.do(FREE_KEYS, tasks=tasks, keys=keys, ids=holders)
    await wakeups.wake_for_ends(transaction, ids)
    count_moves(transaction, targets, None)
    return Effect(ids)


async def remove_jobs(transaction: Transaction, ids: Sequence[str]) -> None:
    """Delete jobs and all that belongs to them. Dedupe keys that outlive their job stay."""
    for table in (LIVE, FINISHED):
        await transaction.do(f"DELETE FROM {{s}}.{table} WHERE id = ANY(%(ids)s::uuid[])", ids=list(ids))
    for table in BELONGINGS:
        await transaction.do(f"DELETE FROM {{s}}.{table} WHERE job_id = ANY(%(ids)s::uuid[])", ids=list(ids))


# -- edit -----------------------------------------------------------------------------------------

APPLY_EDIT = """
UPDATE {s}.jobs SET priority = coalesce(%(priority)s, priority), queue = coalesce(%(queue)s, queue),
                    run_at = coalesce(%(run_at)s, {now} + %(delay)s, run_at),
                    reason = CASE WHEN coalesce(%(run_at)s, %(delay)s) IS NULL THEN reason ELSE '' END,
                    max_attempts = coalesce(%(max_attempts)s, max_attempts), payload = coalesce(%(payload)s, payload)
WHERE id = ANY(%(ids)s::uuid[])
"""


async def edit_jobs(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    ids = [target.id for target in targets]
    edit = request.edit or Edit()
    await transaction.do(
        APPLY_EDIT,
        priority=None if edit.priority is None else int(edit.priority),
        queue=edit.queue,
        run_at=edit.run_at if edit.delay is None else None,
        delay=edit.delay,
        max_attempts=edit.max_attempts,
        payload=edit.payload,
        ids=ids,
    )
    if edit.queue is not None:
        for target in targets:
            transaction.count(target.queue, target.status, -1)
            transaction.count(edit.queue, target.status, 1)
    transaction.woken.update([edit.queue] if edit.queue else [target.queue for target in targets])
    return Effect(ids)


EFFECTS: Mapping[Action, Callable[[Transaction, Sequence[Target], ChangeRequest], Awaitable[Effect]]] = {
    Action.CANCEL: cancel,
    Action.REPLAY: replay,
    Action.DELETE: delete,
    Action.EDIT: edit_jobs,
}


# -- halt -----------------------------------------------------------------------------------------

PUT_HALT = """
INSERT INTO {s}.halts (queue, actor, reason, since, until, accept)
VALUES (%(queue)s, %(actor)s, %(reason)s, coalesce(%(since)s, {now}), %(until)s, %(accept)s)
ON CONFLICT (queue) DO UPDATE SET actor = excluded.actor, reason = excluded.reason, since = excluded.since,
                                  until = excluded.until, accept = excluded.accept, number = excluded.number
RETURNING number
"""
FORGET_CONFIRMATIONS = "DELETE FROM {s}.confirmations"


async def halt(transaction: Transaction, wanted: Halt) -> Halt:
    """Halt the system or a queue. Confirmations of earlier halts are deleted, because workers confirm the new one."""
    await transaction.rows(ALONE)
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
    await write_entry(transaction, By(wanted.actor, wanted.reason), action_of_halt(wanted), detail_of_halt(wanted), 0)
    transaction.halts_changed = True
    return replace(halt, number=number)


async def resume(transaction: Transaction, by: By, queue: str | None) -> bool:
    over = any(halt.queue == queue for halt in await current_halts(transaction))
    await transaction.do("DELETE FROM {s}.halts WHERE queue = %(queue)s", queue=queue or "")
    if over:
        await write_entry(transaction, by, "resume", {"queue": queue}, 0)
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


async def write_audit(transaction: Transaction, request: ChangeRequest, ids: Sequence[str]) -> None:
    if not ids or not request.by.audited:
        return
    detail = detail_of_change(request.where, request.edit)
    await write_entry(transaction, request.by, request.action, detail, len(ids))
    if request.action is not Action.DELETE:
        await transaction.do(PUT_JOBS, operation=request.by.operation, action=str(request.action), ids=list(ids))


async def write_entry(transaction: Transaction, by: By, action: str, detail: Mapping[str, Any], number: int) -> None:
    await transaction.do(
        PUT_ENTRY,
        operation=by.operation,
        actor=by.actor,
        action=str(action),
        reason=by.reason,
        detail=json.dumps(detail),
        n=number,
    )
