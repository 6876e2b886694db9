"""The store of a test kit: a store in memory that can restrict a worker to certain jobs.

Virtual time asks after every run what is due, and nearly always nothing is. The store answers that without the tables.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mainspring.clock import Clock, Millis
from mainspring.errors import ConfigurationError
from mainspring.job import Inserted, Outcome
from mainspring.stores.documents import Bundle, Due
from mainspring.stores.protocol import Completion
from mainspring.stores.sqlite import MemoryStore
from mainspring.stores.sqlite.claims import CHOSEN, ClaimRequest, Taken, take
from mainspring.stores.sqlite.insertion import PreparedJob
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.tables import RUNNING

NO_TRANSACTIONS = (
    "the test kit keeps jobs in memory, where there are no transactions; to test code with its own transactions, use "
    'testing.manual(app, store="sqlite:///…")'
)
DUE = f"FROM mainspring_jobs WHERE id = :id AND status < {RUNNING} AND run_at <= :now"
QUEUE = f"SELECT queue {DUE}"
PICK = f"{CHOSEN} {DUE}"
WAITING = f"FROM mainspring_counts WHERE status < {RUNNING} AND n > 0"
SOME_WAITING = f"SELECT EXISTS (SELECT 1 {WAITING})"


class KitStore(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._assigned: dict[str, deque[str]] = {}
        self._next_due: dict[str, Millis | None] = {}  # of collections in which nothing was due at the last look

    def assign(self, worker: str, ids: Iterable[str]) -> None:
        """Let the worker claim only assigned jobs from now on: these and later ones, in this order, if they are due."""
        self._assigned.setdefault(worker, deque()).extend(ids)

    async def _claim(self, request: ClaimRequest) -> Taken:
        if request.worker not in self._assigned:
            return await super()._claim(request) if await self._read(some_waiting) else Taken()
        taken: list[Taken] = await self._write(self._claim_assigned, [request])
        return taken[0]

    def _claim_assigned(self, transaction: Transaction, requests: list[ClaimRequest]) -> list[Taken]:
        taken, [request] = Taken(), requests
        ids, halted = self._assigned[request.worker], {halt.queue for halt in transaction.halts()}
        while ids and None not in halted and not taken.number:
            place = {"id": ids.popleft()}
            queue = transaction.value(QUEUE, {**place, "now": transaction.now})
            if queue is not None and queue not in halted:
                take(transaction, request, taken, PICK, {**place, "queue": queue})
        return [taken]

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        known, now = self._next_due, self.clock.now()
        if collection in known and ((next_at := known[collection]) is None or next_at > now + ahead):
            return Due([], now, next_at)
        found = await super().due(collection, limit, ahead=ahead)
        if not found.documents:
            known[collection] = found.next_at  # without effect if another thread has written meanwhile, see below
        return found

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        inserted = await super().write(bundles)
        written = {write.key.collection for bundle in bundles for write in bundle.writes}
        self._next_due = {name: next_at for name, next_at in self._next_due.items() if name not in written}
        return inserted

    async def _insert_on(self, connection: Any, new: list[PreparedJob]) -> list[Inserted]:
        del connection, new
        raise ConfigurationError(NO_TRANSACTIONS)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        raise ConfigurationError(NO_TRANSACTIONS)


def some_waiting(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute(SOME_WAITING).fetchone()[0])
