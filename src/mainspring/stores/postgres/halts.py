"""Read and confirm the halt of the whole system and the pauses of queues.

Transactions that claim or insert hold a shared lock. A transaction that halts takes the same lock exclusively, so it
waits until all of them have committed. Therefore no job starts, and no rejected job is inserted, after `halt` returns.
"""

from __future__ import annotations

from typing import Any

from mainspring.clock import to_datetime
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Halt

IN_COMMON = "SELECT pg_advisory_xact_lock_shared(hashtextextended('{s} halts', 0))"
ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('{s} halts', 0))"
CURRENT = """
SELECT queue, actor, reason, since, until, accept, number FROM {s}.halts
WHERE until IS NULL OR until > {now} ORDER BY queue
"""
CONFIRM = """
INSERT INTO {s}.confirmations (worker, number) VALUES (%(worker)s, %(number)s)
ON CONFLICT (worker) DO UPDATE SET number = greatest(confirmations.number, excluded.number)
"""
CONFIRMED = "SELECT worker FROM {s}.confirmations WHERE number >= %(number)s"


async def current_halts(transaction: Transaction) -> list[Halt]:
    return [to_halt(row) for row in await transaction.rows(CURRENT)]


def to_halt(row: tuple[Any, ...]) -> Halt:
    """Convert a row of `halts`. The rows that a claim reads do not have the last column, `number`."""
    queue, actor, reason, since, until, accept, *number = row
    return Halt(
        actor=actor,
        reason=reason,
        since=to_datetime(since),
        until=None if until is None else to_datetime(until),
        queue=queue or None,
        accept=accept,
        number=number[0] if number else 0,
    )


async def confirm(transaction: Transaction, worker: str, number: int) -> None:
    await transaction.do(CONFIRM, worker=worker, number=number)


async def is_over(transaction: Transaction, halt: Halt) -> bool:
    return all(current.number < halt.number for current in await current_halts(transaction))


async def confirmed_by(transaction: Transaction, number: int) -> set[str]:
    return {worker for (worker,) in await transaction.rows(CONFIRMED, number=number)}
