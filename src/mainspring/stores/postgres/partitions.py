"""The archive's partitions: one per day on which its jobs expire, made when needed and dropped when over."""

from __future__ import annotations

from mainspring.stores.postgres.transaction import Transaction

DAY = 86_400_000  # milliseconds
FOREVER_DAY = 1_000_000

MAKE = """
CREATE TABLE IF NOT EXISTS {s}.archive_%d PARTITION OF {s}.archive FOR VALUES FROM (%d) TO (%d)
"""
LISTED = """
SELECT substring(c.relname FROM '^archive_([0-9]+)$')::integer FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('{s}.archive') AND c.relname ~ '^archive_[0-9]+$'
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('{s} partitions', 0))"
TODAY = f"SELECT {{now}} / {DAY}"


async def make(transaction: Transaction, days: set[int]) -> None:
    """A day of expiry is the day before its partition is dropped."""
    await transaction.rows(LOCK)
    made = {day for (day,) in await transaction.rows(LISTED)}
    for day in sorted(days - made):
        await transaction.do(MAKE % (day, day, day + 1))


async def over(transaction: Transaction) -> list[int]:
    today = await transaction.value(TODAY)
    return sorted(day for (day,) in await transaction.rows(LISTED) if day <= today)
