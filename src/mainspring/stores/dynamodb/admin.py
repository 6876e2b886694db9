"""Manual operations on jobs: cancel, retry, delete, edit, halt. Each writes an entry in the audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.stores.affected import listed
from mainspring.stores.audit import note_of_halt, note_of_resume
from mainspring.stores.documents import By, Note
from mainspring.stores.dynamodb import halts, steps, wakeups
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.counts import day_of
from mainspring.stores.dynamodb.document_items import register_collections, to_action
from mainspring.stores.dynamodb.insertion import (
    KEPT_ATTRIBUTES,
    PendingInserts,
    as_found,
    checked,
    forget_key,
    is_live,
    new_key,
    register_queues,
)
from mainspring.stores.dynamodb.items import (
    column,
    dedupe_key,
    history,
    key,
    place_of,
    place_waiting,
    stamp,
    state_of,
    status_of,
    to_attributes,
    ttl,
)
from mainspring.stores.dynamodb.journal import JOURNAL, Hint
from mainspring.stores.dynamodb.once import check_held, once_actions
from mainspring.stores.dynamodb.read import JobSearch
from mainspring.stores.dynamodb.table import Action as Write
from mainspring.stores.dynamodb.table import Table, together
from mainspring.stores.dynamodb.values import (
    Condition,
    Row,
    absent,
    delete,
    equals,
    exists,
    has_size,
    pack,
    put,
    unpack,
    update,
)
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import Conclusion, Place
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
from mainspring.stores.feed import Entry
from mainspring.stores.numbers import Measure
from mainspring.stores.protocol import Action, Changed, Halt, Wake

LINE_RETENTION: Millis = 400 * 86_400_000  # of an operation in a job's history
MAX_TRIES = 20
MAX_STEPS_REMOVED = 90  # in one transaction


@dataclass(slots=True)
class Effect:
    """What a change did. Each job is changed by itself, and may have become another by then."""

    changed: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    def add(self, planned: ChangePlan) -> None:
        self.changed += planned.changed
        self.requested += planned.requested
        self.conflicts |= planned.conflicts
        self.stale += planned.stale

    def answer(self, cursor: str | None) -> Changed:
        changed, requested = tuple(sorted(self.changed)), tuple(sorted(self.requested))
        return Changed(changed, requested, self.conflicts, tuple(sorted(self.stale)), cursor)


async def change(table: Table, request: ChangeRequest) -> Changed:
    search = await JobSearch.start(table, request.where, newest_first=False, beyond=request.cursor)
    found: list[Row] = []
    while len(found) <= request.limit:
        rows = await search.take(request.limit + 1 - len(found))
        if not rows:
            break
        found += (row for row in rows if status_of(row) in ALLOWED[request.action])
    jobs = found[: request.limit]
    cursor = jobs[-1]["SK"] if len(found) > request.limit else None
    if request.dry_run:
        return (await try_out(table, jobs, request)).answer(cursor)
    return (await carry_out(table, jobs, request)).answer(cursor)


async def try_out(table: Table, rows: Sequence[Row], request: ChangeRequest) -> ChangePlan:
    jobs = [state_of(row) for row in rows]
    keys = {name: await key_of(table, name) for name in wanted_keys(request, jobs)}
    holders = {name: await live_holder(table, found) for name, found in keys.items()}
    return plan(request, jobs, {name: holder for name, holder in holders.items() if holder}, table.clock.now())


async def carry_out(table: Table, rows: Sequence[Row], request: ChangeRequest) -> Effect:
    """Change the jobs. Those with a dedupe key are retried one after the other: one may conflict with the next."""
    await check_held(table, request.by.only_while)
    effect = Effect()
    rows = await use_key(table, rows, request, effect)
    await together([carry_out_one(table, row, request, effect) for row in rows if not may_conflict(row, request)])
    for row in rows:
        if may_conflict(row, request):
            await carry_out_one(table, row, request, effect)
    if request.by.audited and (number := len(effect.changed) + len(effect.requested)):
        await write_entry(table, note_of(request), number)
    return effect


async def use_key(table: Table, rows: Sequence[Row], request: ChangeRequest, effect: Effect) -> Sequence[Row]:
    """Change jobs together with the document of the request's key until one is changed; return the other jobs."""
    remaining = list(rows)
    while remaining and not effect.changed and not effect.requested and await once_actions(table, request.by.once):
        await carry_out_one(table, remaining.pop(0), request, effect, uses_key=True)
    return remaining


def may_conflict(row: Row, request: ChangeRequest) -> bool:
    return request.action is Action.RETRY and "dedupe_key" in row


