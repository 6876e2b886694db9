"""Make suspended jobs due when what they wait for has happened.

The transaction that ends a job wakes, after the job has left its table, the jobs that wait for that end. A job that is
being suspended at the same moment is not visible to it. So the transaction that suspends a job locks the row of the
awaited job until it commits. If it gets the lock, the end comes later and finds the waiting job. If the row is gone or
locked, the awaited job has ended or is about to, and the waiting job is made due at once: it checks, and waits on if
there is still something to wait for. The locks are taken last and without waiting, so these transactions never
deadlock. Because all of this is one commit, a process that dies right after it leaves no job waiting for a past event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mainspring.job import awaited_job, end_of
from mainspring.stores.engine import feed
from mainspring.stores.feed import ChangeKind, JobRef
from mainspring.stores.postgres.rows import only_ids
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import PENDING, SUSPENDED

MAX_WAKES = 2**31 - 1  # per key; the largest integer that the SQL function accepts
WAKE = """
SELECT woken.*, EXISTS (SELECT 1 FROM {s}.readers)
FROM {s}.wake(%(keys)s::text[], %(numbers)s::integer[], {now}) AS woken
"""
WAKE_FOR_ENDS = "SELECT {s}.wake_for_ends(%(ids)s::uuid[], {now})"
ENDED_OR_ENDING = """
WITH held AS MATERIALIZED (
    SELECT id FROM {s}.jobs WHERE id = ANY(%(ids)s::uuid[]) FOR KEY SHARE SKIP LOCKED
)
SELECT id::text FROM unnest(%(ids)s::uuid[]) AS awaited(id)
WHERE NOT EXISTS (SELECT 1 FROM held WHERE held.id = awaited.id)
"""
DUE_AFTER_ALL = f"""
UPDATE {{s}}.jobs SET status = {PENDING}, run_at = {{now}}, waits_for = NULL -- as engine.change.woken decides
WHERE id = ANY(%(ids)s::uuid[]) AND waits_for = ANY(%(keys)s) RETURNING queue, task, id::text, target_type, target_id
"""


async def wake(transaction: Transaction, keys: Mapping[str, int]) -> dict[str, int]:
    wanted = {key: min(number, MAX_WAKES) for key, number in keys.items() if number > 0}
    woken = dict.fromkeys(keys, 0)
    for key, queue, number, heard in await transaction.rows(WAKE, keys=list(wanted), numbers=list(wanted.values())):
        woken[key] += number
        transaction.woken.add(queue)
        transaction.note_readers(heard)
    return woken


async def wake_for_ends(transaction: Transaction, ids: Sequence[str]) -> None:
    """Wake the jobs that wait for the end of these jobs, which have just left the live table."""
    transaction.woken.update(await transaction.value(WAKE_FOR_ENDS, ids=list(ids)))


async def watch(transaction: Transaction, keys: Mapping[str, str]) -> None:
    """Make due those of the jobs suspended by this transaction (job -> waits_for) whose awaited job is not live."""
    awaited = only_ids({awaited_job(key) for key in keys.values()})
    ended = await transaction.rows(ENDED_OR_ENDING, ids=awaited) if awaited else []
    if not ended:
        return
    called = [end_of(job_id) for (job_id,) in ended]
    due = await transaction.rows(DUE_AFTER_ALL, ids=list(keys), keys=called)
    by_place: dict[feed.Place, list[str | JobRef]] = {}
    for queue, task, *job in due:
        by_place.setdefault((queue, task), []).append(JobRef(*job))
    await transaction.record(feed.entries(ChangeKind.RESUMED, by_place))
    for queue, number in Counter(queue for queue, *_ in due).items():
        transaction.count(queue, SUSPENDED, -number)
        transaction.count(queue, PENDING, number)
        transaction.woken.add(queue)
