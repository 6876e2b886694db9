"""The archive's partitions: one per day on which its jobs expire, made when needed and dropped when over."""

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
    """A day of expiry is the day before its partition is dropped.

    Made first and attached then: to make it as a part would wait until nobody reads the archive (a dump takes hours),
    and everybody else would wait for us.
    """
    await transaction.rows(LOCK)
    made = {day for (day,) in await transaction.rows(LISTED)}
    for day in sorted(days - made):
        await transaction.do(MAKE % day)
        await transaction.do(ATTACH % (day, day, day + 1))


def missing(error: BaseException | None) -> int | None:
    """The day for which a job could not be archived, if that was the error."""
    found = MISSING.search(error.diag.message_detail or "") if isinstance(error, CheckViolation) else None
    return None if found is None else int(found[1])


async def over(transaction: Transaction) -> list[int]:
    today = await transaction.value(TODAY)
    return sorted(day for (day,) in await transaction.rows(LISTED) if day <= today)
