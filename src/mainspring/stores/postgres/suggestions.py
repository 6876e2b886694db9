"""Values that complete what a person types."""

from __future__ import annotations

from mainspring.stores.postgres.read import counts
from mainspring.stores.postgres.sorting import find
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Completable, Filter
from mainspring.stores.sorting import Order, PageRequest
from mainspring.stores.suggestions import PAYLOADS, SAMPLE, beginning_with, values_in
from mainspring.stores.tables import CANCELLED, DEAD_LETTER

QUEUES = "SELECT queue FROM {s}.counts GROUP BY queue, status HAVING sum(n) > 0"


def newest(column: str, table: str, condition: str = "true") -> str:
    rows = f"SELECT {column} FROM {{s}}.{table} WHERE {condition} ORDER BY {table}.id DESC LIMIT {SAMPLE}"
    return f"SELECT DISTINCT {column} FROM ({rows}) AS newest"


def newest_tags(table: str) -> str:
    rows = f"SELECT tags FROM {{s}}.{table} ORDER BY {table}.id DESC LIMIT {SAMPLE}"
    return f"SELECT DISTINCT unnest(tags) FROM ({rows}) AS newest"


STATEMENTS = {
    Completable.QUEUE: QUEUES,
    Completable.TASK: f"{newest('task', 'jobs')} UNION {newest('task', 'archive')}",
    Completable.TAG: f"{newest_tags('jobs')} UNION {newest_tags('archive')}",
    Completable.ERROR_TYPE: " UNION ".join([
        newest("error_type", "jobs"),
        *(newest("error_type", "archive", f"status = {status}") for status in (DEAD_LETTER, CANCELLED)),
    ]),
}  # fmt: skip


async def complete(transaction: Transaction, what: Completable, prefix: str, limit: int, where: Filter) -> list[str]:
    if where.within and what is Completable.QUEUE:
        return beginning_with(prefix, (queue.queue for queue in await counts(transaction, where.within)), limit)
    if where.within or what is Completable.PAYLOAD_KEY:
        page = await find(transaction, PageRequest(where, Order(), PAYLOADS, None))
        return beginning_with(prefix, values_in(page.jobs, what), limit)
    rows = await transaction.rows(STATEMENTS[what])
    return beginning_with(prefix, (value for (value,) in rows), limit)
