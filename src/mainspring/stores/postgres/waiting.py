"""Who is suspended until a key is called, and who calls.

Whoever ends a job calls its key in the same transaction, after the job has left its table. A job that begins to wait
for that end at the same moment is not seen there; and who looks once more after it was suspended does not see the end
either, as long as that has not committed. So who suspends holds on to the row of the other job until he commits.
Whoever ends it comes later, and sees who waits; or he was there before, and then the one who waits becomes due after
all: it looks, and waits on if there is still something to wait for. The rows are taken last and are not waited for, so
that two such transactions are never in each other's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from mainspring.job import end_of
from mainspring.stores.postgres.rows import only_ids
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import PENDING, SUSPENDED

MOST = 2**31 - 1  # as a number of jobs to wake
ENDS = end_of("")
WAKE = "SELECT * FROM {s}.wake(%(keys)s::text[], %(numbers)s::integer[], {now})"
WAKE_FOR_ENDS = "SELECT {s}.wake_for_ends(%(ids)s::uuid[], {now})"
ABOUT_TO_END = """
WITH held AS MATERIALIZED (
    SELECT id FROM {s}.jobs WHERE id = ANY(%(ids)s::uuid[]) FOR KEY SHARE SKIP LOCKED
)
SELECT id::text FROM {s}.jobs
WHERE id = ANY(%(ids)s::uuid[]) AND NOT EXISTS (SELECT 1 FROM held WHERE held.id = jobs.id)
"""
DUE_AFTER_ALL = f"""
UPDATE {{s}}.jobs SET status = {PENDING}, run_at = {{now}}, waits_for = NULL
WHERE id = ANY(%(ids)s::uuid[]) AND waits_for = ANY(%(keys)s) RETURNING queue
"""


async def wake(transaction: Transaction, keys: Mapping[str, int]) -> dict[str, int]:
    wanted = {key: min(number, MOST) for key, number in keys.items() if number > 0}
    woken = dict.fromkeys(keys, 0)
    for key, queue, number in await transaction.rows(WAKE, keys=list(wanted), numbers=list(wanted.values())):
        woken[key] += number
        transaction.woken.add(queue)
    return woken


async def wake_for_ends(transaction: Transaction, ids: Sequence[str]) -> None:
    """These jobs have just left their table in this transaction."""
    transaction.woken.update(await transaction.value(WAKE_FOR_ENDS, ids=list(ids)))


def is_end(key: str | None) -> TypeGuard[str]:
    return key is not None and key.startswith(ENDS)


async def watch(transaction: Transaction, keys: Mapping[str, str]) -> None:
    """Jobs that this transaction has suspended until the end of others, by their ids."""
    awaited = only_ids({key.removeprefix(ENDS) for key in keys.values()})
    ending = await transaction.rows(ABOUT_TO_END, ids=awaited) if awaited else []
    if not ending:
        return
    called = [end_of(job_id) for (job_id,) in ending]
    due = await transaction.rows(DUE_AFTER_ALL, ids=list(keys), keys=called)
    for queue, number in Counter(queue for (queue,) in due).items():
        transaction.count(queue, SUSPENDED, -number)
        transaction.count(queue, PENDING, number)
        transaction.woken.add(queue)
