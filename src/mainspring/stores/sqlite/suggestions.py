"""Values that complete what a person types."""

from __future__ import annotations

import sqlite3

from mainspring.stores.protocol import Completable, Filter
from mainspring.stores.sorting import Order, PageRequest
from mainspring.stores.sqlite.read import counts
from mainspring.stores.sqlite.sorting import find
from mainspring.stores.suggestions import PAYLOADS, SAMPLE, beginning_with, values_in
from mainspring.stores.tables import CANCELLED, DEAD_LETTER

QUEUES = "SELECT DISTINCT queue FROM mainspring_counts WHERE n > 0"
TASKS = f"""
SELECT task FROM (SELECT task FROM mainspring_jobs ORDER BY seq DESC LIMIT {SAMPLE})
UNION SELECT task FROM (SELECT task FROM mainspring_archive ORDER BY id DESC LIMIT {SAMPLE})
"""
TAGS = """
WITH RECURSIVE found(tag) AS (
    SELECT min(tag) FROM mainspring_tags WHERE tag >= :prefix
    UNION ALL
    SELECT (SELECT min(tag) FROM mainspring_tags WHERE tag > found.tag) FROM found
    WHERE substr(tag, 1, length(:prefix)) = :prefix
    LIMIT :limit
) SELECT tag FROM found
"""
ERROR_TYPES = " UNION ".join([
    f"""SELECT error_type FROM (SELECT error_type FROM mainspring_jobs INDEXED BY mainspring_jobs_attempts
                                WHERE attempts <> 0 ORDER BY attempts DESC LIMIT {SAMPLE})""",
    *(
        f"""SELECT error_type FROM (SELECT error_type FROM mainspring_archive INDEXED BY mainspring_archive_failed
                                    WHERE status > 4 AND {only} ORDER BY status DESC, id DESC LIMIT {SAMPLE})"""
        for only in (f"status < {CANCELLED}", f"status > {DEAD_LETTER}")  # with "=", SQLite may read and sort all
    ),
])  # fmt: skip
STATEMENTS = {Completable.QUEUE: QUEUES, Completable.TASK: TASKS, Completable.ERROR_TYPE: ERROR_TYPES}


def complete(connection: sqlite3.Connection, what: Completable, prefix: str, limit: int, where: Filter) -> list[str]:
    if where.within and what is Completable.QUEUE:
        return beginning_with(prefix, (queue.queue for queue in counts(connection, where.within)), limit)
    if where.within or what is Completable.PAYLOAD_KEY:
        newest = find(connection, PageRequest(where, Order(), PAYLOADS, None)).jobs
        return beginning_with(prefix, values_in(newest, what), limit)
    if what is Completable.TAG:
        rows = connection.execute(TAGS, {"prefix": prefix, "limit": limit + 1})
    else:
        rows = connection.execute(STATEMENTS[what])
    return beginning_with(prefix, (value for (value,) in rows), limit)
