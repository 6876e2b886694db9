"""The halt of the whole system and the pauses of queues, as a transaction sees them."""

from __future__ import annotations

import sqlite3
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.stores.protocol import Halt
from mainspring.stores.sqlite.writer import Transaction

CURRENT = """
SELECT queue, actor, reason, since, until, accept, number FROM mainspring_halts WHERE until IS NULL OR until > ?
ORDER BY queue
"""
CONFIRM = """
INSERT INTO mainspring_confirmations VALUES (?, ?) ON CONFLICT DO UPDATE SET number = max(number, excluded.number)
"""
CONFIRMED = "SELECT worker FROM mainspring_confirmations WHERE number >= ?"


def current_halts(transaction: Transaction) -> list[Halt]:
    if transaction.halts is None:
        transaction.halts = [to_halt(row) for row in transaction.execute(CURRENT, (transaction.now,)).fetchall()]
    return transaction.halts


def to_halt(row: tuple[Any, ...]) -> Halt:
    queue, actor, reason, since, until, accept, number = row
    return Halt(
        actor=actor,
        reason=reason,
        since=to_datetime(since),
        until=None if until is None else to_datetime(until),
        queue=queue or None,
        accept=bool(accept),
        number=number,
    )


def confirm(transaction: Transaction, confirmations: list[tuple[str, int]]) -> list[None]:
    for worker, number in confirmations:
        transaction.execute(CONFIRM, (worker, number))
    return [None] * len(confirmations)


def read_halts(connection: sqlite3.Connection, now: Millis) -> list[Halt]:
    return [to_halt(row) for row in connection.execute(CURRENT, (now,))]


def is_over(connection: sqlite3.Connection, halt: Halt, now: Millis) -> bool:
    return all(current.number < halt.number for current in read_halts(connection, now))


def confirmed_by(connection: sqlite3.Connection, number: int) -> set[str]:
    return {worker for (worker,) in connection.execute(CONFIRMED, (number,))}
