"""Suspended jobs become due because what they wait for has happened."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from mainspring.job import ENDS, is_end
from mainspring.stores.sqlite.values import in_values
from mainspring.stores.sqlite.writer import Transaction
from mainspring.stores.tables import PENDING, SUSPENDED

BEYOND = ENDS.replace(":", ";")  # the keys of all jobs' ends sort between ENDS and this

WHO_WAITS = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_called WHERE status = {SUSPENDED}"
WAITING_FOR = f"""
SELECT json_group_array(json_array(column1, json((
    SELECT json_group_array(json_array(seq, queue)) FROM (
        SELECT seq, queue {WHO_WAITS} AND waits_for = column1 ORDER BY priority, id LIMIT ?)))))
FROM (VALUES {{values}})
"""
SOMEBODY_WAITS_FOR_AN_END = f"SELECT EXISTS (SELECT 1 {WHO_WAITS} AND waits_for >= '{ENDS}' AND waits_for < '{BEYOND}')"
WAITING_FOR_ENDS = f"""
SELECT json_group_array(json_array(seq, queue)) FROM json_each(?)
CROSS JOIN mainspring_jobs INDEXED BY mainspring_jobs_called ON waits_for = '{ENDS}' || value AND status = {SUSPENDED}
"""
NOTHING_TO_WAIT_FOR = f"""
SELECT json_group_array(json_array(waiter.seq, waiter.queue)) FROM json_each(?)
CROSS JOIN mainspring_jobs AS waiter ON waiter.id = value AND waiter.status = {SUSPENDED}
WHERE NOT EXISTS (
    SELECT 1 FROM mainspring_jobs AS awaited WHERE awaited.id = substr(waiter.waits_for, {len(ENDS) + 1}))
"""
WAKE = f"""
UPDATE mainspring_jobs SET status = {PENDING}, run_at = ?, waits_for = NULL
WHERE seq IN (SELECT value FROM json_each(?))
"""


def wake(transaction: Transaction, requests: list[Mapping[str, int]]) -> list[dict[str, int]]:
    wanted: Counter[str] = Counter()
    for request in requests:
        wanted.update(request)
    woken = wake_up_to(transaction, wanted)
    return [{key: take(woken, key, number) for key, number in request.items()} for request in requests]


def take(woken: dict[str, int], key: str, number: int) -> int:
    """Of what two called for together, the first to come gets what is there."""
    taken = min(number, woken[key])
    woken[key] -= taken
    return taken


def wake_up_to(transaction: Transaction, wanted: Mapping[str, int]) -> dict[str, int]:
    """One statement for all keys of which as many jobs are wanted: SQLite knows no limit that differs by row."""
    keys_by_number: defaultdict[int, list[tuple[str]]] = defaultdict(list)
    for key, number in wanted.items():
        keys_by_number[number].append((key,))
    found: dict[str, list[tuple[int, str]]] = {}
    for number, keys in keys_by_number.items():
        for chunk in in_values(WAITING_FOR, keys, number):
            found |= dict(json.loads(transaction.value(*chunk)))
    make_due(transaction, [row for rows in found.values() for row in rows])
    return {key: len(rows) for key, rows in found.items()}


def call_ends(transaction: Transaction, ids: Sequence[str]) -> None:
    """These jobs are finished, or gone. Most of the time nobody waits for the end of any job: one seek shows it."""
    if ids and transaction.value(SOMEBODY_WAITS_FOR_AN_END):
        make_due(transaction, json.loads(transaction.value(WAITING_FOR_ENDS, (json.dumps(ids),))))


def wake_if_ended(transaction: Transaction, waits: Mapping[str, str | None]) -> None:
    """Of jobs suspended by this transaction (job -> waits_for), make due those whose awaited job is not live.

    The check is part of the commit, so a process that dies right after it leaves no job waiting for a past event.
    """
    ids = [job_id for job_id, waits_for in waits.items() if is_end(waits_for)]
    if ids:
        make_due(transaction, json.loads(transaction.value(NOTHING_TO_WAIT_FOR, (json.dumps(ids),))))


def make_due(transaction: Transaction, rows: Iterable[tuple[int, str]]) -> None:
    """Suspended jobs, each by its row and queue."""
    found = list(rows)
    if not found:
        return
    transaction.execute(WAKE, (transaction.now, json.dumps([seq for seq, _ in found])))
    for queue, number in Counter(queue for _, queue in found).items():
        transaction.count(queue, SUSPENDED, -number)
        transaction.count(queue, PENDING, number)
        transaction.woken.add(queue)
