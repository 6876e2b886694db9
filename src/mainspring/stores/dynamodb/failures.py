"""Failure groups: notes about failed runs, and an entry for each job of a group.

PK=failed#<fingerprint>#<shard>, SK=<job>    jobs whose last failure was this one, now or before

An entry is written in the transaction that ends the run. It may be out of date: the job itself decides. So the table
needs no index by fingerprint, and the list is as consistent as the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.clock import Millis
from mainspring.stores.dynamodb.document_items import register_collections, to_item
from mainspring.stores.dynamodb.items import history, shard_of, ttl
from mainspring.stores.dynamodb.table import Action, Table
from mainspring.stores.dynamodb.values import Condition, Row, equals, put, put_item
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.failures import MAX_PAST_FAILURES, NOTES, may_have_failed_twice, notes

ENTRY_MARGIN: Millis = 30 * 86_400_000  # an entry is kept longer than its job by this


def group_part(fingerprint: str, shard: int) -> str:
    return f"failed#{fingerprint}#{shard:03d}"


def entry_of(fingerprint: str, job_id: str, shards: int, expiry: Millis) -> Row:
    return {"PK": group_part(fingerprint, shard_of(job_id, shards)), "SK": job_id, "ttl": ttl(expiry)}


def failure_actions(table: Table, job: JobState, end: Conclusion, now: Millis, past: Sequence[str]) -> list[Action]:
    """Return the writes that belong to a failed run, or to a success that follows a failure."""
    noted = notes([(job, end)], now, {job.id: past})
    actions: list[Action] = [("Put", put_item(to_item(note))) for note in noted]
    if end.failure is not None:
        expiry = max(now, end.run_at) + max(job.keep, job.keep_dead) + ENTRY_MARGIN
        actions.append(("Put", put(entry_of(end.failure.fingerprint, job.id, table.shards, expiry))))
    return actions


async def past_failures(table: Table, job: JobState) -> list[str]:
    """Return the fingerprints of the last failures of a job, newest first; none if it has failed at most once."""
    if not may_have_failed_twice(job):
        return []
    begins = Condition("begins_with({name}, {value})", "SK", "run#")
    pages = table.query(
        equals("PK", history(job.id)), begins, limit=MAX_PAST_FAILURES, newest_first=True, consistent=True
    )
    runs = await table.first(pages, MAX_PAST_FAILURES)
    return [run["fingerprint"] for run in runs if "fingerprint" in run]


async def register_notes(table: Table) -> None:
    """Make the collection of the notes known, as any first write to a collection does."""
    await register_collections(table, {NOTES})