async def carry_out_one(
    table: Table, row: Row, request: ChangeRequest, effect: Effect, *, uses_key: bool = False
) -> None:
    """Change a job if it is still as it was read. If it has changed meanwhile, decide again from its new state."""
    current: Row | None = row
    for _ in range(MAX_TRIES):
        if current is None or status_of(current) not in ALLOWED[request.action]:
            return
        try:
            once = await once_actions(table, request.by.once) if uses_key else []
            effect.add(await change_one(table, current, request, once))
        except ConditionFailed as failed:
            current = unpack(failed.item) if failed.item else None
        except Cancelled:
            if await table.get(line_key(row, request)) is not None:
                return  # by an earlier try of this page
            current = await table.get(table.job_key(row["SK"]))
        else:
            return


async def change_one(table: Table, row: Row, request: ChangeRequest, once: Sequence[Write] = ()) -> ChangePlan:
    job = state_of(row)
    job.before = {name: column(name, row) for name in compared(request)}
    wanted = wanted_keys(request, [job])
    found = await key_of(table, wanted[0]) if wanted else None
    holder = await live_holder(table, found)
    planned = plan(request, [job], {wanted[0]: holder} if holder else {}, table.clock.now())
    tags = {row["SK"]: row["tags"]} if row.get("tags") else {}
    entries = [*feed.ended(planned.ended), *feed.by_hand(planned, request, tags)]
    documents = [*once, *await listed_actions(table, planned, request)]
    recorded = Recorded(request, Hint(table), entries, documents)
    for _, conclusion in planned.ended:
        await cancel(table, row, conclusion, recorded, PendingInserts(table, jobs_after(planned.ended)))
    if planned.requested:
        await ask_to_stop(table, row, planned.columns_of(job), recorded)
    elif planned.updated:
        await change_live(table, row, planned.columns_of(job), recorded)
    elif planned.restored:
        await restore(table, row, planned.columns_of(job), found, recorded)
    elif planned.deleted:
        await remove(table, row, recorded)
    for before, after in planned.moves():
        count_move(table, row, before, after)
    table.local_workers.wake(planned.woken)
    return planned


async def listed_actions(table: Table, planned: ChangePlan, request: ChangeRequest) -> list[Write]:
    """Return the writes that add a job to the list of its operation, for the transaction that changes it."""
    now = table.clock.now()
    writes = listed(request.by, [*planned.changed, *planned.requested], now)
    await register_collections(table, {write.key.collection for write in writes})
    return [to_action(write, now) for write in writes]


async def key_of(table: Table, name: Key) -> Row | None:
    """Return the item of a dedupe key."""
    return await table.get(dedupe_key(name[0], name[1] or ""))


async def live_holder(table: Table, found: Row | None) -> str | None:
    """Return the live job that holds a dedupe key."""
    if found is None or not await is_live(table, found["job_sk"]):
        return None
    holder: str = found["job_sk"]
    return holder


def unchanged(row: Row) -> list[Condition]:
    """Return conditions that fail after any claim, end of a run or manual change, or if another job began to wait."""
    same = [
        equals("status", row["status"]),
        equals("token", row["token"]),
        equals("scheduled_for", row["scheduled_for"]),
    ]
    place = [equals("place", row["place"]), equals("rank", row["rank"])] if "place" in row else [absent("place")]
    marks = [exists(name) if name in row else absent(name) for name in ("awaited", "steps")]
    return [*same, *place, *marks, same_time(row)]


def same_time(row: Row) -> Condition:
    """Return a condition that fails after any change by hand, and after a report of progress."""
    return equals("changed_at", row["changed_at"]) if "changed_at" in row else absent("changed_at")


def line(table: Table, row: Row, request: ChangeRequest) -> list[Write]:
    """Return an entry for the job's own timeline. The write fails if this operation has changed the job before."""
    if not request.by.audited:
        return []
    now = table.clock.now()
    words = {
        **unpack(line_key(row, request)),
        "at": stamp(now),
        "operation": request.by.operation,
        "actor": request.by.actor,
        "action": request.action.value,
        "reason": request.by.reason or None,
        "ttl": ttl(now + LINE_RETENTION),
    }
    return [("Put", put(words, [absent("PK")]))]


def line_key(row: Row, request: ChangeRequest) -> Any:
    return key(history(row["SK"]), f"hand#{request.by.operation}#{request.action}")


