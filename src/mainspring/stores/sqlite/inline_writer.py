"""Small writes without the detour over the writer's thread, when nobody is in the way. Else the writer does them.

An idle worker that is woken waits for its first job: two changes of thread are then a fifth of the time until it
starts. Such a claim is small, waits for no lock and no disk (it need not be durable, and checkpoints are left to
others), so it may as well run on the event loop.

Who enqueues without an event loop waits for the disk anyway, and needs no others to do it for him. But only one at a
time: those that come meanwhile share a commit of the writer's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mainspring.clock import Clock
from mainspring.errors import StoreError
from mainspring.job import Inserted
from mainspring.stores.sqlite import insertion
from mainspring.stores.sqlite.claims import ClaimRequest, Taken, claim_one
from mainspring.stores.sqlite.connection import WriteConnection
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.insertion import Ready
from mainspring.stores.sqlite.writer import Transaction, roll_back

MOST = 8  # jobs; more of them are worth the writer's while
MOST_ASIDE = 100  # jobs of unknown tasks that are set aside; of more, the writer does the rest
COMMON = ("busy_timeout = 0", "cache_size = -2048")
TO_CLAIM = (*COMMON, "wal_autocheckpoint = 0", "synchronous = NORMAL")
TO_INSERT = (*COMMON, "synchronous = FULL")


class InlineConnection(WriteConnection):
    def __init__(self, file: DatabaseFile, settings: tuple[str, ...]) -> None:
        super().__init__(file)
        self._settings = settings

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        for setting in self._settings:
            connection.execute(f"PRAGMA {setting}")
        return connection


class InlineWriter:
    def __init__(self, file: DatabaseFile, clock: Clock, committed: Callable[[Transaction], None]) -> None:
        self._clock = clock
        self._committed = committed
        self._to_claim = InlineConnection(file, TO_CLAIM)
        self._to_insert = InlineConnection(file, TO_INSERT)

    def claim(self, request: ClaimRequest) -> Taken | None:
        """None: somebody is in the way, or something is wrong, which the writer will tell."""
        try:
            with self._to_claim.use_at_once() as connection:
                few = replace(request, limit=min(request.limit, MOST), most_aside=MOST_ASIDE)
                return None if connection is None else self._claim(connection, few)
        except StoreError:
            return None

    def insert(self, new: list[Ready]) -> list[Inserted] | None:
        """None as well, and from any thread: ids are known, so that the writer may repeat what went wrong here."""
        try:
            with self._to_insert.use_at_once() as connection:
                if connection is None:
                    return None
                with self._transaction(connection) as transaction:
                    inserted = insertion.insert(transaction, new)
        except StoreError:
            return None
        self._committed(transaction)
        return inserted

    def close(self) -> None:
        self._to_claim.close()
        self._to_insert.close()

    def _claim(self, connection: sqlite3.Connection, request: ClaimRequest) -> Taken:
        with self._transaction(connection) as transaction:
            return claim_one(transaction, request)

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[Transaction]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(connection, self._clock.now())
            yield transaction
            transaction.write_counts()
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise
