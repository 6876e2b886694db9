"""The halt of the whole system and the pauses of queues, as a transaction sees them."""

from __future__ import annotations

from typing import Any

from mainspring.clock import to_datetime
from mainspring.stores.protocol import Halt
from mainspring.stores.sqlite.writer import Transaction


def current_halts(transaction: Transaction) -> list[Halt]:
    if transaction.halts is None:
        rows = transaction.execute("SELECT queue, actor, reason, since, until, accept FROM mainspring_halts").fetchall()
        transaction.halts = [to_halt(row) for row in rows if row[4] is None or row[4] > transaction.now]
    return transaction.halts


def to_halt(row: tuple[Any, ...]) -> Halt:
    queue, actor, reason, since, until, accept = row
    return Halt(
        actor=actor,
        reason=reason,
        since=to_datetime(since),
        until=None if until is None else to_datetime(until),
        queue=queue or None,
        accept=bool(accept),
    )