def count_move(table: Table, row: Row, before: Place, after: Place | None, expires_at: str | None = None) -> None:
    table.counts.add(*before, -1, day_of(before[1], row.get("expires_at")))
    if after is not None:
        table.counts.add(*after, 1, day_of(after[1], expires_at))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A change by hand, and what it adds to the change feed."""

    request: ChangeRequest
    hint: Hint
    entries: Sequence[Entry]
    documents: Sequence[Write] = ()  # that of the request's key, and the list of the changed jobs

    def update(self, table: Table, row: Row, changes: Mapping[str, Any], only_if: Sequence[Condition]) -> Write:
        lines = self.hint.journal(row["SK"], self.entries)
        append = {JOURNAL: lines} if lines else None
        return "Update", update(table.job_key(row["SK"]), changes, append=append, only_if=only_if)


async def write(table: Table, row: Row, changes: Mapping[str, Any], recorded: Recorded, *more: Write) -> None:
    change = recorded.update(table, row, changes, unchanged(row))
    lines = line(table, row, recorded.request)
    await table.transact(change, *more, *lines, *recorded.documents, *recorded.hint.actions())


# -- cancel ---------------------------------------------------------------------------------------------


async def ask_to_stop(table: Table, row: Row, columns: Mapping[str, Any], recorded: Recorded) -> None:
    """Ask a running job to stop: its worker is notified and ends it."""
    same = [equals("status", row["status"]), equals("token", row["token"])]
    if recorded.request.expect is not None:
        same.append(same_time(row))
    change = recorded.update(table, row, to_attributes(columns), same)
    lines = line(table, row, recorded.request)
    await table.transact(change, *lines, *recorded.documents, *recorded.hint.actions())
    table.local_workers.warn(row.get("locked_by", ""))


async def cancel(
    table: Table, row: Row, conclusion: Conclusion, recorded: Recorded, follow_ups: PendingInserts
) -> None:
    """Cancel a waiting job at once."""
    await register_queues(table, {job.queue for job in follow_ups.jobs})
    changes = to_attributes(conclusion.columns()) | place_of(row, conclusion.status, table.shards)
    wakeup = wakeups.wakeup_for(row)
    left = left_by(wakeup, steps.note_of_end(row, changes["expires_at"]))
    new = follow_ups.actions(0)
    await write(table, row, changes, recorded, *left, *new, *follow_ups.hint.actions())
    follow_ups.after_write()
    queue = row["queue"]
    table.numbers.add(table.clock.now(), queue, row["job_type"], Measure.CANCELLED)
    count_move(table, row, (queue, status_of(row)), (queue, conclusion.status), changes["expires_at"])
    await forget_key(table, row)
    await finish_waits(table, row, wakeup)


def left_by(wakeup: wakeups.PendingWakeup | None, note: Sequence[Write]) -> list[Write]:
    """Return what is left to do after a job's end, for the same transaction; see acks.py."""
    return [*([] if wakeup is None else [wakeup.action()]), *note]


async def finish_waits(table: Table, row: Row, wakeup: wakeups.PendingWakeup | None) -> None:
    """Delete the waiter of a job that has ended, and wake the jobs that waited for its end."""
    if "waits_for" in row:
        await wakeups.forget(table, [wakeups.waiter_key(row)])
    if wakeup is not None:
        await wakeup.carry_out(table)


# -- retry and edit ---------------------------------------------------------------------------------------


async def change_live(table: Table, row: Row, columns: Mapping[str, Any], recorded: Recorded) -> None:
    """Give a waiting job new values, and another place in the index if it needs one."""
    changes = to_attributes(columns)
    if "error" in columns:
        changes["traceback"] = None
    after = row | changes
    checked(pack(after))
    changes |= place_waiting(after, table.shards)
    await register_queues(table, {after["queue"]})
    await write(table, row, changes, recorded, *await forgotten_steps(table, row, recorded.request))


async def restore(table: Table, row: Row, columns: Mapping[str, Any], found: Row | None, recorded: Recorded) -> None:
    """Make a finished job live again with these values. It takes its dedupe key, whose item was `found`."""
    finished = dict.fromkeys(("result", "finished_at", "expires_at", "worker", "claimed_at"))
    changes = to_attributes({**columns, **finished}) | {"traceback": None}
    changes |= place_waiting(row | changes, table.shards)
    more = await forgotten_steps(table, row, recorded.request)
    if "dedupe_key" in row:
        changes["dedupe_version"] = new_id()
        more.append(take_key(row, found, changes["dedupe_version"]))
    await write(table, row, changes, recorded, *more)


async def forgotten_steps(table: Table, row: Row, request: ChangeRequest) -> list[Write]:
    name = None if request.edit is None or request.action is not Action.RETRY else request.edit.from_step
    return [] if name is None else await forget_steps(table, row, name)


