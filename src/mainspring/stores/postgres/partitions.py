"""The archive's partitions: one per expiry day, created when first needed and dropped when the day is over."""

from __future__ import annotations

import re

from psycopg.errors import CheckViolation

from mainspring.stores.postgres.transaction import Transaction

DAY = 86_400_000  # milliseconds
FOREVER_DAY = 1_000_000

MAKE = "CREATE TABLE {s}.archive_%d (LIKE {s}.archive INCLUDING ALL)"
ATTACH = "ALTER TABLE {s}.archive ATTACH PARTITION {s}.archive_%d FOR VALUES FROM (%d) TO (%d)"
LISTED = """
SELECT substring(c.relname FROM '^archive_([0-9]+)$')::integer FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('{s}.archive') AND c.relname ~ '^archive_[0-9]+$'
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('{s} partitions', 0))"
MISSING = re.compile(r"\(drop_day\) = \((\d+)\)")
TODAY = f"SELECT {{now}} / {DAY}"


async def make(transaction: Transaction, days: set[int]) -> None:
    """Create and attach the partitions that are dropped on these days. Their jobs expire on the day before.

    The table is created first and attached afterwards. Creating it directly as a partition would wait until nothing
    reads the archive (a dump takes hours), and every other transaction would then wait behind this one.
    """
    await transaction.rows(LOCK)
    made = {day for (day,) in await transaction.rows(LISTED)}
    for day in sorted(days - made):
        await transaction.do(MAKE % day)
        await transaction.do(ATTACH % (day, day, day + 1))


def missing(error: BaseException | None) -> int | None:
    """Return the day whose partition is missing, if that caused the error."""
    found = MISSING.search(error.diag.message_detail or "") if isinstance(error, CheckViolation) else None
    return None if found is None else int(found[1])


async def over(transaction: Transaction) -> list[int]:
    """Return the days whose partitions can be dropped, in order."""
    today = await transaction.value(TODAY)
    return sorted(day for (day,) in await transaction.rows(LISTED) if day <= today)
