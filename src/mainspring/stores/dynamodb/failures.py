"""Failure groups: notes about failed runs, and an entry for each job of a group.

PK=failed#<fingerprint>#<shard>, SK=<job>    jobs whose last failure was this one, now or before

An entry is written in the transaction that ends the run. It may be out of date: the job itself decides. So the table
needs no index by fingerprint, and the list is as consistent as the jobs.
"""

from __future__ import annotations

from mainspring.clock import Millis
from mainspring.stores.dynamodb.document_items import register_collections, to_item
from mainspring.stores.dynamodb.items import shard_of, ttl
from mainspring.stores.dynamodb.table import Action, Table
from mainspring.stores.dynamodb.values import Row, put, put_item
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import NOTES, notes

ENTRY_MARGIN: Millis = 30 * 86_400_000  # an entry is kept longer than its job by this


def group_part(fingerprint: str, shard: int) -> str:
    return f"failed#{fingerprint}#{shard:03d}"


def entry_of(fingerprint: str, job_id: str, shards: int, expiry: Millis) -> Row:
    return {"PK": group_part(fingerprint, shard_of(job_id, shards)), "SK": job_id, "ttl": ttl(expiry)}


def failure_actions(table: Table, job: JobState, end: Conclusion, now: Millis) -> list[Action]:
    """Return the writes that belong to a failed run, or to a success that follows a failure."""
    actions: list[Action] = [("Put", put_item(to_item(note))) for note in notes([(job, end)], now)]
    if end.failure is not None:
        expiry = max(now, end.run_at) + max(job.keep, job.keep_dead) + ENTRY_MARGIN
        actions.append(("Put", put(entry_of(end.failure.fingerprint, job.id, table.shards, expiry))))
    return actions


async def register_notes(table: Table) -> None:
    """Make the collection of the notes known, as any first write to a collection does."""
    await register_collections(table, {NOTES})
