"""The store of a test kit: an in-memory store that can restrict a worker to certain jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mainspring.clock import Clock, Millis
from mainspring.errors import ConfigurationError
from mainspring.job import CLAIMABLE, Claim, Inserted, NewJob, Outcome
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claims, Completion, Want

NO_TRANSACTIONS = (
    "the test kit keeps jobs in memory, where there are no transactions; to test code with its own transactions, use "
    'testing.manual(app, store="sqlite:///…")'
)


class KitStore(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._assigned: dict[str, deque[str]] = {}

    def assign(self, worker: str, ids: Iterable[str]) -> None:
        """Let the worker claim only assigned jobs from now on: these and later ones, in this order, if they are due."""
        self._assigned.setdefault(worker, deque()).extend(ids)

    async def claim(
        self,
        worker: str,
        wants: Sequence[Want],
        *,
        limit: int | None = None,
        solo: bool = False,
        tasks: frozenset[str] | None = None,
    ) -> Claims:
        if worker not in self._assigned:
            return await super().claim(worker, wants, limit=limit, solo=solo, tasks=tasks)
        with self._operation() as now:
            claim = self._claim_assigned(worker, now)
            return Claims([claim] if claim else [])

    def _claim_assigned(self, worker: str, now: Millis) -> Claim | None:
        ids, standing = self._assigned[worker], self._standing(now)
        while ids and None not in standing:
            row = self._rows.get(ids.popleft())
            if row and row.status in CLAIMABLE and row.run_at <= now and row.spec.queue not in standing:
                return self._start(row, worker, now)
        return None

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is not None:
            raise ConfigurationError(NO_TRANSACTIONS)
        return await super().insert(jobs)

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        del outcome, connection
        raise ConfigurationError(NO_TRANSACTIONS)
