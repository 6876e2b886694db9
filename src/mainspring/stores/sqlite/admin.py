"""Changes by hand: cancel, retry, delete, edit, halt. Each writes an entry into the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mainspring.clock import to_datetime, to_millis
from mainspring.stores.audit import action_of_halt, detail_of_change, detail_of_halt
from mainspring.stores.protocol import Action, By, Changed, Edit, Halt
from mainspring.stores.rules import combined
from mainspring.stores.sqlite.acks import archive
from mainspring.stores.sqlite.halts import current_halts
from mainspring.stores.sqlite.insertion import LIVE_HOLDER, LONG_PAYLOAD
from mainspring.stores.sqlite.read import FINISHED, LIVE, Conditions
from mainspring.stores.sqlite.steps import forget_steps
from mainspring.stores.sqlite.wakeups import call_ends
from mainspring.stores.sqlite.writer import Transaction
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


def change(transaction: Transaction, requests: list[ChangeRequest]) -> list[Changed]:
    return [change_one(transaction, request) for request in requests]


def change_one(transaction: Transaction, request: ChangeRequest) -> Changed:
    found = find_targets(transaction, request)
    targets = found[: request.limit]
    apply = try_out if request.dry_run else carry_out
    effect = apply(transaction, targets, request)
    cursor = targets[-1].id if len(found) > request.limit else None
    return Changed(tuple(effect.changed), tuple(effect.requested), effect.conflicts, cursor)


def carry_out(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    effect = EFFECTS[request.action](transaction, targets, request)
    write_audit(transaction, request, effect.changed + effect.requested)
    return effect


def try_out(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Return what the change would do: carry it out, then roll it back."""
    rehearsal = Transaction(transaction.connection, transaction.now)
    transaction.execute("SAVEPOINT rehearsal")
    try:
        return carry_out(rehearsal, targets, request)
    finally:
        transaction.execute("ROLLBACK TO rehearsal")
        transaction.execute("RELEASE rehearsal")


def find_targets(transaction: Transaction, request: ChangeRequest) -> list[Target]:
    """Return the matching jobs, oldest first, up to one more than the limit: that one shows that a chunk follows."""
    targets: list[Target] = []
    for table in (LIVE, FINISHED):
        conditions = Conditions(request.where, table)
        statuses = [CODES[s] for s in ALLOWED[request.action] if (CODES[s] >= COMPLETED) == (table == FINISHED)]
        if conditions.impossible or not statuses:
            continue
        conditions.add("status IN (SELECT value FROM json_each(?))", json.dumps(statuses))
        if request.cursor is not None:
            conditions.add("id > ?", request.cursor)
        statement = f"""SELECT '{table}', id, queue, status, task, dedupe_key FROM {table}
                        WHERE {conditions} ORDER BY id LIMIT ?"""
        rows = transaction.execute(statement, (*conditions.values, request.limit + 1)).fetchall()
        targets += (Target(*row) for row in rows)
    return sorted(targets, key=lambda target: target.id)[: request.limit + 1]


# -- cancel ---------------------------------------------------------------------------------------

SEQS = "SELECT json_group_array(seq) FROM mainspring_jobs WHERE id IN (SELECT value FROM json_each(?))"
ASK_TO_STOP = """
UPDATE mainspring_jobs SET cancel = 1, reason = ? WHERE id IN (SELECT value FROM json_each(?))
"""


