"""The writer: one thread per process writes, and commits all waiting requests in one transaction.

This is group commit without a timer. While a commit goes to the disk, the next requests queue up. The more there are,
the less each one costs. Requests of one kind are merged, so that they need only a few statements (see transaction.py).

Requests of one pass of an event loop are handed over together, at the start of its next pass. Otherwise the writer
thread would begin with the first one, and compete for the interpreter with the loop that prepares the others. Their
callers lose nothing: the loop cannot resume them before that pass anyway.

Callers that were answered together often write again, within the next passes. So requests are handed over when there
are as many as the last time, or when none has come for a few passes (`Writer._hand_over_soon`). For a service with 16
connections that always have a request under way, this saves a third of the processor time per request: the fewer
commits there are, the more requests share the work of one.

Small writes may be done in the calling thread (`Writer.run_inline`), if no other write is going on. For the first claim
of an idle worker, switching to the writer thread and back takes a fifth of the time until the job starts. Such a claim
waits for neither a lock nor the disk, so it may run on the event loop. A thread that enqueues without an event loop
waits for the disk anyway, so it can write itself. Only one thread does so at a time. The others go to the writer thread
and share one commit.
"""

from __future__ import annotations

import asyncio
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Clock
from mainspring.errors import StoreError
from mainspring.stores.sqlite.connection import DatabaseFile, WriteConnection, refuse_inside
from mainspring.stores.sqlite.transaction import Committing, Operation, Transaction

IDLE_AFTER = 0.01  # seconds without a request after which the writer no longer counts as busy
QUIET_PASSES = 2  # of an event loop: one that reads the next request, and one that runs the task which handles it
GATHER_FOR = 0.02  # seconds that a request waits at most for others to be handed over with it
MAX_REQUESTS = 2000  # in one transaction, so that none waits too long
STOP_CHECK_INTERVAL = 0.2  # seconds between checks whether a stopping writer is waiting in vain
INLINE = ("busy_timeout = 0", "cache_size = -2048")
DURABLE = (*INLINE, "synchronous = FULL")
NOT_DURABLE = (*INLINE, "synchronous = NORMAL", "wal_autocheckpoint = 0")  # other connections do the checkpoints


@dataclass(slots=True, eq=False)
class WriteRequest:
    operation: Operation
    items: list[Any]
    durable: bool
    future: asyncio.Future[list[Any]]
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None


