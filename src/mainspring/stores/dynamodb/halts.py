"""Halt the whole system, or pause one queue.

All halts are attributes of one item. A claim takes its jobs, then reads that item consistently, and only then returns
jobs to the worker. Jobs that are halted by then are released without having run. So nothing starts after `halt` has
returned, and the cost is one read per claim. A check inside each write would need a transaction per job, at twice the
price, and all of them would conflict on one item.

Every claim and every enqueue of all processes reads this item, and a partition serves 3,000 reads a second. So there
are copies, written in one transaction, and each process reads one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from zlib import crc32

from mainspring.clock import Millis, to_datetime
from mainspring.errors import AlreadyDone
from mainspring.stores.dynamodb import workers
from mainspring.stores.dynamodb.client import Cancelled, Item
from mainspring.stores.dynamodb.items import key
from mainspring.stores.dynamodb.journal import Hint, moment, note_recording
from mainspring.stores.dynamodb.table import Action, Table
from mainspring.stores.dynamodb.values import Condition, Row, equals, update
from mainspring.stores.engine import feed
from mainspring.stores.engine.halts import serves
from mainspring.stores.feed import Entry
from mainspring.stores.protocol import Halt, WorkerInfo

HALT_COPIES = 16  # of the item
ALL, ONE = "halt", "pause#"  # attribute of the whole system, and prefix of the attribute of a queue
NUMBER = "number"  # attribute: how many halts there have been


def copy_of(number: int) -> Item:
    return key(f"halts#{number % HALT_COPIES:02d}", "halts")


def ours(table: Table) -> Item:
    """Return the key of the copy that this process reads."""
    return copy_of(crc32(table.process.encode()))


async def standing(table: Table, *, consistent: bool = True) -> list[Halt]:
    """Return the halts that are in force."""
    looked_at = moment(table)
    row = await table.get(ours(table), consistent=consistent)
    if consistent:
        note_recording(table, row, looked_at)
    return still_standing(row, table.clock.now())


def still_standing(row: Row | None, now: Millis) -> list[Halt]:
    """Return the halts that are in force. Each has the number of the last halt, which is in the same item."""
    row = row or {}
    names = [name for name in row if name == ALL or name.startswith(ONE)]
    found = [to_halt(name, row[name], row.get(NUMBER, 0)) for name in names]
    return [halt for halt in found if halt.until is None or halt.until > to_datetime(now)]


def attribute_of(queue: str | None) -> str:
    return ALL if queue is None else f"{ONE}{queue}"


def to_halt(name: str, value: Mapping[str, Any], number: int) -> Halt:
    return Halt(
        actor=value["actor"],
        reason=value["reason"],
        since=datetime.fromisoformat(value["since"]),
        until=datetime.fromisoformat(value["until"]) if "until" in value else None,
        queue=None if name == ALL else name.removeprefix(ONE),
        accept=value["accept"],
        number=number,
    )


async def write(table: Table, halt: Halt, once: Sequence[Action] = ()) -> Halt:
    """Write a halt; return it with its number, or that of a later halt: workers that confirm that one saw both."""
    value = {
        "actor": halt.actor,
        "reason": halt.reason,
        "since": halt.since.isoformat(),
        "until": None if halt.until is None else halt.until.isoformat(),
        "accept": halt.accept,
    }
    await write_all(table, {attribute_of(halt.queue): value}, feed.halted(halt), add={NUMBER: 1}, once=once)
    written = await table.get(ours(table), consistent=True) or {}
    return replace(halt, number=written[NUMBER], once=None)


async def remove(table: Table, queue: str | None, actor: str, once: Sequence[Action] = ()) -> bool:
    """Remove a halt or pause; return whether it was in force."""
    found = any(halt.queue == queue for halt in await standing(table))
    entry = feed.halt_ended(actor, queue) if found else None
    await write_all(table, {attribute_of(queue): None}, entry, once=once if found else ())
    return found


async def end_expired(table: Table) -> None:
    """Remove halts whose time is over, and record that they have ended. Another process may be faster."""
    row, now = await table.get(ours(table)) or {}, to_datetime(table.clock.now())
    names = [name for name in row if name == ALL or name.startswith(ONE)]
    for halt in (to_halt(name, row[name], 0) for name in names):
        if halt.until is not None and halt.until <= now:
            name = attribute_of(halt.queue)
            with suppress(Cancelled):
                entry = feed.halt_ended(None, halt.queue)
                await write_all(table, {name: None}, entry, only_if=[equals(name, row[name])])


async def write_all(
    table: Table,
    changes: Mapping[str, Any],
    entry: Entry | None,
    *,
    add: Mapping[str, float] | None = None,
    only_if: Sequence[Condition] = (),
    once: Sequence[Action] = (),
) -> None:
    """Write all copies. `once` is the document of a key: raise AlreadyDone if another request has used it."""
    hint = Hint(table)
    hint.add([] if entry is None else [entry])
    copies = (("Update", update(copy_of(number), changes, add=add, only_if=only_if)) for number in range(HALT_COPIES))
    try:
        await table.transact(*once, *copies, *hint.actions())
    except Cancelled as cancelled:
        if once and cancelled.failed(0):
            raise AlreadyDone from None
        raise


async def unconfirmed(table: Table, halt: Halt) -> list[WorkerInfo]:
    if all(current.number < halt.number for current in await standing(table)):
        return []
    rows = [row for row in await workers.present(table) if row.get(workers.CONFIRMED, 0) < halt.number]
    return [info for info in map(workers.to_info, rows) if serves(info, halt)]
