"""Manual operations on jobs: cancel, retry, delete, edit, halt. Each writes an entry in the audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.job import FINISHED, TRANSITIONS, Move, Status
from mainspring.stores.audit import action_of_halt, detail_of_change, detail_of_halt
from mainspring.stores.documents import Note
from mainspring.stores.dynamodb import halts, steps, wakeups
from mainspring.stores.dynamodb.acks import finish
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.counts import day_of
from mainspring.stores.dynamodb.insertion import (
    KEPT_ATTRIBUTES,
    as_found,
    checked,
    forget_key,
    is_live,
    new_key,
    register_queues,
)
from mainspring.stores.dynamodb.items import (
    WORDS,
    dedupe_key,
    history,
    key,
    place_of,
    place_waiting,
    stamp,
    status_of,
    text,
    ttl,
)
from mainspring.stores.dynamodb.read import Walk
from mainspring.stores.dynamodb.table import Action as Write
from mainspring.stores.dynamodb.table import Table, together
from mainspring.stores.dynamodb.values import Condition, Row, absent, delete, equals, exists, pack, put, unpack, update
from mainspring.stores.protocol import Action, By, Changed, Edit, Halt, Wake
from mainspring.stores.rules import combined
from mainspring.stores.tables import ALLOWED, ChangeRequest, Effect

LINE_RETENTION: Millis = 400 * 86_400_000  # of an operation in a job's history
MAX_TRIES = 20
MAX_STEPS_REMOVED = 90  # in one transaction


async def change(table: Table, request: ChangeRequest) -> Changed:
    walk = await Walk.start(table, request.where, newest_first=False, beyond=request.cursor)
    found: list[Row] = []
    while len(found) <= request.limit:
        rows = await walk.take(request.limit + 1 - len(found))
        if not rows:
            break
        found += (row for row in rows if status_of(row) in ALLOWED[request.action])
    targets = found[: request.limit]
    effect = await (try_out if request.dry_run else carry_out)(table, targets, request)
    cursor = targets[-1]["SK"] if len(found) > request.limit else None
    return Changed(tuple(effect.changed), tuple(effect.requested), effect.conflicts, cursor)


async def carry_out(table: Table, targets: Sequence[Row], request: ChangeRequest) -> Effect:
    """Change the jobs. Those with a dedupe key are replayed one after the other: one may conflict with the next."""
    effect = Effect()
    await together([carry_out_one(table, row, request, effect) for row in targets if not may_conflict(row, request)])
    for row in targets:
        if may_conflict(row, request):
            await carry_out_one(table, row, request, effect)
    effect.changed.sort()
    effect.requested.sort()
    await write_audit(table, request, len(effect.changed) + len(effect.requested))
    return effect


def may_conflict(row: Row, request: ChangeRequest) -> bool:
    return request.action is Action.REPLAY and "dedupe_key" in row


async def try_out(table: Table, targets: Sequence[Row], request: ChangeRequest) -> Effect:
    effect = Effect()
    holders: dict[tuple[str, str], str] = {}
    for row in targets:
        if request.action is Action.CANCEL and status_of(row) is Status.RUNNING:
            effect.requested.append(row["SK"])
            continue
        if may_conflict(row, request):
            name = row["job_type"], row["dedupe_key"]
            if name not in holders:
                holders[name] = await holder_of(table, row) or row["SK"]
            if holders[name] != row["SK"]:
                effect.conflicts[row["SK"]] = holders[name]
                continue
        effect.changed.append(row["SK"])
    return effect


async def carry_out_one(table: Table, row: Row, request: ChangeRequest, effect: Effect) -> None:
    """Change a job if it is still as it was read. If it has changed meanwhile, decide again from its new state."""
    current: Row | None = row
    for _ in range(MAX_TRIES):
        if current is None or status_of(current) not in ALLOWED[request.action]:
            return
        try:
            await EFFECTS[request.action](table, current, request, effect)
        except ConditionFailed as failed:
            current = unpack(failed.item) if failed.item else None
        except Cancelled:
            current = await table.get(table.job_key(row["SK"]))
        else:
            return


def unchanged(row: Row) -> list[Condition]:
    """Return conditions that fail after any claim, end of a run or manual change, or if another job began to wait."""
    same = [
        equals("status", row["status"]),
        equals("token", row["token"]),
        equals("scheduled_for", row["scheduled_for"]),
    ]
    place = [equals("place", row["place"]), equals("rank", row["rank"])] if "place" in row else [absent("place")]
    marks = [exists(name) if name in row else absent(name) for name in ("awaited", "steps")]
    return same + place + marks


def line(table: Table, row: Row, request: ChangeRequest) -> list[Write]:
    """Return an entry for the job's own timeline."""
    if not request.by.audited:
        return []
    now = table.clock.now()
    words = {
        "PK": history(row["SK"]),
        "SK": f"hand#{stamp(now)}#{request.by.operation}#{request.action}",
        "at": stamp(now),
        "operation": request.by.operation,
        "actor": request.by.actor,
        "action": request.action.value,
        "reason": request.by.reason or None,
        "ttl": ttl(now + LINE_RETENTION),
    }
    return [("Put", put(words))]


