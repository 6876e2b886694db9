"""Workers: one item each. Its `beat` changes with every heartbeat. Other workers time how long it stays the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from zlib import crc32

from mainspring.clock import Millis
from mainspring.errors import StoreError
from mainspring.ids import new_id
from mainspring.job import Status
from mainspring.log import get_log
from mainspring.stores.dynamodb.client import ConditionFailed, Item
from mainspring.stores.dynamodb.items import key, stamp, status_of, ttl, unstamp
from mainspring.stores.dynamodb.journal import Hint
from mainspring.stores.dynamodb.table import Refused, Table, together
from mainspring.stores.dynamodb.values import (
    Condition,
    ItemUpdate,
    Row,
    absent,
    delete,
    equals,
    exists,
    higher,
    put,
    unpack,
    update,
)
from mainspring.stores.engine import feed
from mainspring.stores.protocol import Pulse, WorkerInfo
from mainspring.stores.workers import from_data, to_data

log = get_log("mainspring.dynamodb")

WORKER_RETENTION: Millis = 86_400_000  # how long the item of a worker stays after its last heartbeat
PARTITIONS = 4  # every claim reads its worker's item
CONFIRMED = "confirmed"  # attribute: the number of the last halt that the worker has confirmed
SEEN = ("SK", "token", "status", "cancel_requested", "reason", "lock_expires_at")


def worker_key(worker: str) -> Item:
    return key(f"workers#{crc32(worker.encode()) % PARTITIONS}", worker)


async def join(table: Table, worker: WorkerInfo) -> None:
    info = {"info": json.dumps(to_data(worker))}
    if not await join_as_new(table, worker, info):
        await sign_of_life(table, worker.id, info)


async def join_as_new(table: Table, worker: WorkerInfo, info: Mapping[str, object]) -> bool:
    """Write the item of a worker and record that it joined; return False if it lives already or nothing is recorded.

    Both are one transaction: after a crash between two writes, readers would know a worker that never existed. The item
    of a dead worker stays, marked as buried: a worker that comes back after its death joins again.
    """
    if table.recording is None:
        return False
    row = await table.get(worker_key(worker.id))
    if row is not None and "buried" not in row:
        return False
    is_unchanged = absent("PK") if row is None else exists("buried")
    hint = Hint(table)
    hint.add([feed.joined(worker)])
    change = ItemUpdate(worker_key(worker.id), {**heartbeat(table), **info}, [is_unchanged], beside=hint.actions())
    (result,) = await table.update_many([change])
    return not isinstance(result, Refused)


async def sign_of_life(table: Table, worker: str, more: Mapping[str, object] | None = None) -> Row:
    """Write a heartbeat and return the item."""
    return await table.update(update(worker_key(worker), {**heartbeat(table), **(more or {})}), then="ALL_NEW")


def heartbeat(table: Table) -> dict[str, object]:
    now = table.clock.now()
    return {
        "beat": new_id(),
        "seen_at": stamp(now),
        "process": table.process,
        "buried": None,
        "ttl": ttl(now + WORKER_RETENTION),
    }


async def revive(table: Table, worker: str) -> None:
    """Write a heartbeat for a worker whose item is missing or says that it is dead.

    Without an item, other workers would not notice the worker's death.
    """
    row = await sign_of_life(table, worker)
    if "info" not in row and worker in table.local_workers.members:
        await join(table, table.local_workers.members[worker].info)


async def expect(table: Table, worker: str) -> None:
    """Expect a heartbeat of a worker whose running jobs were copied here. Without one, it is dead after a lease."""
    now = table.clock.now()
    words = {
        **unpack(worker_key(worker)),
        "beat": new_id(),
        "seen_at": stamp(now),
        "process": "",
        "ttl": ttl(now + WORKER_RETENTION),
    }
    with suppress(ConditionFailed):
        await table.put(put(words, [absent("PK")]))


async def forget(table: Table, worker: str) -> None:
    """Delete the item of a worker and record that it left.

    Both are one transaction: after a crash between two writes, a worker that has left would also be declared dead.
    """
    hint = Hint(table)
    hint.add([feed.left(worker)])
    gone, recorded = delete(worker_key(worker)), hint.actions()
    if recorded:
        await table.transact(("Delete", gone), *recorded)
    else:
        await table.delete(gone)


async def bury(table: Table, worker: str, beat: str) -> bool:
    """Mark a worker as dead; return False if it sent a heartbeat meanwhile.

    None of its claims is confirmed until it comes back.
    """
    same = [exists("PK"), equals("beat", beat)]
    hint = Hint(table)
    hint.add([feed.died(worker)])
    change = ItemUpdate(worker_key(worker), {"buried": True}, same, beside=hint.actions())
    (result,) = await table.update_many([change])
    return not isinstance(result, Refused)


async def pulse(table: Table, worker: str, held: Mapping[str, int]) -> Pulse:
    rows = await table.get_many([table.job_key(job_id) for job_id in held], SEEN)
    running = {row["SK"]: row for row in rows if row["token"] == held[row["SK"]] and status_of(row) is Status.RUNNING}
    await extend_locks(table, worker, running.values())
    return Pulse(
        lost=frozenset(held.keys() - running.keys()),
        cancelled={job_id: row.get("reason", "") for job_id, row in running.items() if row.get("cancel_requested")},
    )


async def extend_locks(table: Table, worker: str, running: Iterable[Row]) -> None:
    """Extend the locks of which half a lease or less is left.

    The lock is for readers of the item. Mainspring itself goes by heartbeats, so a lock that cannot be written now is
    written with the next heartbeat. The token keeps a worker that has lost the job from extending the lock of another.
    """
    now, lease = table.clock.now(), round(table.lease * 1000)
    soon, until = stamp(now + lease // 2), {"lock_expires_at": stamp(now + lease)}
    due = [row for row in running if row.get("lock_expires_at", "") <= soon]
    try:
        await table.update_many([ItemUpdate(table.job_key(row["SK"]), until, still_held(row)) for row in due])
    except StoreError as error:
        log.warning("locks_not_extended", worker=worker, jobs=len(due), error=str(error))


def still_held(row: Row) -> list[Condition]:
    return [equals("token", row["token"]), equals("status", row["status"])]


async def listing(table: Table) -> list[Row]:
    parts = await together([table.rows(f"workers#{number}") for number in range(PARTITIONS)])
    return [row for rows in parts for row in rows]


async def present(table: Table) -> list[Row]:
    """Return the workers that are not marked as dead."""
    return [row for row in await listing(table) if "info" in row and "buried" not in row]


async def confirm(table: Table, worker: str, number: int) -> None:
    """Confirm a halt. A worker without an item is not listed, so nothing waits for its confirmation."""
    with suppress(ConditionFailed):
        await table.update(
            update(worker_key(worker), {CONFIRMED: number}, only_if=[exists("info"), higher(CONFIRMED, number)])
        )


def to_info(row: Row) -> WorkerInfo:
    data = {**json.loads(row["info"]), "stuck": int(row.get("stuck", 0))}
    return from_data(row["SK"], data, unstamp(row["seen_at"]))
