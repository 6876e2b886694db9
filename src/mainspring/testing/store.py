"""The store of a test kit: a store in memory that can restrict a worker to certain jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mainspring.clock import Clock
from mainspring.errors import ConfigurationError
from mainspring.job import Inserted, Outcome
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


class KitStore(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._assigned: dict[str, deque[str]] = {}

    def assign(self, worker: str, ids: Iterable[str]) -> None:
        """Let the worker claim only assigned jobs from now on: these and later ones, in this order, if they are due."""
        self._assigned.setdefault(worker, deque()).extend(ids)

    async def _claim(self, request: ClaimRequest) -> Taken:
        if request.worker not in self._assigned:
            return await super()._claim(request)
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

    async def _insert_on(self, connection: Any, new: list[PreparedJob]) -> list[Inserted]:
        del connection, new
        raise ConfigurationError(NO_TRANSACTIONS)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        raise ConfigurationError(NO_TRANSACTIONS)
