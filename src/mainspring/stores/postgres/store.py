"""The store in one PostgreSQL schema: which connection runs each operation, and which workers are notified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar
from urllib.parse import urlencode

import psycopg

from mainspring.clock import Clock, Millis
from mainspring.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable
from mainspring.ids import new_id
from mainspring.job import Attempt, Inserted, Job, NewJob, Outcome, ProgressReport, Save, Status, Step, TimelineEntry
from mainspring.log import get_log
from mainspring.stores.audit import audit_spot
from mainspring.stores.documents import Bundle, By, Document, Due, Key, Listing
from mainspring.stores.engine import feed
from mainspring.stores.engine.change import ChangeRequest, refuse_negative
from mainspring.stores.engine.creation import refuse_unkeepable
from mainspring.stores.engine.halts import is_about, serves
from mainspring.stores.feed import ChangePage, parse_cursor
from mainspring.stores.numbers import Figure, NumbersQuery
from mainspring.stores.paging import check_limit, check_page, page_request
from mainspring.stores.postgres import (
    acks,
    admin,
    changes,
    claims,
    diagnosis,
    documents,
    failures,
    halts,
    insertion,
    maintenance,
    numbers,
    partitions,
    read,
    rewrites,
    schema,
    sorting,
    steps,
    suggestions,
    transfer,
    wakeups,
)
from mainspring.stores.postgres.changes import ChangeReader
from mainspring.stores.postgres.completion import ForeignCompletion, PostgresCompletion
from mainspring.stores.postgres.errors import ConnectionLost, explain
from mainspring.stores.postgres.foreign_connection import borrow
from mainspring.stores.postgres.group_commit import GroupCommit
from mainspring.stores.postgres.listen import (
    Listener,
    ReaderNotifier,
    SharedListener,
    channel,
    feed_channel,
    tell,
    tell_with_commit,
)
from mainspring.stores.postgres.pool import Connection, Pool, is_pooled, short_transaction
from mainspring.stores.postgres.transaction import PLAN_FREELY, Dialect, ServerClock, Transaction
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
from mainspring.stores.workers import Watch

T = TypeVar("T")
log = get_log("mainspring.postgres")

MAX_TRIES = 5  # of a transaction that conflicts with another, or needs a partition that does not exist yet
NOW = "SELECT {now}"
LATE_COMMIT = 120.0  # seconds for which the server may still commit what got no answer
MAX_LOST_INSERTS = 100_000  # jobs
BUSY_CLAIM = 10  # jobs in one claim after which a worker is no longer idle


class PostgresStore:
    """Jobs in one schema of a PostgreSQL database, for any number of processes on any number of machines."""

    poll = 0.0
    transactional = True

    def __init__(
        self,
        dsn: str,
        *,
        schema_name: str = schema.DEFAULT,
        listen_dsn: str | None = None,
        clock: Clock | None = None,
        lease: float = 30.0,
        stall_grace: Millis = 30_000,
        patience: Millis = 60_000,
        migrate: bool = True,
        prepare: bool | None = None,  # None: on, unless a pooler is in between
    ) -> None:
        self.schema = schema.checked(schema_name)
        self._server_clock = ServerClock()
        self.clock: Clock = clock or self._server_clock
        self.url = safe_url(dsn, self.schema)
        self.lease = lease
        self.stall_grace = stall_grace
        self.patience = patience
        self._migrate = migrate
        self._dialect = Dialect(self.schema, clock)
        self._pool = Pool(dsn, prepare=prepare is not False)
        self._detect_pooler = prepare is None
        self._listen_pool = Pool(checked_dsn(listen_dsn), prepare=False) if listen_dsn else self._pool
        self._inserts = GroupCommit(self._insert_all)
        self._saves = GroupCommit(self._save_all)
        self._joined: dict[str, WorkerInfo] = {}
        self._listeners: dict[str, Listener] = {}
        self._idle: set[str] = set()  # workers marked as idle in the database
        self._readers: dict[str, ChangeReader] = {}  # of this process
        self._reader_notifier = ReaderNotifier(self._pool, self._dialect)
        self._watch = Watch(self.clock, lease)
        self._waters: dict[str, claims.LowWater] = {}  # worker -> where its last look began
        self._turn = 0
        self._is_open = False
        self._lost_claims: dict[str, dict[int, float]] = {}  # worker -> claims that were never answered, and when
        self._lost_inserts: dict[str, None] = {}  # jobs whose insert was never answered, oldest first
        self._lost_acks: set[tuple[str, int]] = set()  # outcomes (job, token) that were never answered

    # -- opening ------------------------------------------------------------------------------

    async def open(self) -> None:
        if not self._is_open:
            await self._with_retries(self._open_once, repeatable=True)

    async def _open_once(self) -> None:
        async with self._pool.use() as connection:
            schema.refuse_old_server(connection)
            await self._notice_pooler(connection)
            version = await schema.version_of(connection, self.schema)
            schema.refuse_newer(version)
            if version < len(schema.scripts()):
                if not self._migrate:
                    latest = len(schema.scripts())
                    msg = f"schema {self.schema!r} has version {version} of {latest}; run `mainspring migrate` first"
                    raise ConfigurationError(msg)
                await schema.migrate(connection, self.schema)
            self._server_clock.set(await Transaction(connection, self._dialect).value(NOW))
        self._is_open = True

    async def _notice_pooler(self, connection: Connection) -> None:
        """Turn prepared statements off behind a pooler. The next statement may go to a connection without them."""
        if self._detect_pooler and await is_pooled(connection):
            connection.prepare_threshold = None
            if self._pool.prepare:
                self._pool.prepare = False
                log.info("pooler_noticed", store=self.url, prepare="off")

    async def version(self) -> int:
        """Return the version of the schema, or 0 if it does not exist or has no Mainspring tables."""
        async with self._pool.use() as connection:
            return await schema.version_of(connection, self.schema)

    async def migrate(self) -> list[str]:
        """Upgrade the schema and return the names of the migrations that were run."""
        async with self._pool.use() as connection:
            schema.refuse_old_server(connection)
            return await schema.migrate(connection, self.schema)

    async def close(self) -> None:
        for worker in list(self._listeners):
            await self._stop_listening(worker)
        await self._reader_notifier.close()
        await self._pool.close()
        if self._listen_pool is not self._pool:
            await self._listen_pool.close()
        self._is_open = False

    async def _run(self, operation: Callable[[Transaction], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Run an operation in a transaction; retry if another one conflicted, or a partition was missing.

        `repeatable`: retry also if the connection broke and it is unknown whether the transaction was committed.
        """
        await self.open()
        return await self._with_retries(lambda: self._run_once(operation), repeatable=repeatable)

    async def _run_alone(self, operation: Callable[[Transaction], Awaitable[T]], *, repeatable: bool = False) -> T:
        """Do the same for statements that are transactions by themselves."""

        async def run() -> T:
            async with self._pool.use() as connection:
                transaction = Transaction(connection, self._dialect)
                result = await operation(transaction)
                with contextlib.suppress(psycopg.Error):  # committed already; a worker not notified will poll
                    await tell(transaction, self._reader_notifier)
            return result

        await self.open()
        return await self._with_retries(run, repeatable=repeatable)

    async def _with_retries(self, work: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                return await work()
            except StoreError as error:
                is_lost = isinstance(error, ConnectionLost)
                if not tries_left or not (repeatable if is_lost else await self._worth_another_try(error)):
                    raise
        raise AssertionError  # the last try returned or raised

    async def _repeat_if_lost(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work that recognises its own lost answers; if the connection breaks, retry at once on a new one.

        One connection may break alone. If the server is down, connecting again fails, and that error is raised.
        """
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                return await work()
            except ConnectionLost:
                if not tries_left:
                    raise
        raise AssertionError  # the last try returned or raised

    async def _run_once(self, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        async with self._pool.use() as connection:
            transaction = Transaction(connection, self._dialect)
            async with short_transaction(connection, self.lease):
                result = await operation(transaction)
                await transaction.write_counts()
            with contextlib.suppress(psycopg.Error):  # committed already; a worker not notified will poll
                await tell(transaction, self._reader_notifier)
        return result

    async def _worth_another_try(self, error: StoreError) -> bool:
        day = partitions.missing(error.__cause__)
        if day is None:
            return isinstance(error, StoreBusy)
        await self._run_once(lambda transaction: partitions.make(transaction, {day}))
        return True

    async def _read(self, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        """Read; if the connection breaks, retry at once on a new one."""

        async def read_once() -> T:
            async with self._pool.use() as connection:
                return await operation(Transaction(connection, self._dialect))

        await self.open()
        return await self._with_retries(read_once, repeatable=True)

    async def _read_by_index(self, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        """Read by index, whatever the planner expects of the table."""

        async def read_so(transaction: Transaction) -> T:
            async with transaction.connection.transaction():
                await transaction.rows(PLAN_FREELY, freely="off")
                return await operation(transaction)

        return await self._read(read_so)

    # -- jobs ---------------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        refuse_unkeepable(jobs)
        if connection is not None:
            return await self._insert_on(connection, list(jobs))
        return await self._inserts.run(list(jobs))

    async def _insert_all(self, jobs: list[NewJob]) -> list[Inserted]:
        """Insert, and repeat if the answer was lost. That is safe, because the jobs bring their own ids."""
        try:
            return await self._insert_once(jobs)
        except StoreBusy:
            raise
        except StoreUnavailable:
            self._remember_unanswered(jobs)
            return await self._insert_once(jobs)

    async def _insert_once(self, jobs: list[NewJob]) -> list[Inserted]:
        if not jobs:
            return []
        if self._lost_inserts and any(job.id in self._lost_inserts for job in jobs):
            inserted = await self._run(lambda transaction: insertion.insert_again(transaction, jobs), repeatable=True)
            for job in jobs:
                self._lost_inserts.pop(job.id, None)
            return inserted
        if any(job.dedupe_key is not None for job in jobs):
            return await self._run(lambda transaction: insertion.insert(transaction, jobs))
        if len(jobs) >= insertion.COPY_THRESHOLD:
            try:
                return await self._run(lambda transaction: insertion.copy(transaction, jobs))
            except StoreError as error:
                if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):  # that is a repeated insert
                    raise
        if insertion.waits_for_an_end(jobs):
            return await self._run(lambda transaction: insertion.insert(transaction, jobs))
        return await self._run_alone(lambda transaction: insertion.insert_at_once(transaction, jobs))

    def _remember_unanswered(self, jobs: Sequence[NewJob]) -> None:
        self._lost_inserts.update(dict.fromkeys(job.id for job in jobs))
        while len(self._lost_inserts) > MAX_LOST_INSERTS:  # their callers have given up
            del self._lost_inserts[next(iter(self._lost_inserts))]

    async def _insert_on(self, connection: Any, jobs: list[NewJob]) -> list[Inserted]:
        """Insert in the caller's transaction; its commit sends the notification. Tables are created outside of it."""
        await self.open()
        transaction = Transaction(await borrow(connection), self._dialect)
        try:
            inserted = await insertion.insert(transaction, jobs, lent=True)
            await transaction.write_counts()
            await tell_with_commit(transaction)
        except psycopg.Error as error:
            raise explain(error) from error
        return inserted

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
        most = sum(want.limit for want in wants) if limit is None else limit
        bounds = self.stall_grace, self.patience
        request = claims.ClaimRequest(worker, wants, most, solo, tasks, *bounds, turn=0, version=version or None)
        return await self._repeat_if_lost(lambda: self._claim_by_turn(request))

    async def _claim_by_turn(self, request: claims.ClaimRequest) -> Claims:
        """Claim under a new number. If the answer is lost, the number shows which jobs it took, to release them."""
        self._turn += 1
        request = replace(request, turn=self._turn)
        try:
            return await self._claim_or_be_idle(request)
        except BaseException:  # the claim may be committed all the same, also if this task was cancelled
            lost = self._lost_claims.setdefault(request.worker, {})
            lost[request.turn] = self.clock.monotonic()
            raise

    async def _claim_or_be_idle(self, request: claims.ClaimRequest) -> Claims:
        worker = request.worker
        found = await self._claim(request)
        if not found.jobs and self._is_notified(worker) and worker not in self._idle:
            await self._mark_idle(worker, idle=True)
            found = await self._claim(request)
        if len(found.jobs) >= BUSY_CLAIM and worker in self._idle:
            with contextlib.suppress(StoreError):  # the worker has the jobs; a needless notification does no harm
                await self._mark_idle(worker, idle=False)
        return found

    def _is_notified(self, worker: str) -> bool:
        """Return whether the worker receives notifications. A worker that polls needs none."""
        return worker in self._listeners and self._listeners[worker].listening

    async def _claim(self, request: claims.ClaimRequest) -> Claims:
        water = self._waters.setdefault(request.worker, claims.LowWater(self.clock))
        return await self._run_alone(lambda transaction: claims.claim(transaction, request, water))

    async def _give_back_lost(self, transaction: Transaction, worker: str) -> None:
        """Release jobs of lost claims. This is repeated for a while, because a late commit may still arrive."""
        lost = self._lost_claims.get(worker)
        if not lost:
            return
        if number := await maintenance.give_back(transaction, worker, lost):
            log.warning("lost_claims_given_back", worker=worker, jobs=number)
        before = self.clock.monotonic() - LATE_COMMIT
        for claim in [claim for claim, since in lost.items() if since < before]:
            del lost[claim]

    async def _mark_idle(self, worker: str, *, idle: bool) -> None:
        await self._run(lambda transaction: transaction.do(maintenance.IDLE, id=worker, idle=idle), repeatable=True)
        (self._idle.add if idle else self._idle.discard)(worker)

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        ended = list(outcomes)
        statuses = await self._repeat_if_lost(lambda: self._ack_once(ended))
        return await self._fill_in_lost_acks(ended, statuses) if self._lost_acks else statuses

    async def _ack_once(self, ended: list[Outcome]) -> list[Status | None]:
        run = self._run_alone if acks.all_plain(ended) else self._run
        try:
            return await run(lambda transaction: acks.ack(transaction, ended))
        except StoreUnavailable:
            self._lost_acks.update((outcome.job_id, outcome.token) for outcome in ended)
            raise

    async def _fill_in_lost_acks(self, outcomes: list[Outcome], statuses: list[Status | None]) -> list[Status | None]:
        """Fill in the status of outcomes that were written although their answer got lost: those claims held."""
        keys = [(outcome.job_id, outcome.token) for outcome in outcomes]
        doubtful = [
            key for key, status in zip(keys, statuses, strict=True) if status is None and key in self._lost_acks
        ]
        known = await self._read(lambda transaction: acks.written_before(transaction, doubtful)) if doubtful else {}
        self._lost_acks.difference_update(keys)
        return [status or known.get(key) for key, status in zip(keys, statuses, strict=True)]

    async def report(self, reports: Sequence[ProgressReport]) -> set[str]:
        given = list(reports)
        accepted = await self._run(lambda transaction: acks.report(transaction, given), repeatable=True)
        return {report.job_id for report, good in zip(given, accepted, strict=True) if good}

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        refuse_unkeepable(job for save in saves for job in save.jobs)
        return await self._saves.run(list(saves))

    async def _save_all(self, saves: list[Save]) -> list[list[Inserted] | None]:
        """Save, and repeat if the answer was lost. That is safe, because steps have names and jobs ids."""
        try:
            return await self._save_once(saves)
        except StoreBusy:
            raise
        except StoreUnavailable:
            return await self._save_once(saves)

    async def _save_once(self, saves: list[Save]) -> list[list[Inserted] | None]:
        if not saves:
            return []
        run = self._run if any(save.jobs for save in saves) else self._run_alone
        return await run(lambda transaction: steps.save(transaction, saves))

    async def steps(self, job_id: str) -> list[Step]:
        return await self._read(lambda transaction: steps.of_job(transaction, job_id))

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        """Wake jobs, and repeat if the answer was lost. That may wake more than asked for: they check, and wait on."""
        refuse_negative(keys)
        return await self._run_alone(lambda transaction: wakeups.wake(transaction, keys), repeatable=True)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        if connection is not None:
            return ForeignCompletion(connection, self._dialect, outcome)
        return PostgresCompletion(self._pool, self._dialect, outcome)

    # -- workers ------------------------------------------------------------------------------

    async def join(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        if not worker.remote:
            await self._stop_listening(worker.id)
        await self._run(lambda transaction: maintenance.join(transaction, worker), repeatable=True)
        if worker.remote:
            await self._listen_for_remote(worker, wake)
        elif wake is not None:
            self._joined[worker.id] = worker
            self._listeners[worker.id] = Listener(self._listen_pool, channel(self.schema), worker.queues, wake)

    async def _listen_for_remote(self, worker: WorkerInfo, wake: Callable[[Wake], None] | None) -> None:
        """Have a remote worker woken on the connection that all of them share, or no longer."""
        self._idle.discard(worker.id)  # if it was declared dead, its row is new, and not marked as idle
        before = self._listeners.get(worker.id)
        if wake is None:
            await self._stop_listening(worker.id)
            return
        others = (listener for listener in self._listeners.values() if isinstance(listener, SharedListener))
        loop = asyncio.get_running_loop()
        shared = next((listener for listener in others if listener.loop is loop), None)
        if before is not None and before is not shared:
            await self._stop_listening(worker.id)
        shared = shared or SharedListener(self._listen_pool, channel(self.schema))
        self._listeners[worker.id] = shared
        shared.add(worker.id, worker.queues, wake)

    async def leave(self, worker: str) -> None:
        await self._stop_listening(worker)
        self._joined.pop(worker, None)
        self._idle.discard(worker)
        self._waters.pop(worker, None)
        self._lost_claims.pop(worker, None)
        if not self._joined:  # this process no longer watches other workers
            self._watch.stop()
        await self._run(lambda transaction: maintenance.leave(transaction, worker), repeatable=True)

    async def _stop_listening(self, worker: str) -> None:
        listener = self._listeners.pop(worker, None)
        if listener is None:
            return
        if isinstance(listener, SharedListener):
            listener.remove(worker)
            if listener.has_ears:
                return
        if listener.loop is asyncio.get_running_loop():
            await listener.stop()
        elif listener.loop.is_running():  # a loop that has ended would never answer
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(listener.stop(), listener.loop))

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        listener = self._listeners.get(worker)
        polling, lock = (False, None) if listener is None else (listener.polling, listener.lock)
        if isinstance(listener, SharedListener):
            lock = None  # this process may die, and the remote worker lives on
        key, server = (None, None) if lock is None else (lock.key, lock.server)

        async def beat(transaction: Transaction) -> Pulse:
            beat = await transaction.row(
                maintenance.BEAT, id=worker, polling=polling, stuck=stuck, lock=key, lock_server=server
            )
            now, self._dialect.has_readers = beat or (None, self._dialect.has_readers)
            if now is None and worker in self._joined:
                await maintenance.join(transaction, self._joined[worker])  # another worker declared it dead
                self._idle.discard(worker)
                if worker in self._listeners:
                    self._listeners[worker].look()  # it may sleep, and is not notified while it is not marked as idle
            self._server_clock.set(now or await transaction.value(NOW))
            await self._give_back_lost(transaction, worker)
            known = now is not None or worker in self._joined
            return replace(await maintenance.pulse(transaction, worker, held), known=known)

        run = self._run if self._lost_claims.get(worker) else self._run_alone
        pulse = await run(beat, repeatable=True)
        self._watch.dead.discard(worker)
        return pulse

    async def reap(self, after_stall: AfterStall = retry_at_once) -> Reaped:
        sight = await self._look()
        killed = await self._killed(sight)
        stalled = self._watch.overdue(sight.timed)
        known = sight.beats.keys() | set(sight.holders)
        self._watch.forget_others(known)
        silent = {worker for worker in known if self._watch.is_silent(worker, sight.beats.get(worker, -1))}
        self._watch.dead = killed | silent
        found = sorted(self._watch.dead)
        if not found and not stalled:
            return Reaped()

        async def take(transaction: Transaction) -> Reaped:
            dead = await maintenance.still_dead(transaction, found, sight.beats) if found else []
            taken = await maintenance.take_over(transaction, dead, stalled, after_stall)
            forgotten = await transaction.rows(maintenance.FORGET, ids=dead)
            await transaction.record(feed.died(worker) for (worker,) in forgotten)
            if forgotten:  # they may have died after a commit, before they notified others
                transaction.wake_everyone()
            return Reaped(taken, frozenset(worker for (worker,) in forgotten))

        try:
            return await self._run(take)
        except ConnectionLost:  # if it was committed, the second try finds nothing, and cannot tell which workers died
            return replace(await self._run(take, repeatable=True), dead=frozenset(found))

    async def _killed(self, sight: maintenance.Overview) -> set[str]:
        """Return the workers whose process has died: the server has freed the lock that its sessions held.

        A worker that only lost its connections opens new ones and sends heartbeats, so this looks a second time.
        """
        disconnected = [worker for worker in sight.disconnected if worker.worker not in self._joined]
        if not disconnected:
            return set()
        await asyncio.sleep(max(worker.confirmed_in for worker in disconnected))
        later = {worker.worker: worker.beat for worker in (await self._look()).disconnected}
        return {worker.worker for worker in disconnected if later.get(worker.worker) == worker.beat}

    async def _look(self) -> maintenance.Overview:
        with self._watch.looking():
            return await self._read(maintenance.look)

    async def prune(self, limit: int = 1000, *, keep_audit: Millis = AUDIT_RETENTION) -> int:
        return await self._run(lambda transaction: maintenance.prune(transaction, limit, keep_audit), repeatable=True)

    # -- reading ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, within: Sequence[str] = ()) -> list[Job]:
        return await self._read(lambda transaction: read.get(transaction, ids, within))

    async def tags(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return await self._read(lambda transaction: read.tags(transaction, ids))

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
        return await self._read(lambda transaction: sorting.find(transaction, request))

    async def count(self, where: Filter) -> int:
        return await self._read(lambda transaction: read.count(transaction, where))

    async def count_up_to(self, where: Filter, cap: int) -> CappedCount:
        check_limit(cap, "cap")
        return await self._read(lambda transaction: sorting.count_up_to(transaction, where, cap))

    async def dead_letters(
        self, fingerprints: Sequence[str], cap: int, *, within: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        check_limit(cap, "cap")
        known = list(fingerprints)
        return await self._read_by_index(lambda transaction: failures.dead_letters(transaction, known, cap, within))

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
        where = searched(task, within)
        return await self._read(lambda transaction: suggestions.complete(transaction, what, prefix, limit, where))

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._read(lambda transaction: read.attempts(transaction, job_id))

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        return await self._read(lambda transaction: read.timeline(transaction, job_id))

    async def audit(
        self, where: AuditFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> list[AuditEntry]:
        check_limit(limit)
        spot = audit_spot(cursor)
        return await self._read(lambda transaction: read.audit(transaction, where or AuditFilter(), limit, spot))

    async def halts(self) -> list[Halt]:
        return await self._read(halts.current_halts)

    async def confirm(self, worker: str, number: int) -> None:
        await self._run_alone(lambda transaction: halts.confirm(transaction, worker, number), repeatable=True)

    async def unconfirmed(self, halt: Halt) -> list[WorkerInfo]:
        async def look(transaction: Transaction) -> list[WorkerInfo]:
            if await halts.is_over(transaction, halt):
                return []
            confirmed = await halts.confirmed_by(transaction, halt.number)
            return [info for info in await read.workers(transaction) if info.id not in confirmed and serves(info, halt)]

        return [info for info in self._living(await self._read(look)) if info.alive]

    async def changes(
        self, after: str | None = None, *, limit: int = 500, starts: bool = False, until: str | None = None
    ) -> ChangePage:
        """Read the feed. If there is nothing new, first mark this process's readers as idle, and look once more."""
        cursor, end = parse_cursor(after), parse_cursor(until)
        page = await self._read(lambda transaction: changes.read(transaction, cursor, limit, starts=starts, end_at=end))
        if end is not None:
            return page  # it says nothing about the end of the feed
        for reader in list(self._readers.values()):
            if await reader.mark(idle=not page.entries and not page.reset) and not page.entries:
                page = await self._read(lambda transaction: changes.read(transaction, cursor, limit, starts=starts))
        if page.entries and len(self._readers) > 1:
            self._notice_readers()  # the others may sleep, and are not notified while this one is marked as busy
        return page

    def _notice_readers(self) -> None:
        for reader in list(self._readers.values()):
            reader.notice()

    @contextlib.asynccontextmanager
    async def watching(self, notice: Callable[[], None]) -> AsyncIterator[None]:
        """Call `notice` for each notification that the feed has grown; without a connection, once a second."""
        await self.open()
        reader = ChangeReader(new_id(), lambda work: self._run(work, repeatable=True), notice)
        listener = Listener(self._listen_pool, feed_channel(self.schema), (), lambda _: notice(), shows_life=False)
        self._readers[reader.id] = reader
        try:
            async with reader.shown():
                yield
        finally:
            del self._readers[reader.id]
            await listener.stop()

    async def numbers(self, query: NumbersQuery) -> list[Figure]:
        return await self._read(lambda transaction: numbers.read(transaction, query))

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        async def look(transaction: Transaction) -> Stats:
            stats = await read.stats(transaction, within)
            stats.halts.extend(halt for halt in await halts.current_halts(transaction) if is_about(halt, within))
            return stats

        stats = await self._read(look)
        stats.workers[:] = self._living(stats.workers)
        return replace(stats, measures=self.measures())

    def measures(self) -> Mapping[str, float]:
        return self._pool.measures()

    def _living(self, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
        return [self._watch.with_liveness(info) for info in workers if info.id not in self._watch.dead]

    async def diagnose(self) -> list[Finding]:
        return await self._read(lambda transaction: diagnosis.diagnose(transaction, round(self.lease * 1000)))

    async def repair(self) -> None:
        await self._run(diagnosis.repair)

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
        request = ChangeRequest(action, where, by, edit, limit, cursor, dry_run, expect)
        return await self._run(lambda transaction: admin.change(transaction, request))

    async def halt(self, halt: Halt) -> Halt:
        return await self._run(lambda transaction: admin.halt(transaction, halt))

    async def resume(self, by: By, queue: str | None = None) -> bool:
        return await self._run(lambda transaction: admin.resume(transaction, by, queue))

    # -- documents ----------------------------------------------------------------------------

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        """Write, and repeat if the answer was lost. That is safe: bundles bring versions and the ids of their jobs."""
        refuse_unkeepable(job for bundle in bundles for job in bundle.jobs)
        try:
            return await self._run(lambda transaction: documents.write(transaction, bundles))
        except StoreBusy:
            raise
        except StoreUnavailable:
            return await self._run(lambda transaction: documents.write(transaction, bundles))

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        return await self._read(lambda transaction: documents.read(transaction, keys))

    async def browse(self, listing: Listing) -> list[Document]:
        return await self._read_by_index(lambda transaction: documents.browse(transaction, listing))

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        return await self._read_by_index(lambda transaction: documents.due(transaction, collection, limit, ahead))

    # -- moving to another store --------------------------------------------------------------

    async def dump(self, kind: Kind, *, after: str | None = None, limit: int = 1000) -> RecordPage:
        return await self._run(lambda transaction: transfer.dump(transaction, kind, after, limit), repeatable=True)

    async def look_up(self, kind: Kind, keys: Sequence[str]) -> list[Record]:
        return await self._read(lambda transaction: transfer.look_up(transaction, kind, keys))

    async def load(self, kind: Kind, records: Sequence[Record]) -> dict[str, str]:
        if days := transfer.days_of(kind, records):
            await self._run(lambda transaction: partitions.make(transaction, days))
        return await self._run(lambda transaction: transfer.load(transaction, kind, records, self.stall_grace))

    async def rewrite(self, texts: Sequence[Rewrite]) -> int:
        return await self._run(lambda transaction: rewrites.rewrite(transaction, texts))

    async def sizes(self) -> Mapping[Kind, int]:
        return await self._read(transfer.sizes)

    async def under_way(self) -> int:
        return await self._read(transfer.under_way)


def safe_url(dsn: str, schema_name: str) -> str:
    """Return the store's URL without the password and without what the user put after the question mark."""
    parts = psycopg.conninfo.conninfo_to_dict(checked_dsn(dsn))
    host, port, database, user = (str(parts.get(name) or "") for name in ("host", "port", "dbname", "user"))
    in_socket = host.startswith("/")  # the directory of the socket
    hosts, ports = ("" if in_socket else host).split(","), port.split(",")
    place = ",".join(f"{name}:{at}" if at else name for name, at in zip_longest(hosts, ports, fillvalue=ports[-1]))
    query = {"host": host} if in_socket else {}
    if schema_name != schema.DEFAULT:
        query["schema"] = schema_name
    settings = f"?{urlencode(query, safe='/')}" if query else ""
    return f"postgresql://{f'{user}@' if user else ''}{place}/{database}{settings}"


def checked_dsn(dsn: str) -> str:
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        words = " ".join(str(error).replace(dsn, "…").split())  # the URL may contain a password
        msg = f"this PostgreSQL URL cannot be used: {words}"
        raise ConfigurationError(msg) from None
    return dsn