class Writer:
    """The writer thread, and connections for the calling threads.

    It calls `committed` after each commit, before it answers requests.
    """

    def __init__(self, file: DatabaseFile, clock: Clock, committed: Callable[[Transaction], None]) -> None:
        self._file = file
        self._clock = clock
        self._committed = committed
        self._inbox: queue.SimpleQueue[list[WriteRequest] | None] = queue.SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}  # not handed over yet
        self._left: list[WriteRequest] = []  # of those handed over, the ones after the next commit
        self._last_number = 0  # of requests that were handed over together
        self._busy_until = 0.0
        self._writing: Sequence[WriteRequest] = ()
        self._write_connection = WriteConnection(file)
        self._durable, self._not_durable = InlineConnection(file, DURABLE), InlineConnection(file, NOT_DURABLE)
        self._synchronous: tuple[sqlite3.Connection | None, str] = None, ""
        self._thread = threading.Thread(target=self._run, name="mainspring-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether it is writing, or has just answered requests, whose callers will probably write again soon."""
        return time.monotonic() < self._busy_until

    def run(self, operation: Operation, items: list[Any], *, durable: bool = True) -> asyncio.Future[list[Any]]:
        """Queue an operation; the future resolves when it is committed (and, if `durable`, on the disk)."""
        refuse_inside()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        request = WriteRequest(operation, items, durable, future)
        if (gathered := self._gathered.get(loop)) is not None:
            gathered.append(request)
        else:
            self._gathered[loop] = [request]
            loop.call_soon(self._hand_over_soon, loop, 1, 0, time.monotonic() + GATHER_FOR)
        return future

    def _hand_over_soon(self, loop: asyncio.AbstractEventLoop, seen: int, quiet: int, until: float) -> None:
        """Hand the requests over, or look again in the next pass if more are likely to come.

        `seen` is how many there were in the pass before, and `quiet` the number of passes that have brought none.
        """
        if (gathered := self._gathered.get(loop)) is None:
            return  # they were handed over already, because the store is being closed
        number = len(gathered)
        quiet = 0 if number > seen else quiet + 1
        if number >= self._last_number or quiet > QUIET_PASSES or time.monotonic() > until:
            self._last_number = number
            self.hand_over(loop)
        else:
            loop.call_soon(self._hand_over_soon, loop, number, quiet, until)

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the requests of a loop to the writer thread. Call it on that loop, also before `stop`."""
        if (gathered := self._gathered.pop(loop, None)) is not None:
            self._inbox.put(gathered)
            if not self._thread.is_alive():  # another loop has closed the store
                self._refuse_the_rest()

    def run_inline(self, operation: Operation, items: list[Any], *, durable: bool = True) -> list[Any] | None:
        """Run an operation in the calling thread; None if another write is going on, or on an error.

        Leave it to the writer thread then: it waits, or reports the error. So the operation must be safe to repeat.
        """
        refuse_inside()
        try:
            with (self._durable if durable else self._not_durable).use_at_once() as connection:
                if connection is None:
                    return None
                with Committing(connection, self._clock) as transaction:
                    results = operation(transaction, items)
        except StoreError:
            return None
        self._committed(transaction)
        return results

    def stop(self) -> None:
        """Finish the queued requests, then end the thread.

        Another process that was stopped in the middle of a commit keeps the file locked. If all callers have given up
        meanwhile, do not wait for that lock: the thread ends when it gets the lock, or with this process.
        """
        self._durable.close()
        self._not_durable.close()
        self._inbox.put(None)
        self._thread.join(STOP_CHECK_INTERVAL)
        while self._thread.is_alive() and not self._is_given_up():
            self._thread.join(STOP_CHECK_INTERVAL)
        if not self._thread.is_alive():
            self._refuse_the_rest()

    def _is_given_up(self) -> bool:
        writing = [*self._writing, *self._left]
        return bool(writing) and self._inbox.qsize() <= 1 and all(request.future.cancelled() for request in writing)

    def _run(self) -> None:
        going = True
        while going:
            going, requests = self._next_requests()
            if requests:
                self._busy_until = math.inf
                self._writing = requests
                self._write(requests)
                self._writing = ()
                self._busy_until = time.monotonic() + IDLE_AFTER
                answer(requests)
        self._write_connection.close()
        self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """Answer requests that came too late with an error, so that their callers do not wait for ever."""
        while not self._inbox.empty():
            if (requests := self._inbox.get()) is not None:
                fail(requests, StoreError("the store was closed"))
                answer(requests)

    def _next_requests(self) -> tuple[bool, list[WriteRequest]]:
        """Return whether to go on after them, and the requests of the next commit; wait for the first one."""
        requests, self._left = self._left, []
        with suppress(queue.Empty):
            while len(requests) < MAX_REQUESTS:
                more = self._inbox.get(block=not requests)
                if more is None:
                    return False, requests
                requests += more
        self._left = requests[MAX_REQUESTS:]
        return True, requests[:MAX_REQUESTS]

    def _write(self, requests: list[WriteRequest]) -> None:
        """Write the requests; if that fails, write them one by one, so that only the bad one fails."""
        try:
            self._commit(requests, merged(requests))
        except Exception as error:  # noqa: BLE001 - every error is passed to the callers
            if len(requests) == 1 or concerns_all(error):
                fail(requests, error)
            else:
                self._write_singly(requests)

    def _write_singly(self, requests: list[WriteRequest]) -> None:
        try:
            self._commit(requests, lambda transaction: one_by_one(transaction, requests, self._file.explain))
        except Exception as error:  # noqa: BLE001
            fail(requests, error)

    def _commit(self, requests: list[WriteRequest], work: Callable[[Transaction], None]) -> None:
        durable = any(request.durable for request in requests)
        with self._write_connection.use() as connection:
            self._set_synchronous(connection, "FULL" if durable else "NORMAL")
            with Committing(connection, self._clock) as transaction:
                work(transaction)
            free_pages(connection, transaction.pages_to_free)
        self._committed(transaction)

    def _set_synchronous(self, connection: sqlite3.Connection, mode: str) -> None:
        """Set when commits reach the disk. Mere claims need not: a power cut that loses them ends their workers too."""
        if self._synchronous != (connection, mode):
            connection.execute(f"PRAGMA synchronous = {mode}")
            self._synchronous = connection, mode


class InlineConnection(WriteConnection):
    """A connection for small writes in the calling thread."""

    def __init__(self, file: DatabaseFile, settings: Sequence[str]) -> None:
        super().__init__(file)
        self._settings = settings

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        for setting in self._settings:
            connection.execute(f"PRAGMA {setting}")
        return connection


def merged(requests: list[WriteRequest]) -> Callable[[Transaction], None]:
    """Return a function that runs each operation once, for all its requests together.

    Operations run in the order of their first requests; claims run last.
    """

    def work(transaction: Transaction) -> None:
        if len(requests) == 1:
            run_group(transaction, requests[0].operation, requests)
            return
        groups: dict[Operation, list[WriteRequest]] = {}
        for request in requests:
            groups.setdefault(request.operation, []).append(request)
        for operation in sorted(groups, key=lambda op: getattr(op, "last", False)):
            run_group(transaction, operation, groups[operation])

    return work


def run_group(transaction: Transaction, operation: Operation, requests: list[WriteRequest]) -> None:
    if len(requests) == 1:
        requests[0].results = operation(transaction, requests[0].items)
        return
    results = operation(transaction, [item for request in requests for item in request.items])
    start = 0
    for request in requests:
        request.results = results[start : start + len(request.items)]
        start += len(request.items)


def one_by_one(
    transaction: Transaction, requests: list[WriteRequest], explain: Callable[[sqlite3.Error], StoreError]
) -> None:
    """Run each request in its own savepoint, so that one that fails does not affect the others."""
    for request in requests:
        before, recorded = dict(transaction.counts), len(transaction.changes)
        transaction.execute("SAVEPOINT request")
        try:
            request.results = request.operation(transaction, request.items)
        except Exception as error:  # noqa: BLE001 - passed to the caller
            transaction.execute("ROLLBACK TO request")
            transaction.counts.clear()
            transaction.counts.update(before)
            del transaction.changes[recorded:]
            request.error = explain(error) if isinstance(error, sqlite3.Error) else error
        transaction.execute("RELEASE request")


def concerns_all(error: Exception) -> bool:
    """Return whether the error affects all requests: a full, locked or broken database. Others are of one request."""
    return isinstance(error, StoreError) and type(error) is not StoreError


def free_pages(connection: sqlite3.Connection, number: int) -> None:
    """Shrink the file by up to `number` pages.

    The pragma returns a row per page, and `execute` would stop at the first one; `executescript` runs it to the end.
    But `executescript` also commits, so this must be called after the commit. If it fails, the commit still holds.
    """
    if number:
        with suppress(sqlite3.Error):
            connection.executescript(f"PRAGMA incremental_vacuum({number})")


def fail(requests: list[WriteRequest], error: BaseException) -> None:
    for request in requests:
        request.error = error


def answer(requests: list[WriteRequest]) -> None:
    """Resolve the futures of the requests, with only one call per event loop: waking a loop is expensive."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for request in requests:
        by_loop.setdefault(request.future.get_loop(), []).append(request)
    for loop, its_requests in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, so no caller waits there
            loop.call_soon_threadsafe(resolve, its_requests)


def resolve(requests: list[WriteRequest]) -> None:
    for request in requests:
        if request.future.done():
            continue  # its caller stopped waiting
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.results)
