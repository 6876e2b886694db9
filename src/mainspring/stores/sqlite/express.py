"""A claim without the detour over the writer's thread, when nobody is in the way.

An idle worker that is woken waits for its first job: two changes of thread are then a fifth of the time until it
starts. Such a claim is small, waits for no lock and no disk (it need not be durable, and checkpoints are left to
others), so it may as well run on the event loop. If anything is in its way, it gives up and the writer does it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from mainspring.clock import Clock
from mainspring.errors import StoreError
from mainspring.stores.sqlite.claims import ClaimRequest, Taken, claim_one
from mainspring.stores.sqlite.file import DatabaseFile
from mainspring.stores.sqlite.link import WriteLink
from mainspring.stores.sqlite.writer import Transaction, roll_back

MOST = 8  # jobs; more of them are worth the writer's while
SETTINGS = ("busy_timeout = 0", "wal_autocheckpoint = 0", "synchronous = NORMAL", "cache_size = -2048")


class ExpressLink(WriteLink):
    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        for setting in SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        return connection


class Express:
    def __init__(self, file: DatabaseFile, clock: Clock) -> None:
        self._clock = clock
        self._link = ExpressLink(file)

    def claim(self, request: ClaimRequest) -> Taken | None:
        """None: somebody is in the way, or something is wrong, which the writer will tell."""
        try:
            with self._link.use_at_once() as connection:
                few = replace(request, limit=min(request.limit, MOST))
                return None if connection is None else self._claim(connection, few)
        except StoreError:
            return None

    def close(self) -> None:
        self._link.close()

    def _claim(self, connection: sqlite3.Connection, request: ClaimRequest) -> Taken:
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(connection, self._clock.now())
            taken = claim_one(transaction, request)
            transaction.write_counts()
            connection.execute("COMMIT" if taken.number else "ROLLBACK")
        except BaseException:
            roll_back(connection)
            raise
        return taken