def count_move(table: Table, row: Row, status: Status | None, expires_at: str | None = None) -> None:
    before = status_of(row)
    table.counts.add(row["queue"], before, -1, day_of(before, row.get("expires_at")))
    if status is not None:
        table.counts.add(row["queue"], status, 1, day_of(status, expires_at))


# -- cancel ---------------------------------------------------------------------------------------------


async def cancel(table: Table, row: Row, request: ChangeRequest, effect: Effect) -> None:
    """Cancel a waiting job at once. Ask a running one to stop: its worker is notified and ends it."""
    changes: dict[str, Any] = {"reason": request.by.reason or None}
    if status_of(row) is Status.RUNNING:
        changes["cancel_requested"] = True
        where = [equals("status", row["status"]), equals("token", row["token"])]
        await table.transact(
            ("Update", update(table.job_key(row["SK"]), changes, only_if=where)), *line(table, row, request)
        )
        effect.requested.append(row["SK"])
        table.local_workers.warn(row.get("locked_by", ""))
        return
    status = TRANSITIONS[status_of(row)][Move.CANCEL]
    changes |= {"status": WORDS[status], **finish(row, status, table.clock.now())}
    changes |= place_of(row, status, table.shards)
    call = wakeups.call_for(row)
    await write(table, row, changes, request, *left_by(call, steps.note_of_end(row, changes["expires_at"])))
    count_move(table, row, status, changes["expires_at"])
    await forget_key(table, row)
    await finish_waits(table, row, call)
    effect.changed.append(row["SK"])


def left_by(call: wakeups.Call | None, note: Sequence[Write]) -> list[Write]:
    """Return what is left to do after a job's end, for the same transaction; see acks.py."""
    return [*([] if call is None else [call.action()]), *note]


async def finish_waits(table: Table, row: Row, call: wakeups.Call | None) -> None:
    """Delete the waiter of a job that has ended, and wake the jobs that waited for its end."""
    if "waits_for" in row:
        await wakeups.forget(table, [wakeups.waiter_key(row)])
    if call is not None:
        await call.make(table)


async def write(table: Table, row: Row, changes: Mapping[str, Any], request: ChangeRequest, *more: Write) -> None:
    change = update(table.job_key(row["SK"]), changes, only_if=unchanged(row))
    await table.transact(("Update", change), *more, *line(table, row, request))


# -- retry ----------------------------------------------------------------------------------------------

CLEARED = (
    "error_type", "last_error", "traceback", "result", "result_zlib", "reason", "progress", "note", "completed_at",
    "expires_at", "ttl", "cancel_requested",
)  # fmt: skip


