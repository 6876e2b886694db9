"""Small writes in the calling thread, if no other write is going on. Otherwise the writer thread does them.

For the first claim of an idle worker, switching to the writer thread and back takes a fifth of the time until the job
starts. Such a claim is small, and it waits for neither a lock nor the disk: it need not be durable, and it leaves
checkpoints to other connections. So it may run on the event loop.

A thread that enqueues without an event loop waits for the disk anyway, so it can write itself. Only one thread does so
at a time. The others go to the writer and share one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

from mainspring.clock import Clock
from mainspring.errors import StoreError
from mainspring.job import Inserted
from mainspring.stores.sqlite import insertion
from mainspring.stores.sqlite.claims import ClaimRequest, Taken, claim_one
from mainspring.stores.sqlite.connection import WriteConnection
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.insertion import PreparedJob
from mainspring.stores.sqlite.writer import Committing, Transaction

MAX_JOBS = 8  # per inline claim; the writer thread claims the rest
MAX_SET_ASIDE = 100  # jobs of unknown tasks per inline claim; the writer thread sets aside the rest
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
        """Claim a few jobs; None if another write is going on, or on an error, which the writer thread will report."""
        try:
            with self._to_claim.use_at_once() as connection:
                few = replace(request, limit=min(request.limit, MAX_JOBS), max_set_aside=MAX_SET_ASIDE)
                return None if connection is None else self._claim(connection, few)
        except StoreError:
            return None

    def insert(self, new: list[PreparedJob]) -> list[Inserted] | None:
        """Insert jobs from any thread; None if another write is going on, or on an error.

        The jobs have ids, so the writer thread can safely repeat an insert that failed here.
        """
        try:
            with self._to_insert.use_at_once() as connection:
                if connection is None:
                    return None
                with Committing(connection, self._clock) as transaction:
                    inserted = insertion.insert(transaction, new)
        except StoreError:
            return None
        self._committed(transaction)
        return inserted

    def close(self) -> None:
        self._to_claim.close()
        self._to_insert.close()

    def _claim(self, connection: sqlite3.Connection, request: ClaimRequest) -> Taken:
        with Committing(connection, self._clock) as transaction:
            return claim_one(transaction, request)