def cancel(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Cancel waiting jobs at once, and ask running ones to stop: their workers are woken and end them."""
    effect = Effect(
        [target.id for target in targets if target.status != RUNNING],
        [target.id for target in targets if target.status == RUNNING],
    )
    if effect.changed:
        seqs = json.loads(transaction.value(SEQS, (json.dumps(effect.changed),)))
        reason = request.by.reason
        archive(transaction, [(seq, CANCELLED, 0, 0, None, reason, None, None, None, transaction.now) for seq in seqs])
        count_moves(transaction, [t for t in targets if t.status != RUNNING], CANCELLED)
        call_ends(transaction, effect.changed)
    if effect.requested:
        transaction.execute(ASK_TO_STOP, (request.by.reason, json.dumps(effect.requested)))
        transaction.cancellations = True
    return effect


# -- retry ----------------------------------------------------------------------------------------

REPLAY_LIVE = f"""
UPDATE mainspring_jobs SET status = {PENDING}, run_at = ?, attempts = 0, crashes = 0, error_type = NULL, error = NULL,
                           reason = '', progress = NULL, note = NULL
WHERE id = ?
"""
REPLAY_FINISHED = f"""
INSERT INTO mainspring_jobs (id, task, queue, status, priority, run_at, max_attempts, token, timeout, created_at, keep,
                             keep_dead, dedupe_key, target_type, target_id, tags, options, payload)
SELECT id, task, queue, {PENDING}, priority, ?, max_attempts, token, timeout, created_at, keep, keep_dead,
       dedupe_key, target_type, target_id, tags, options, payload
FROM mainspring_archive WHERE id = ?
"""


def replay(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    """Make jobs run again now, with a full budget of attempts.

    A job whose dedupe key is held by another live job is not replayed; it is reported as a conflict.
    """
    effect = Effect()
    for target in targets:
        if target.table == LIVE:
            transaction.execute(REPLAY_LIVE, (transaction.now, target.id))
        elif holder := transaction.value(LIVE_HOLDER, (target.task, target.dedupe_key)):
            effect.conflicts[target.id] = holder
            continue
        else:
            transaction.execute(REPLAY_FINISHED, (transaction.now, target.id))
            transaction.execute("DELETE FROM mainspring_archive WHERE id = ?", (target.id,))
        effect.changed.append(target.id)
    if request.edit is not None and request.edit.from_step is not None:
        forget_steps(transaction, effect.changed, request.edit.from_step)
    moved = set(effect.changed)
    count_moves(transaction, [t for t in targets if t.id in moved], PENDING)
    transaction.woken.update(t.queue for t in targets if t.id in moved)
    return effect


# -- delete ---------------------------------------------------------------------------------------

BELONGINGS = ("mainspring_payloads", "mainspring_attempts", "mainspring_steps", "mainspring_audit_jobs")
REMOVE_TAGS = """
DELETE FROM mainspring_tags WHERE (tag, job_id) IN (
    SELECT tag.value, job.id FROM {table} AS job, json_each(iif(json_valid(job.tags), job.tags, '[]')) AS tag
    WHERE job.id IN (SELECT value FROM json_each(?)))
"""


FREE_KEYS = """
DELETE FROM mainspring_dedupe WHERE (task, dedupe_key, job_id) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(?))
"""


def delete(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    del request
    remove_jobs(transaction, [target.id for target in targets])
    keys = [(target.task, target.dedupe_key, target.id) for target in targets if target.dedupe_key is not None]
    transaction.execute(FREE_KEYS, (json.dumps(keys),))
    count_moves(transaction, targets, None)
    call_ends(transaction, [target.id for target in targets])
    return Effect([target.id for target in targets])


def remove_jobs(transaction: Transaction, ids: Sequence[str]) -> None:
    """Delete jobs and all rows that belong to them, except dedupe keys that outlive their job."""
    listed = (json.dumps(ids),)
    for table in (LIVE, FINISHED):
        transaction.execute(REMOVE_TAGS.format(table=table), listed)  # by tag, the first column of the table's key
        transaction.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", listed)
    for table in BELONGINGS:
        transaction.execute(f"DELETE FROM {table} WHERE job_id IN (SELECT value FROM json_each(?))", listed)


# -- edit -----------------------------------------------------------------------------------------

APPLY_EDIT = """
UPDATE mainspring_jobs SET priority = coalesce(:priority, priority), queue = coalesce(:queue, queue),
                run_at = coalesce(:run_at, run_at), reason = iif(:run_at IS NULL, reason, ''),
                max_attempts = coalesce(:max_attempts, max_attempts),
                payload = iif(:payload IS NULL, payload, :inline)
WHERE id IN (SELECT value FROM json_each(:ids))
"""
REPLACE_PAYLOADS = "INSERT INTO mainspring_payloads SELECT value, ? FROM json_each(?)"


def edit_jobs(transaction: Transaction, targets: Sequence[Target], request: ChangeRequest) -> Effect:
    ids = [target.id for target in targets]
    edit = request.edit or Edit()
    is_long = edit.payload is not None and len(edit.payload) > LONG_PAYLOAD
    transaction.execute(
        APPLY_EDIT,
        {
            "priority": edit.priority,
            "queue": edit.queue,
            "run_at": edit.new_time(transaction.now),
            "max_attempts": edit.max_attempts,
            "payload": edit.payload,
            "inline": None if is_long else edit.payload,
            "ids": json.dumps(ids),
        },
    )
    if edit.payload is not None:
        replace_long_payloads(transaction, ids, edit.payload if is_long else None)
    if edit.queue is not None:
        for target in targets:
            transaction.count(target.queue, target.status, -1)
            transaction.count(edit.queue, target.status, 1)
    transaction.woken.update([edit.queue] if edit.queue else [target.queue for target in targets])
    return Effect(ids)


def replace_long_payloads(transaction: Transaction, ids: Sequence[str], payload: str | None) -> None:
    transaction.execute(
        "DELETE FROM mainspring_payloads WHERE job_id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
    )
    if payload is not None:
        transaction.execute(REPLACE_PAYLOADS, (payload, json.dumps(ids)))


EFFECTS: Mapping[Action, Callable[[Transaction, Sequence[Target], ChangeRequest], Effect]] = {
    Action.CANCEL: cancel,
    Action.REPLAY: replay,
    Action.DELETE: delete,
    Action.EDIT: edit_jobs,
}


# -- halt -----------------------------------------------------------------------------------------

PUT_HALT = "INSERT OR REPLACE INTO mainspring_halts VALUES (?, ?, ?, ?, ?, ?, ?)"
FORGET_CONFIRMATIONS = "DELETE FROM mainspring_confirmations WHERE worker <> ''"
NEXT_NUMBER = """
INSERT INTO mainspring_confirmations VALUES ('', 1) ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number
"""


def halt(transaction: Transaction, halts: list[Halt]) -> list[Halt]:
    """Write halts and return them with their numbers.

    This deletes the confirmations of earlier halts: they are not needed any more, because workers confirm the new one.
    """
    transaction.execute(FORGET_CONFIRMATIONS)
    written: list[Halt] = []
    for given in halts:
        standing = next((halt for halt in current_halts(transaction) if halt.queue == given.queue), None)
        halt = combined(standing, replace(given, since=to_datetime(transaction.now)))
        until = None if halt.until is None else to_millis(halt.until)
        number = transaction.value(NEXT_NUMBER)
        row = (halt.queue or "", halt.actor, halt.reason, to_millis(halt.since), until, int(halt.accept), number)
        transaction.execute(PUT_HALT, row)
        write_entry(transaction, By(given.actor, given.reason), action_of_halt(given), detail_of_halt(given), 0)
        transaction.halts = None
        written.append(replace(halt, number=number))
    transaction.halts_changed = True
    return written


def resume(transaction: Transaction, requests: list[tuple[By, str | None]]) -> list[bool]:
    ended: list[bool] = []
    for by, queue in requests:
        over = any(halt.queue == queue for halt in current_halts(transaction))
        transaction.execute("DELETE FROM mainspring_halts WHERE queue = ?", (queue or "",))
        if over:
            write_entry(transaction, by, "resume", {"queue": queue}, 0)
            transaction.woken.add(queue or "*")
            transaction.halts_changed = True
        transaction.halts = None
        ended.append(over)
    return ended


# -- audit ----------------------------------------------------------------------------------------

PUT_ENTRY = """
INSERT INTO mainspring_audit (operation, at, actor, action, reason, detail, n) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET n = n + excluded.n
"""
PUT_JOBS = "INSERT OR IGNORE INTO mainspring_audit_jobs SELECT value, ?, ? FROM json_each(?)"


def write_audit(transaction: Transaction, request: ChangeRequest, ids: Sequence[str]) -> None:
    if not ids or not request.by.audited:
        return
    detail = detail_of_change(request.where, request.edit)
    write_entry(transaction, request.by, request.action, detail, len(ids))
    if request.action is not Action.DELETE:
        transaction.execute(PUT_JOBS, (request.by.operation, request.action, json.dumps(ids)))


def write_entry(transaction: Transaction, by: By, action: str, detail: Mapping[str, Any], number: int) -> None:
    values = (by.operation, transaction.now, by.actor, action, by.reason, json.dumps(detail), number)
    transaction.execute(PUT_ENTRY, values)