async def replay(table: Table, row: Row, request: ChangeRequest, effect: Effect) -> None:
    """Make a job due now, with a full budget. Skip it if another live job holds its dedupe key."""
    changes: dict[str, Any] = dict.fromkeys(CLEARED)
    changes |= {
        "status": WORDS[Status.PENDING],
        "attempts": 0,
        "crashes": 0,
        "scheduled_for": stamp(table.clock.now()),
    }
    changes |= place_waiting(row | changes, table.shards)
    more: list[Write] = []
    if "dedupe_key" in row and status_of(row) in FINISHED:
        found = await table.get(dedupe_key(row["job_type"], row["dedupe_key"]))
        if found is not None and found["job_sk"] != row["SK"] and await is_live(table, found["job_sk"]):
            effect.conflicts[row["SK"]] = found["job_sk"]
            return
        changes["dedupe_version"] = new_id()
        more.append(take_key(row, found, changes["dedupe_version"]))
    if request.edit is not None and request.edit.from_step is not None:
        more += await forget_steps(table, row, request.edit.from_step)
    await write(table, row, changes, request, *more)
    count_move(table, row, Status.PENDING)
    table.local_workers.call([row["queue"]])
    effect.changed.append(row["SK"])


async def forget_steps(table: Table, row: Row, name: str) -> list[Write]:
    """Delete a step and all later ones.

    Return the deletes for the transaction that replays the job. If there are very many, the last steps go before it.
    """
    gone = await steps.those_from(table, row["SK"], name)
    while len(gone) > MAX_STEPS_REMOVED:
        still = update(table.job_key(row["SK"]), {"steps": True}, only_if=unchanged(row))
        await table.transact(("Update", still), *gone[:MAX_STEPS_REMOVED])
        gone = gone[MAX_STEPS_REMOVED:]
    return gone


def take_key(row: Row, found: Row | None, version: str) -> Write:
    """Return the write that takes the key from a finished or deleted job. How long it is kept, and for which, stays."""
    kept = {name: (found or {}).get(name) for name in KEPT_ATTRIBUTES}
    return "Put", put({**new_key(row, version), **kept}, [as_found(found)])


async def holder_of(table: Table, row: Row) -> str | None:
    """Return the live job that holds this job's dedupe key."""
    found = await table.get(dedupe_key(row["job_type"], row["dedupe_key"]))
    if found is None or not await is_live(table, found["job_sk"]):
        return None
    holder: str = found["job_sk"]
    return holder


# -- delete ---------------------------------------------------------------------------------------------


async def remove(table: Table, row: Row, request: ChangeRequest, effect: Effect) -> None:
    """Delete a job with its history, and the dedupe key that would outlive it."""
    del request
    call = wakeups.call_for(row)
    gone = delete(table.job_key(row["SK"]), unchanged(row))
    if left := [*left_by(call, steps.note(row, table.clock.now())), *await free_key(table, row)]:
        await table.transact(("Delete", gone), *left)
    else:
        await table.delete(gone)
    count_move(table, row, None)
    await forget_belongings(table, row)
    await finish_waits(table, row, call)
    effect.changed.append(row["SK"])


async def free_key(table: Table, row: Row) -> list[Write]:
    """Free the key that outlives this job. Another live job may hold the same key; that one keeps it."""
    found = None if "dedupe_key" not in row else await table.get(dedupe_key(row["job_type"], row["dedupe_key"]))
    if found is None or found.get("kept_job") != row["SK"]:
        return []
    where, same = key(found["PK"], found["SK"]), [equals("version", found["version"])]
    if found["job_sk"] == row["SK"]:
        return [("Delete", delete(where, same))]
    return [("Update", update(where, dict.fromkeys(KEPT_ATTRIBUTES), only_if=same))]


async def forget_belongings(table: Table, row: Row) -> None:
    await forget_key(table, row)
    lines = await table.rows(history(row["SK"]))
    await table.delete_many([key(entry["PK"], entry["SK"]) for entry in lines])