async def forget_steps(table: Table, row: Row, name: str) -> list[Write]:
    """Delete a step and all later ones.

    Return the deletes for the transaction that retries the job. If there are very many, the last steps go before it.
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


# -- delete ---------------------------------------------------------------------------------------------


async def remove(table: Table, row: Row, recorded: Recorded) -> None:
    """Delete a job with its history, and the dedupe key that would outlive it. What was done to it by hand stays."""
    wakeup = wakeups.wakeup_for(row)
    hint, journal = recorded.hint, row.get(JOURNAL, [])
    hint.carry(row, journal)
    hint.add(recorded.entries)
    same_journal = [has_size(JOURNAL, len(journal))] if journal else [absent(JOURNAL)] if hint.is_on else []
    gone = delete(table.job_key(row["SK"]), [*unchanged(row), *same_journal])
    left = [*left_by(wakeup, steps.note(row, table.clock.now())), *await free_key(table, row)]
    left += [*line(table, row, recorded.request), *recorded.documents, *hint.actions()]
    if left:
        await table.transact(("Delete", gone), *left)
    else:
        await table.delete(gone)
    await forget_belongings(table, row, lines=False)
    await finish_waits(table, row, wakeup)


async def free_key(table: Table, row: Row) -> list[Write]:
    """Free the key that outlives this job. Another live job may hold the same key; that one keeps it."""
    found = None if "dedupe_key" not in row else await table.get(dedupe_key(row["job_type"], row["dedupe_key"]))
    if found is None or found.get("kept_job") != row["SK"]:
        return []
    where, same = key(found["PK"], found["SK"]), [equals("version", found["version"])]
    if found["job_sk"] == row["SK"]:
        return [("Delete", delete(where, same))]
    return [("Update", update(where, dict.fromkeys(KEPT_ATTRIBUTES), only_if=same))]


async def forget_belongings(table: Table, row: Row, *, lines: bool) -> None:
    """Delete the key and the history of a job that was deleted; with `lines`, also what was done to it by hand."""
    await forget_key(table, row)
    parts = await table.rows(history(row["SK"]))
    gone = [part for part in parts if lines or not part["SK"].startswith("hand#")]
    await table.delete_many([key(part["PK"], part["SK"]) for part in gone])


async def forget_lines(table: Table, job_id: str) -> None:
    """Have the audit log no longer name this job."""
    lines = await table.rows(history(job_id), Condition("begins_with({name}, {value})", "SK", "hand#"))
    await table.delete_many([key(line["PK"], line["SK"]) for line in lines])


# -- halt -----------------------------------------------------------------------------------------------


async def halt(table: Table, wanted: Halt) -> Halt:
    await halts.end_expired(table)
    standing = next((other for other in await halts.standing(table) if other.queue == wanted.queue), None)
    written = await halts.write(table, combined(standing, wanted), await once_actions(table, wanted.once))
    await write_entry(table, note_of_halt(wanted))
    table.local_workers.tell_all(Wake.HALTS)
    return written


async def resume(table: Table, by: By, queue: str | None) -> bool:
    await halts.end_expired(table)
    if not await halts.remove(table, queue, by.actor, await once_actions(table, by.once)):
        return False
    await write_entry(table, note_of_resume(by, queue))
    table.local_workers.wake([queue or "*"])
    table.local_workers.tell_all(Wake.HALTS)
    return True


# -- audit ----------------------------------------------------------------------------------------------


async def write_entry(table: Table, note: Note, number: int = 0) -> None:
    """Write one entry for all pages of an operation, at the time of the first. A second item remembers its key."""
    now = table.clock.now()
    place = entry_place(note.by, note.action, now)
    try:
        await table.put(remember_entry(note.by, note.action, place, now))
    except ConditionFailed as failed:
        place = unpack(failed.item or {})["entry"]
    await table.update(update(key("audit", place), entry_words(note, place), add={"count": number}))


def note_actions(note: Note, now: Millis) -> list[Write]:
    """Return the writes of an audit entry for a transaction. The first one fails if the entry exists already."""
    place = entry_place(note.by, note.action, now)
    entry = {**unpack(key("audit", place)), **entry_words(note, place), "count": 0}
    return [("Put", remember_entry(note.by, note.action, place, now)), ("Put", put(entry))]


def entry_place(by: By, action: str, now: Millis) -> str:
    return f"{stamp(now)}#{by.operation}#{action}"


def remember_entry(by: By, action: str, place: str, now: Millis) -> dict[str, Any]:
    known = unpack(key(f"operation#{by.operation}", action))
    return put({**known, "entry": place, "ttl": ttl(now + LINE_RETENTION)}, [absent("PK")])


def entry_words(note: Note, place: str) -> Row:
    words = {
        "at": place.partition("#")[0],
        "operation": note.by.operation,
        "actor": note.by.actor,
        "action": note.action,
        "reason": note.by.reason or None,
        "detail": json.dumps(note.detail, default=str),
    }
    return {name: value for name, value in words.items() if value is not None}
