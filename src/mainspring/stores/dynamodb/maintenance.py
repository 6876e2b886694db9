"""Maintain the table: take over the jobs of dead workers, remove what has expired, and check the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mainspring.clock import Clock, Millis, may_delete
from mainspring.errors import StoreError
from mainspring.job import Outcome, Status
from mainspring.stores.dynamodb import acks, changes, documents, halts, schema, steps, wakeups, workers
from mainspring.stores.dynamodb.admin import forget_belongings
from mainspring.stores.dynamodb.client import ConditionFailed
from mainspring.stores.dynamodb.counts import Counts, day_of
from mainspring.stores.dynamodb.items import bucket, key, stamp, state_of, status_of
from mainspring.stores.dynamodb.journal import JOURNAL
from mainspring.stores.dynamodb.read import what_runs
from mainspring.stores.dynamodb.table import Table, owned, together
from mainspring.stores.dynamodb.values import Condition, Row, absent, delete, equals
from mainspring.stores.engine.ack import JobState, crashed, stalled, takeover
from mainspring.stores.numbers import Measure
from mainspring.stores.protocol import AfterStall, Finding, Reaped, Severity, Takeover
from mainspring.stores.workers import TimedRun, Watch

SWEEP_EVERY = 600.0  # seconds
BURIED_WATCH = 600.0  # seconds during which the index may still show a late claim of a dead worker


class TableWatch(Watch):
    """Also remembers what the index may show too late, or what other processes have left to do."""

    def __init__(self, clock: Clock, lease: float) -> None:
        super().__init__(clock, lease)
        self.buried: dict[str, float] = {}  # dead worker -> when this process first saw it as dead
        self.processes: frozenset[str] = frozenset()  # those with a worker that is not dead
        self.pending_wakeups: set[wakeups.PendingWakeup] = set()  # those that were pending at the last look


async def reap(table: Table, watch: TableWatch, after_stall: AfterStall) -> Reaped:
    with watch.looking():
        rows = await workers.listing(table)
    now = table.clock.monotonic()
    living = [row for row in rows if "buried" not in row]
    silent = [row for row in living if watch.is_silent(row["SK"], row["beat"])]
    dead = [row["SK"] for row in silent if await workers.bury(table, row["SK"], row["beat"])]
    found_dead = frozenset(dead)
    alive = [row for row in living if row["SK"] not in dead]
    watch.processes = frozenset(row["process"] for row in alive if row["process"])
    watch.forget_others({row["SK"] for row in rows})
    dead += still_watched(watch, [row["SK"] for row in rows if "buried" in row], now)
    crashed = await together([take_from_dead(table, worker) for worker in dead])
    stalled = await take_stalled(table, watch, [row["SK"] for row in alive], after_stall)
    await wake_pending(table, watch)
    return Reaped([takeover for taken in crashed for takeover in taken] + stalled, found_dead)


async def wake_pending(table: Table, watch: TableWatch) -> None:
    """Carry out wake-ups that were pending at the last look already: the process that ended the job has likely died."""
    pending = await wakeups.pending(table)
    await wakeups.carry_out(table, pending & watch.pending_wakeups)
    watch.pending_wakeups = pending


def still_watched(watch: TableWatch, buried: Sequence[str], now: float) -> list[str]:
    """Return dead workers of which the index may still show a late claim."""
    watch.buried = {worker: watch.buried.get(worker, now) for worker in buried}
    return [worker for worker in buried if now - watch.buried[worker] < BURIED_WATCH]


async def held_by(table: Table, worker: str) -> list[Row]:
    """Return the jobs that a worker runs, checked in the table itself and not only in the index."""
    entries = await what_runs(table, worker)
    rows = await table.get_many([table.job_key(entry["SK"]) for entry in entries])
    return sorted(
        (row for row in rows if status_of(row) is Status.RUNNING and row["locked_by"] == worker),
        key=lambda row: str(row["SK"]),
    )


async def take_from_dead(table: Table, worker: str) -> list[Takeover]:
    jobs = [state_of(row) for row in await held_by(table, worker)]
    return await take_over(table, [(job, crashed(job)) for job in jobs])


async def take_stalled(
    table: Table, watch: TableWatch, living: Sequence[str], after_stall: AfterStall
) -> list[Takeover]:
    """Take over runs that last too long, of the workers that this process watches."""
    ours = [worker for worker in living if owned(worker, table.process, watch.processes)]
    entries = [entry for found in await together([what_runs(table, worker) for worker in ours]) for entry in found]
    timed = (entry for entry in entries if "timeout" in entry)
    runs = (TimedRun(entry["SK"], entry["token"], entry["timeout"] + table.stall_grace) for entry in timed)
    late = [(run.id, run.token) for run in watch.overdue(runs)]
    rows = await table.get_many([table.job_key(job_id) for job_id, _ in late])
    jobs = [state_of(row) for row in rows if (row["SK"], row["token"]) in late and status_of(row) is Status.RUNNING]
    return await take_over(table, [(job, stalled(job, after_stall)) for job in jobs])


async def take_over(table: Table, ended: Sequence[tuple[JobState, Outcome]]) -> list[Takeover]:
    """End runs like any ack, so that the fence, the counts and the history have one implementation."""
    taken = []
    for job, outcome in ended:
        status = await acks.take_over(table, job, outcome)
        if status is not None:
            table.local_workers.warn(job.worker or "")
            table.numbers.add(table.clock.now(), job.queue, job.task, Measure.STALLED)
            taken.append(takeover(job, outcome, status))
    return taken


# -- retention ------------------------------------------------------------------------------------------


async def prune(table: Table, limit: int, keep_audit: Millis) -> int:
    """Remove what has expired. Jobs are removed only if the service does not do it: that reads the whole table."""
    now = table.clock.now()
    if not may_delete(table.clock):
        return 0
    await halts.end_expired(table)
    swept = await sweep(table, limit, stamp(max(0, now - keep_audit)))
    if table.recording is not None:
        await changes.move(table)  # before the jobs expire that have these changes
    if not table.prunes:
        return swept
    await changes.prune(table, limit)
    over = Condition("{name} <= {value}", "expires_at", stamp(now))
    removed = swept
    for shard in range(table.shards):
        pages = table.query(equals("PK", bucket(shard)), only=[over], consistent=True)
        while pages.more and removed < limit:
            rows = (await pages.next())[: limit - removed]
            removed += sum(await together([prune_one(table, row) for row in rows]))
    return removed + await documents.prune(table, limit - removed)


async def sweep(table: Table, limit: int, oldest: str) -> int:
    """Remove, every few minutes, what is left of jobs that are gone. It is little, and nothing reads it."""
    now = table.clock.monotonic()
    if table.swept_at is not None and now - table.swept_at < SWEEP_EVERY:
        return 0
    swept = await steps.sweep(table, limit) + await prune_audit(table, limit, oldest)
    if swept < limit:
        table.swept_at = now
    return swept


async def prune_audit(table: Table, limit: int, oldest: str) -> int:
    """Delete entries of the audit log that are older than that."""
    old = table.query(equals("PK", "audit"), Condition("{name} < {value}", "SK", oldest), limit=limit)
    rows = (await old.next())[:limit]
    await together([table.delete(delete(key("audit", row["SK"]))) for row in rows])
    return len(rows)


async def prune_one(table: Table, row: Row) -> bool:
    """Delete an expired job, unless it was retried by hand meanwhile."""
    same = [equals("expires_at", row["expires_at"]), equals("token", row["token"]), absent(JOURNAL)]
    try:
        await table.delete(delete(table.job_key(row["SK"]), same))
    except ConditionFailed:
        return False
    table.counts.add(row["queue"], status_of(row), -1, day_of(status_of(row), row["expires_at"]))
    await forget_belongings(table, row, lines=True)
    return True


# -- checking -------------------------------------------------------------------------------------------


async def diagnose(table: Table) -> list[Finding]:
    findings = [Finding(Severity.OK, "table", f"{table.name} in {table.client.region}, {table.shards} shards")]
    findings += await check_expiry(table)
    beside = {"calls", "unprocessed"}
    setbacks = {kind: number for kind, number in table.client.tally.items() if kind not in beside and number}
    if setbacks:
        told = ", ".join(f"{number} × {kind}" for kind, number in sorted(setbacks.items()))
        advice = "raise the table's capacity, or see docs/dynamodb.md on shards" if "throttled" in setbacks else ""
        calls = table.client.tally["calls"]
        findings.append(Finding(Severity.WARNING, "setbacks", f"of {calls} calls: {told}", advice))
    return findings


async def check_expiry(table: Table) -> Iterable[Finding]:
    try:
        on = await schema.expires(table)
    except StoreError as error:
        return [Finding(Severity.WARNING, "expiry", f"cannot be read: {error}")]
    if on or table.prunes:
        return [Finding(Severity.OK, "expiry", "by the service" if on else "by the workers")]
    advice = "run `mainspring migrate`, or write prune=on into the URL"
    return [Finding(Severity.WARNING, "expiry", "nothing deletes jobs whose retention is over", advice)]


async def repair(table: Table) -> None:
    """Count the jobs anew. Jobs that move meanwhile may be counted wrongly, so do it while little happens."""
    fresh = Counts()
    for shard in range(table.shards):
        pages = table.query(equals("PK", bucket(shard)), consistent=True)
        while pages.more:
            for row in await pages.next():
                status = status_of(row)
                fresh.add(row["queue"], status, 1, day_of(status, row.get("expires_at")))
    await table.delete_many([key(row["PK"], row["SK"]) for row in await table.read_counts()])
    table.counts.take()
    table.counts.restore(fresh.take())
    await table.write_counts()