# -- edit -----------------------------------------------------------------------------------------------


async def edit_job(table: Table, row: Row, request: ChangeRequest, effect: Effect) -> None:
    edit = request.edit or Edit()
    changes: dict[str, Any] = {
        name: value for name in ("queue", "max_attempts") if (value := getattr(edit, name)) is not None
    }
    if edit.payload is not None:
        changes |= text("payload", edit.payload)
    if edit.priority is not None:
        changes["priority"] = int(edit.priority)
    if (run_at := edit.new_time(table.clock.now())) is not None:
        changes |= {"scheduled_for": stamp(run_at), "reason": None}
    after = row | changes
    checked(pack(after))
    changes |= place_waiting(after, table.shards)
    await register_queues(table, {after["queue"]})
    await write(table, row, changes, request)
    table.counts.add(row["queue"], status_of(row), -1)
    table.counts.add(after["queue"], status_of(row), 1)
    table.local_workers.call([after["queue"]])
    effect.changed.append(row["SK"])


EFFECTS = {Action.CANCEL: cancel, Action.REPLAY: replay, Action.DELETE: remove, Action.EDIT: edit_job}

# -- halt -----------------------------------------------------------------------------------------------


async def halt(table: Table, wanted: Halt) -> Halt:
    standing = next((other for other in await halts.standing(table) if other.queue == wanted.queue), None)
    written = await halts.write(table, combined(standing, wanted))
    await write_entry(table, By(wanted.actor, wanted.reason), action_of_halt(wanted), detail_of_halt(wanted), 0)
    table.local_workers.tell_all(Wake.HALTS)
    return written


async def resume(table: Table, by: By, queue: str | None) -> bool:
    if not await halts.remove(table, queue):
        return False
    await write_entry(table, by, "resume", {"queue": queue}, 0)
    table.local_workers.call([queue or "*"])
    table.local_workers.tell_all(Wake.HALTS)
    return True


# -- audit ----------------------------------------------------------------------------------------------


async def write_audit(table: Table, request: ChangeRequest, number: int) -> None:
    if not number or not request.by.audited:
        return
    detail = detail_of_change(request.where, request.edit)
    await write_entry(table, request.by, request.action.value, detail, number)


async def write_entry(table: Table, by: By, action: str, detail: Mapping[str, Any], number: int) -> None:
    """Write one entry for all chunks of an operation, under the time of the first. A second item remembers which."""
    now = table.clock.now()
    place = entry_place(by, action, now)
    try:
        await table.put(remember_entry(by, action, place, now))
    except ConditionFailed as failed:
        place = unpack(failed.item or {})["entry"]
    await table.update(update(key("audit", place), entry_words(by, action, detail, place), add={"count": number}))


def note_actions(note: Note, now: Millis) -> list[Write]:
    """Return the writes of an audit entry for a transaction. The first one fails if the entry exists already."""
    place = entry_place(note.by, note.action, now)
    entry = {**unpack(key("audit", place)), **entry_words(note.by, note.action, note.detail, place), "count": 0}
    return [("Put", remember_entry(note.by, note.action, place, now)), ("Put", put(entry))]


def entry_place(by: By, action: str, now: Millis) -> str:
    return f"{stamp(now)}#{by.operation}#{action}"


def remember_entry(by: By, action: str, place: str, now: Millis) -> dict[str, Any]:
    known = unpack(key(f"operation#{by.operation}", action))
    return put({**known, "entry": place, "ttl": ttl(now + LINE_RETENTION)}, [absent("PK")])


def entry_words(by: By, action: str, detail: Mapping[str, Any], place: str) -> Row:
    words = {
        "at": place.partition("#")[0],
        "operation": by.operation,
        "actor": by.actor,
        "action": action,
        "reason": by.reason or None,
        "detail": json.dumps(detail, default=str),
    }
    return {name: value for name, value in words.items() if value is not None}
