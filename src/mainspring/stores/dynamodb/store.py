"""The store in one DynamoDB table: each method of the protocol, and the module that implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlencode

from mainspring.clock import Clock, Millis, SteadyClock
from mainspring.errors import ConfigurationError, UnsupportedCall
from mainspring.job import (
    Attempt,
    Inserted,
    Job,
    Move,
    NewJob,
    Outcome,
    ProgressReport,
    Save,
    Status,
    Step,
    TimelineEntry,
)
from mainspring.log import get_log
from mainspring.stores.audit import audit_spot
from mainspring.stores.documents import Bundle, By, Document, Due, Key, Listing
from mainspring.stores.dynamodb import (
    acks,
    admin,
    changes,
    claims,
    documents,
    halts,
    insertion,
    last_numbers,
    layout,
    maintenance,
    numbers,
    read,
    rewrites,
    schema,
    steps,
    transfer,
    wakeups,
    workers,
)
from mainspring.stores.dynamodb.client import Client, TableMissing
from mainspring.stores.dynamodb.local_workers import LONGEST_POLL, MAX_POLL, SHORTEST_POLL
from mainspring.stores.dynamodb.schema import MAX_SHARDS, TableSettings
from mainspring.stores.dynamodb.table import Table
from mainspring.stores.engine.change import ChangeRequest, refuse_negative
from mainspring.stores.engine.creation import refuse_unkeepable
from mainspring.stores.feed import ChangePage, parse_cursor
from mainspring.stores.numbers import Figure, NumbersQuery
from mainspring.stores.paging import check_limit, check_page, page_request
from mainspring.stores.protocol import (
    AUDIT_RETENTION,
    Action,
    AfterStall,
    AuditEntry,
    AuditFilter,
    CappedCount,
    Changed,
    Claims,
    Completable,
    Completion,
    Edit,
    Filter,
    Finding,
    Halt,
    Page,
    Pulse,
    Reaped,
    Rewrite,
    Sort,
    Stats,
    Wake,
    Want,
    WorkerInfo,
    retry_at_once,
)
from mainspring.stores.records import Kind, Record, RecordPage
from mainspring.stores.sorting import Order
from mainspring.stores.suggestions import searched

T = TypeVar("T")
log = get_log("mainspring.dynamodb")

NO_TRANSACTIONS = "DynamoDB has no transaction that your code and a job could share; use sqlite:// or postgresql://"


class DynamoStore:
    """Jobs in one table of DynamoDB, for any number of processes on any number of machines."""

    transactional = False

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        profile: str | None = None,
        shards: int | None = None,
        prefix: str | None = None,
        keys: str | None = None,
        clock: Clock | None = None,
        lease: float = 30.0,
        stall_grace: Millis = 30_000,
        poll: float = LONGEST_POLL,
        patience: Millis = 60_000,
        migrate: bool = False,
        prune: bool = False,
        table_settings: TableSettings | None = None,
        client: Client | None = None,
    ) -> None:
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            msg = f"shards must be from 1 to {MAX_SHARDS}, not {shards}"
            raise ConfigurationError(msg)
        if not SHORTEST_POLL <= poll <= MAX_POLL:
            msg = f"poll must be from {SHORTEST_POLL:g} to {MAX_POLL:g} seconds, not {poll:g}"
            raise ConfigurationError(msg)
        self.clock: Clock = clock or SteadyClock()
        self.lease = lease
        self.stall_grace = stall_grace
        self.poll = poll
        self.client = client or Client(region, endpoint, profile)
        self.table_settings = table_settings or TableSettings(expiry=not prune)
        self.table = Table(self.client, table, self.clock, lease, stall_grace, patience, prunes=prune)
        self.table.local_workers.longest_poll = poll
        if prefix is not None:
            self.table.lay_out(layout.shared(prefix, keys))
        elif keys is not None:
            msg = "keys is for a table that is shared with other data; also give a prefix, such as prefix=mainspring/"
            raise ConfigurationError(msg)
        self.url = safe_url(table, self.client, endpoint, prefix, keys)
        self._wanted_shards = shards
        self._migrate = migrate
        self._watch = maintenance.TableWatch(self.clock, lease)
        self._lost: dict[str, dict[tuple[str, str], float]] = {}  # worker -> (job, claim) never answered, and when
        self._turn = 0
        self._is_open = False

    # -- opening ------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            return
        if self._migrate:
            await self.migrate()
        self.table.shards = await schema.shards_of(self.table, self._wanted_shards)
        self._is_open = True
        last_numbers.expect_exit(self.table)

    async def close(self) -> None:
        await self.table.finish()
        if self._is_open:
            await self.table.write_counts()
            await numbers.write(self.table)
        self.table.local_workers.close()
        await self.client.close()
        self._is_open = False
        last_numbers.forget(self.table)

    async def version(self) -> int:
        """Return the table's version, or 0 if the table does not exist or Mainspring has not set it up."""
        try:
            found = await schema.about(self.table)
        except TableMissing:
            return 0
        return 0 if found is None else int(found["version"])

    async def migrate(self) -> list[str]:
        """Create the table, or add what is missing to a shared one; return the names of what was done."""
        return await schema.migrate(self.table, self.table_settings, self._wanted_shards or schema.DEFAULT_SHARDS)

    def plan_table(self, *, read_units: int | None, write_units: int | None, recovery: bool) -> None:
        if (read_units is None) != (write_units is None):
            msg = "give provisioned units for reads and for writes, or for neither (then AWS bills each request)"
            raise ConfigurationError(msg)
        self.table_settings = replace(
            self.table_settings, read_units=read_units, write_units=write_units, recovery=recovery
        )

    def template(self, form: str) -> str:
        return schema.TEMPLATES[form](self.table.name, self.table_settings, self.table.layout)

    async def _do(self, operation: Awaitable[T]) -> T:
        """Run an operation that changes jobs, and write its counts from time to time."""
        result = await operation
        self.table.settle()
        numbers.settle(self.table)
        return result

    async def _record(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation whose changes are in the change feed."""
        try:
            async with changes.writing(self.table):
                return await self._do(operation)
        finally:
            operation.close()  # if it was not started, Python would warn

    # -- jobs ---------------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is not None:
            raise ConfigurationError(NO_TRANSACTIONS)
        refuse_unkeepable(jobs)
        await self.open()
        return await self._record(insertion.insert(self.table, list(jobs))) if jobs else []

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: frozenset[str] | None = None,
        version: str = "",
    ) -> Claims:
        await self.open()
        self._turn += 1
        most = sum(want.limit for want in wants) if limit is None else limit
        request = claims.ClaimRequest(worker, wants, most, solo, tasks, self._turn, version, self._watch.processes)
        try:
            async with changes.writing(self.table):
                found = await claims.claim(self.table, request)
        except BaseException:  # jobs that it took are released later; also if this task was cancelled
            lost = self._lost.setdefault(worker, {})
            lost.update(dict.fromkeys(((job_id, request.number) for job_id in request.tried), self.clock.monotonic()))
            raise
        claims.count_starts(self.table, found.jobs)
        self.table.local_workers.after_claim(worker, fruitful=bool(found.jobs))
        self.table.settle()
        return found

    async def _give_back_lost(self, worker: str) -> None:
        """Release jobs of lost claims. This is repeated for a while, because a late write may still arrive."""
        lost = self._lost.get(worker)
        if not lost:
            return
        numbers = {number for _, number in lost}
        rows = await claims.find_lost(self.table, [job_id for job_id, _ in lost], numbers)
        if rows:
            log.warning("lost_claims_given_back", worker=worker, jobs=len(rows))
            await self._record(claims.give_back(self.table, rows))
        before = self.clock.monotonic() - changes.LATE_WRITE
        for claim in [claim for claim, since in lost.items() if since < before]:
            del lost[claim]

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        await self.open()
        return await self._record(acks.ack(self.table, list(outcomes)))

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        await self.open()
        return await self._record(acks.report(self.table, list(reports)))

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        refuse_unkeepable(job for save in saves for job in save.jobs)
        await self.open()
        return await self._record(steps.save(self.table, list(saves)))

    async def steps(self, job_id: str) -> list[Step]:
        await self.open()
        return await steps.read(self.table, job_id)

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        refuse_negative(keys)
        await self.open()
        return await self._record(wakeups.wake(self.table, keys))

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        raise UnsupportedCall(NO_TRANSACTIONS)

    # -- workers ------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        await self.open()
        await self._record(workers.join(self.table, worker))
        if wake is None:
            self.table.local_workers.leave(worker.id)
        else:
            self.table.local_workers.join(worker, wake)

    async def leave(self, worker: str) -> None:
        """Remove a worker that shuts down, and release the jobs that it may still hold. It did not crash."""
        await self.open()
        self.table.local_workers.leave(worker)
        await self._give_back_lost(worker)
        held = {row["SK"]: row for row in await maintenance.held_by(self.table, worker)}
        known = self.table.held.pop(worker, {})
        releases = [Outcome(job_id, row["token"], Move.RELEASE, ref=row) for job_id, row in held.items()]
        releases += [Outcome(job_id, token, Move.RELEASE) for job_id, token in known.items() if job_id not in held]
        await self._record(acks.ack(self.table, releases))
        await self._record(workers.forget(self.table, worker))

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        await self.open()
        row = await workers.sign_of_life(self.table, worker, {"stuck": stuck})
        if "info" not in row and worker in self.table.local_workers.members:
            await self._record(workers.join(self.table, self.table.local_workers.members[worker].info))
        await self._give_back_lost(worker)
        known = "info" in row or worker in self.table.local_workers.members
        return replace(await self._do(workers.pulse(self.table, worker, held)), known=known)

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        await self.open()
        try:
            return await self._record(maintenance.reap(self.table, self._watch, after_stall))
        except BaseException:  # also if reading whether changes are recorded fails: see Watch.looking
            self._watch.forget_others(set())
            raise

    async def prune(self, limit: int = 1000, *, keep_audit: Millis = AUDIT_RETENTION) -> int:
        await self.open()
        return await self._record(maintenance.prune(self.table, limit, keep_audit))

    # -- reading ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, within: Sequence[str] = ()) -> list[Job]:
        await self.open()
        return await read.get(self.table, ids, within)

    async def tags(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        await self.open()
        return await read.tags(self.table, ids)

    async def find(
        self,
        where: Filter,
        *,
        sort: Sort = Sort.CREATED,
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        order = Order(sort, descending)
        request = page_request(where, order, limit, cursor)
        await self.open()
        return await read.find(self.table, request)

    async def count(self, where: Filter) -> int:
        await self.open()
        return await read.count(self.table, where)

    async def count_up_to(self, where: Filter, cap: int) -> CappedCount:
        check_limit(cap, "cap")
        await self.open()
        return await read.count_up_to(self.table, where, cap)

    async def dead_letters(
        self, fingerprints: Sequence[str], cap: int, *, within: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        check_limit(cap, "cap")
        await self.open()
        return await read.dead_letters(self.table, list(fingerprints), cap, within)

    async def complete(
        self,
        what: Completable,
        prefix: str,
        *,
        limit: int = 20,
        task: str | None = None,
        within: Sequence[str] = (),
    ) -> list[str]:
        check_limit(limit)
        await self.open()
        return await read.complete(self.table, what, prefix, limit, searched(task, within))

    async def attempts(self, job_id: str) -> list[Attempt]:
        await self.open()
        return await read.attempts(self.table, job_id)

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        await self.open()
        return await read.timeline(self.table, job_id)

    async def audit(
        self, where: AuditFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> list[AuditEntry]:
        check_limit(limit)
        spot = audit_spot(cursor)
        await self.open()
        return await read.audit(self.table, where or AuditFilter(), limit, spot)

    async def halts(self) -> list[Halt]:
        await self.open()
        return await halts.standing(self.table)

    async def confirm(self, worker: str, number: int) -> None:
        await self.open()
        await workers.confirm(self.table, worker, number)

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        await self.open()
        late = await halts.unconfirmed(self.table, halt)
        return [info for info in map(self._watch.with_liveness, late) if info.alive]

    async def changes(
        self, after: str | None = None, *, limit: int = 500, starts: bool = False, until: str | None = None
    ) -> ChangePage:
        """Read the feed. Changes are recorded from the first call on, until no process has read for the retention."""
        cursor, end = parse_cursor(after), parse_cursor(until)
        await self.open()
        page = await changes.read(self.table, cursor, limit, starts=starts)
        return page if end is None else page.up_to(end)

    def watching(self, notice: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return changes.watching(self.table, notice)

    async def numbers(self, query: NumbersQuery) -> list[Figure]:
        await self.open()
        return await numbers.read(self.table, query)

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        await self.open()
        stats = await read.stats(self.table, within)
        stats.workers[:] = [self._watch.with_liveness(info) for info in stats.workers]
        return replace(stats, measures=self.measures())

    def measures(self) -> Mapping[str, float]:
        return self.client.measures()

    async def diagnose(self) -> list[Finding]:
        await self.open()
        return await maintenance.diagnose(self.table)

    async def repair(self) -> None:
        await self.open()
        await maintenance.repair(self.table)

    # -- manual operations --------------------------------------------------------------------

    async def change(
        self,
        action: Action,
        where: Filter,
        by: By,
        *,
        edit: Edit | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        expect: str | None = None,
    ) -> Changed:
        check_page(limit, cursor)
        await self.open()
        request = ChangeRequest(action, where, by, edit, limit, cursor, dry_run, expect)
        return await self._record(admin.change(self.table, request))

    async def halt(self, halt: Halt) -> Halt:
        await self.open()
        return await self._record(admin.halt(self.table, halt))

    async def resume(self, by: By, queue: str | None = None) -> bool:
        await self.open()
        return await self._record(admin.resume(self.table, by, queue))

    # -- documents ----------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        refuse_unkeepable(job for bundle in bundles for job in bundle.jobs)
        await self.open()
        return await self._record(documents.write(self.table, bundles))

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        await self.open()
        return await documents.documents(self.table, keys)

    async def browse(self, listing: Listing) -> list[Document]:
        await self.open()
        return await documents.browse(self.table, listing)

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        await self.open()
        return await documents.due(self.table, collection, limit, ahead)

    # -- moving to another store --------------------------------------------------------------

    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> RecordPage:
        await self.open()
        return await transfer.dump(self.table, kind, after, limit)

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        await self.open()
        return await transfer.look_up(self.table, kind, keys)

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        await self.open()
        return await self._do(transfer.load(self.table, kind, records))

    async def rewrite(self, texts: Sequence[Rewrite]) -> int:
        await self.open()
        return await self._do(rewrites.rewrite(self.table, texts))

    async def sizes(self) -> Mapping[Kind, int]:
        await self.open()
        return await transfer.sizes(self.table)

    async def under_way(self) -> int:
        await self.open()
        return await transfer.under_way(self.table)


def safe_url(table: str, client: Client, endpoint: str | None, prefix: str | None, keys: str | None) -> str:
    query = {"region": client.region} | ({"endpoint": client.endpoint.rstrip("/")} if endpoint else {})
    query |= {name: text for name, text in (("prefix", prefix), ("keys", keys)) if text is not None}
    return f"dynamodb://{table}?{urlencode(query, safe=':/,')}"
