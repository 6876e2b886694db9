"""Steps of durable functions: one item each, next to the job's history.

They are written in one transaction with a mark on the job. The service refuses that transaction to a worker that lost
the claim. Steps have no expiry of their own, because their job may live for years. The write that ends a marked job
leaves a note of when its retention ends, and `sweep` removes the steps after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from mainspring.clock import Millis
from mainspring.errors import StoreBusy, StoreError
from mainspring.job import Inserted, Outcome, Save, Status, Step
from mainspring.stores.dynamodb import wakeups
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed, Item
from mainspring.stores.dynamodb.insertion import MAX_ITEM_BYTES, MAX_TRIES, PendingInserts, named_among, register_queues
from mainspring.stores.dynamodb.items import PLACES, WORDS, history, key, short, stamp, text, text_of, unstamp
from mainspring.stores.dynamodb.table import Action, Room, Table, parts_that_fit, room_for_job, room_for_step, together
from mainspring.stores.dynamodb.values import Condition, Row, delete, equals, pack, put, put_item, size, update

MAX_NAME_BYTES = 900  # of a step in a sort key; longer names are hashed
OTHER_ITEMS = 6  # items of an outcome that are neither steps nor follow-ups
NOTE_PARTITIONS = 4  # of the notes of when steps may be removed
CLOCK_SLACK: Millis = 86_400_000  # steps are kept longer than their job by this, because clocks differ

# -- as items -------------------------------------------------------------------------------------------


def to_item(job_id: str, step: Step) -> Item:
    row = {
        "PK": history(job_id),
        "SK": f"step#{short(step.name, MAX_NAME_BYTES)}",
        "name": step.name,
        "number": step.number,
        "kind": step.kind,
        **text("output", step.output),
        "started_at": stamp(step.started_at),
        "completed_at": stamp(step.finished_at),
    }
    item = pack(row)
    if (needed := size(item)) > MAX_ITEM_BYTES:
        msg = (
            f"step {step.name!r} of job {job_id} would take {needed // 1024} KB; in DynamoDB a step may have up to "
            f"{MAX_ITEM_BYTES // 1024} KB. Store large data elsewhere and let the step return its location"
        )
        raise StoreError(msg)
    return item


def to_step(row: Row) -> Step:
    began, ended = unstamp(row["started_at"]), unstamp(row["completed_at"])
    return Step(row["name"], row["number"], row["kind"], text_of("output", row), began, ended)


async def read(table: Table, job_id: str) -> list[Step]:
    rows = await table.rows(history(job_id), Condition("begins_with({name}, {value})", "SK", "step#"))
    return in_order(rows)


def in_order(lines: Iterable[Row]) -> list[Step]:
    steps = [to_step(line) for line in lines if line["SK"].startswith("step#")]
    return sorted(steps, key=lambda step: step.number)


# -- writing --------------------------------------------------------------------------------------------


async def save(table: Table, saves: Sequence[Save]) -> list[list[Inserted] | None]:
    """Save steps and insert jobs; those of one job one after the other. All are checked before the first is written."""
    for whole in saves:
        PendingInserts(table, whole.jobs)
        puts(whole.job_id, whole.steps)
    by_job: dict[str, list[int]] = {}
    for number, whole in enumerate(saves):
        by_job.setdefault(whole.job_id, []).append(number)
    answers: dict[int, list[Inserted] | None] = {}

    async def in_turn(numbers: list[int]) -> None:
        for number in numbers:
            answers[number] = await save_whole(table, saves[number])

    await together([in_turn(numbers) for numbers in by_job.values()])
    return [answers[number] for number in range(len(saves))]


async def save_whole(table: Table, save: Save) -> list[Inserted] | None:
    """Save in one transaction if it fits. Otherwise use several, each fenced, with the steps last."""
    await register_queues(table, {job.queue for job in save.jobs})
    awaited = named_among(save.jobs)
    await wakeups.mark(table, awaited)
    answers: list[Inserted] = []
    for part in parts_of(save):
        inserted = await save_part(table, part, awaited)
        if inserted is None:
            return None
        answers += inserted
    await wakeups.wake_if_ended(table, awaited)
    return answers


def parts_of(save: Save) -> list[Save]:
    whole = sum([*map(room_for_job, save.jobs), *map(room_for_step, save.steps)], start=Room())
    if whole.fits():
        return [save]
    jobs = [replace(save, steps=(), jobs=part) for part in parts_that_fit(save.jobs, room_for_job)]
    return jobs + [replace(save, steps=part, jobs=()) for part in parts_that_fit(save.steps, room_for_step)]


async def save_part(table: Table, save: Save, awaited: frozenset[str]) -> list[Inserted] | None:
    inserts = PendingInserts(table, save.jobs, awaited)
    for _ in range(MAX_TRIES):
        held = [equals("token", save.token), equals("status", WORDS[Status.RUNNING])]
        fenced: Action = ("Update", update(table.job_key(save.job_id), {"steps": True}, only_if=held))
        try:
            actions = [fenced, *inserts.actions(1), *puts(save.job_id, save.steps)]
            await table.transact(*actions, *inserts.hint.actions())
        except Cancelled as cancelled:
            if cancelled.failed(0):
                return None
            await inserts.learn(cancelled)
        else:
            if isinstance(save.ref, dict):
                save.ref["steps"] = True  # then the write that ends the run knows of the mark
            inserts.after_write()
            return inserts.answers()
    msg = f"dedupe keys of jobs that {save.job_id} spawns changed hands too often; try again"
    raise StoreBusy(msg)


def puts(job_id: str, steps: Iterable[Step]) -> list[Action]:
    return [("Put", put_item(to_item(job_id, step))) for step in {step.name: step for step in steps}.values()]


async def put_first(table: Table, job_id: str, steps: Sequence[Step]) -> None:
    """Write steps of a job that a transaction inserts after this. They may be more than fit into the transaction.

    No process reads them before the job exists. If it is never inserted, `sweep` removes them, by the note. If it
    exists already, it may have run since, and they stay as they are.
    """
    if await table.get(table.job_key(job_id)) is not None:
        return
    await table.transact(*note({"SK": job_id, "steps": True}, table.clock.now() + CLOCK_SLACK))
    for part in parts_that_fit(steps, room_for_step):
        await table.transact(*puts(job_id, part))


async def save_beforehand(table: Table, outcome: Outcome) -> Outcome | None:
    """Save steps that are too many to write with the outcome; return the rest, or None if the claim was lost."""
    beside = [Room(OTHER_ITEMS, len((outcome.result or "").encode())), *map(room_for_job, outcome.follow_ups)]
    if not outcome.steps or sum(map(room_for_step, outcome.steps), start=sum(beside, start=Room())).fits():
        return outcome
    save = Save(outcome.job_id, outcome.token, outcome.steps, ref=outcome.ref)
    return None if await save_whole(table, save) is None else replace(outcome, steps=())


# -- manual operations ------------------------------------------------------------------------------------


async def those_from(table: Table, job_id: str, name: str) -> list[Action]:
    """Return deletes for a step and all later ones, the last ones first."""
    steps = await read(table, job_id)
    first = next((step.number for step in steps if step.name == name), None)
    gone = [step for step in reversed(steps) if first is not None and step.number >= first]
    return [("Delete", delete(key(history(job_id), f"step#{short(step.name, MAX_NAME_BYTES)}"))) for step in gone]


# -- retention --------------------------------------------------------------------------------------------


def note(row: Row, over_at: Millis | None) -> list[Action]:
    """Return a note of when the steps may be removed, for the transaction that ends or deletes the job."""
    if not row.get("steps") or over_at is None:
        return []
    place = f"over#{crc32(row['SK'].encode()) % NOTE_PARTITIONS}"
    words = {"PK": history(row["SK"]), "SK": "over", "place": place, "rank": f"{stamp(over_at)}#{row['SK']}"}
    return [("Put", put(words))]


def note_of_end(row: Row, expires_at: str | None) -> list[Action]:
    return note(row, None if expires_at is None else unstamp(expires_at) + CLOCK_SLACK)


async def sweep(table: Table, limit: int) -> int:
    """Remove steps of jobs whose retention has ended; return the number of jobs."""
    over = Condition("{name} < {value}", "rank", stamp(table.clock.now()))
    swept = 0
    for part in range(NOTE_PARTITIONS):
        pages = table.query(equals("place", f"over#{part}"), over, index=PLACES, limit=min(limit, 100))
        while pages.more and swept < limit:
            rows = (await pages.next())[: limit - swept]
            swept += sum(await together([sweep_one(table, row) for row in rows]))
    return swept


async def sweep_one(table: Table, noted: Row) -> bool:
    """Remove the steps of one job, unless it was retried by hand since. Then its next end leaves another note."""
    job_id = noted["rank"].partition("#")[2]
    job = await table.get(table.job_key(job_id))
    gone = job is None or is_over(table, job)
    if gone:
        lines = await table.rows(history(job_id), Condition("begins_with({name}, {value})", "SK", "step#"))
        await table.delete_many([key(line["PK"], line["SK"]) for line in lines])
    try:
        await table.delete(delete(key(noted["PK"], noted["SK"]), [equals("rank", noted["rank"])]))
    except ConditionFailed:
        return False
    return gone


def is_over(table: Table, row: Row) -> bool:
    """Return whether the job expired so long ago that it cannot be retried. The service may delete it much later."""
    return "expires_at" in row and unstamp(row["expires_at"]) + CLOCK_SLACK <= table.clock.now()
