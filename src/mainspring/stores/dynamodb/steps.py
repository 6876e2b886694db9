"""Steps of durable functions: an item each, beside the job's history.

They are written in one transaction with a mark on the job, which is refused to who lost the claim. They have no expiry
of their own, as their job may live for years. The write that ends a job with that mark leaves a note of when its
retention is over, and `sweep` removes the steps after that.
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
from mainspring.stores.dynamodb.insertion import LARGEST_ITEM, TRIES, Newcomers, named_among, write_down
from mainspring.stores.dynamodb.items import PLACES, WORDS, history, key, short, stamp, text, text_of, unstamp
from mainspring.stores.dynamodb.room import Room, chunks, room_for_job, room_for_step
from mainspring.stores.dynamodb.table import Action, Table, together
from mainspring.stores.dynamodb.values import Condition, Row, delete, equals, pack, put, put_item, size, update

LONGEST_STEP = 900  # bytes of a name that are kept as they are in a sort key
BESIDE_STEPS = 6  # items of an outcome that are not its steps or follow-ups
PARTS = 4
SLACK: Millis = 86_400_000  # between the end of a job's retention and that of its steps: clocks differ

# -- as items -------------------------------------------------------------------------------------------


def to_item(job_id: str, step: Step) -> Item:
    row = {
        "PK": history(job_id),
        "SK": f"step#{short(step.name, LONGEST_STEP)}",
        "name": step.name,
        "number": step.number,
        "kind": step.kind,
        **text("output", step.output),
        "started_at": stamp(step.started_at),
        "completed_at": stamp(step.finished_at),
    }
    item = pack(row)
    if (needed := size(item)) > LARGEST_ITEM:
        msg = (
            f"step {step.name!r} of job {job_id} would take {needed // 1024} KB; in DynamoDB a step may have up to "
            f"{LARGEST_ITEM // 1024} KB. Keep what is large elsewhere and let the step return where"
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
    """Those of one job one after the other. All are checked before the first is written."""
    for one in saves:
        Newcomers(table, one.jobs)
        puts(one.job_id, one.steps)
    by_job: dict[str, list[int]] = {}
    for number, one in enumerate(saves):
        by_job.setdefault(one.job_id, []).append(number)
    answers: dict[int, list[Inserted] | None] = {}

    async def in_turn(numbers: list[int]) -> None:
        for number in numbers:
            answers[number] = await save_whole(table, saves[number])

    await together([in_turn(numbers) for numbers in by_job.values()])
    return [answers[number] for number in range(len(saves))]


async def save_whole(table: Table, one: Save) -> list[Inserted] | None:
    """In one transaction, if it fits into one. Else in several, each fenced, and the steps last."""
    await write_down(table, {job.queue for job in one.jobs})
    awaited = named_among(one.jobs)
    await wakeups.mark(table, awaited)
    answers: list[Inserted] = []
    for part in parts_of(one):
        inserted = await save_part(table, part, awaited)
        if inserted is None:
            return None
        answers += inserted
    return answers


def parts_of(one: Save) -> list[Save]:
    whole = sum([*map(room_for_job, one.jobs), *map(room_for_step, one.steps)], start=Room())
    if whole.fits():
        return [one]
    jobs = [replace(one, steps=(), jobs=part) for part in chunks(one.jobs, room_for_job)]
    return jobs + [replace(one, steps=part, jobs=()) for part in chunks(one.steps, room_for_step)]


async def save_part(table: Table, one: Save, awaited: frozenset[str]) -> list[Inserted] | None:
    newcomers = Newcomers(table, one.jobs, awaited)
    for _ in range(TRIES):
        held = [equals("token", one.token), equals("status", WORDS[Status.RUNNING])]
        fenced: Action = ("Update", update(table.job_key(one.job_id), {"steps": True}, only_if=held))
        try:
            await table.transact(fenced, *newcomers.actions(1), *puts(one.job_id, one.steps))
        except Cancelled as cancelled:
            if cancelled.failed(0):
                return None
            await newcomers.learn(cancelled)
        else:
            if isinstance(one.ref, dict):
                one.ref["steps"] = True  # so that the end of the run need not be told
            newcomers.have_come()
            return newcomers.answers()
    msg = f"dedupe keys of jobs that {one.job_id} spawns changed hands too often; try again"
    raise StoreBusy(msg)


def puts(job_id: str, steps: Iterable[Step]) -> list[Action]:
    return [("Put", put_item(to_item(job_id, step))) for step in {step.name: step for step in steps}.values()]


async def save_beforehand(table: Table, outcome: Outcome) -> Outcome | None:
    """Steps that are too many to be written with the outcome; None: the claim was lost."""
    beside = [Room(BESIDE_STEPS, len((outcome.result or "").encode())), *map(room_for_job, outcome.follow_ups)]
    if not outcome.steps or sum(map(room_for_step, outcome.steps), start=sum(beside, start=Room())).fits():
        return outcome
    one = Save(outcome.job_id, outcome.token, outcome.steps, ref=outcome.ref)
    return None if await save_whole(table, one) is None else replace(outcome, steps=())


# -- by hand ----------------------------------------------------------------------------------------------


async def those_from(table: Table, job_id: str, name: str) -> list[Action]:
    """Removing a step and those after it, the last ones first."""
    steps = await read(table, job_id)
    first = next((step.number for step in steps if step.name == name), None)
    gone = [step for step in reversed(steps) if first is not None and step.number >= first]
    return [("Delete", delete(key(history(job_id), f"step#{short(step.name, LONGEST_STEP)}"))) for step in gone]


# -- retention --------------------------------------------------------------------------------------------


def note(row: Row, over_at: Millis | None) -> list[Action]:
    """For the transaction that ends or deletes a job: when the steps may go."""
    if not row.get("steps") or over_at is None:
        return []
    place = f"over#{crc32(row['SK'].encode()) % PARTS}"
    words = {"PK": history(row["SK"]), "SK": "over", "place": place, "rank": f"{stamp(over_at)}#{row['SK']}"}
    return [("Put", put(words))]


def note_of_end(row: Row, expires_at: str | None) -> list[Action]:
    return note(row, None if expires_at is None else unstamp(expires_at) + SLACK)


async def sweep(table: Table, limit: int) -> int:
    """Of how many jobs the steps were removed."""
    over = Condition("{name} < {value}", "rank", stamp(table.clock.now()))
    swept = 0
    for part in range(PARTS):
        pages = table.query(equals("place", f"over#{part}"), over, index=PLACES, limit=min(limit, 100))
        while pages.more and swept < limit:
            rows = (await pages.next())[: limit - swept]
            swept += sum(await together([sweep_one(table, row) for row in rows]))
    return swept


async def sweep_one(table: Table, noted: Row) -> bool:
    """Not if the job was replayed since: its next end leaves another note."""
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
    """For long enough that nobody brings it back any more; the service deletes it when it likes."""
    return "expires_at" in row and unstamp(row["expires_at"]) + SLACK <= table.clock.now()
