"""Wake suspended jobs when the event that they wait for has happened."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mainspring.job import ENDS, is_end
from mainspring.stores.engine import feed
from mainspring.stores.engine.change import woken
from mainspring.stores.feed import ChangeKind, JobRef
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import PENDING, SUSPENDED, to_columns

AFTER_ENDS = ENDS.replace(":", ";")  # the keys of all jobs' ends sort between ENDS and this

WAITER = "seq, id, queue, task, target_type, target_id"
OF_WAITER = ", ".join(f"waiter.{name}" for name in WAITER.split(", "))
WAITERS = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_to_wake WHERE status = {SUSPENDED}"
WAITING_FOR = f"""
SELECT json_group_array(json_array(column1, json((
    SELECT json_group_array(json_array({WAITER})) FROM (
        SELECT {WAITER} {WAITERS} AND waits_for = column1 ORDER BY priority, id LIMIT ?)))))
FROM (VALUES {{values}})
"""
ANY_WAITER_FOR_AN_END = f"SELECT EXISTS (SELECT 1 {WAITERS} AND waits_for >= '{ENDS}' AND waits_for < '{AFTER_ENDS}')"
WAITING_FOR_ENDS = f"""
SELECT json_group_array(json_array({OF_WAITER})) FROM json_each(?)
CROSS JOIN mainspring_jobs AS waiter INDEXED BY mainspring_jobs_to_wake
ON waits_for = '{ENDS}' || value AND status = {SUSPENDED}
"""
WAITING_FOR_ENDED = f"""
SELECT json_group_array(json_array({OF_WAITER})) FROM json_each(?)
CROSS JOIN mainspring_jobs AS waiter ON waiter.id = value AND waiter.status = {SUSPENDED}
WHERE NOT EXISTS (
    SELECT 1 FROM mainspring_jobs AS awaited WHERE awaited.id = substr(waiter.waits_for, {len(ENDS) + 1}))
"""
WAKE = f"""
UPDATE mainspring_jobs SET {", ".join(f"{name} = ?" for name in woken(0))} WHERE seq IN (SELECT value FROM json_each(?))
"""


class Waiter(NamedTuple):
    """A suspended job: the columns in WAITER."""

    seq: int
    id: str
    queue: str
    task: str
    target_type: str | None
    target_id: str | None

    @property
    def ref(self) -> JobRef:
        return JobRef(self.id, self.target_type, self.target_id)


def wake(transaction: Transaction, requests: list[Mapping[str, int]]) -> list[dict[str, int]]:
    wanted: Counter[str] = Counter()
    for request in requests:
        wanted.update(request)
    woken = wake_up_to(transaction, wanted)
    return [{key: take(woken, key, number) for key, number in request.items()} for request in requests]


def take(woken: dict[str, int], key: str, number: int) -> int:
    """Return how many of the woken jobs of a key count for one request; the first request is served first."""
    taken = min(number, woken[key])
    woken[key] -= taken
    return taken


def wake_up_to(transaction: Transaction, wanted: Mapping[str, int]) -> dict[str, int]:
    """Wake up to `n` jobs for each key; return the number woken per key.

    There is one statement for each different number, because SQLite has no LIMIT that differs by row.
    """
    keys_by_number: defaultdict[int, list[tuple[str]]] = defaultdict(list)
    for key, number in wanted.items():
        keys_by_number[number].append((key,))
    found: dict[str, list[Waiter]] = {}
    for number, keys in keys_by_number.items():
        for part in in_values(WAITING_FOR, keys, number):
            found |= dict(json.loads(transaction.value(*part)))
    make_due(transaction, [row for rows in found.values() for row in rows])
    return {key: len(rows) for key, rows in found.items()}


def wake_for_ends(transaction: Transaction, ids: Sequence[str]) -> None:
    """Wake the jobs that wait for the end of these jobs. Usually there are none for any job: one seek shows that."""
    if ids and transaction.value(ANY_WAITER_FOR_AN_END):
        make_due(transaction, json.loads(transaction.value(WAITING_FOR_ENDS, (json.dumps(ids),))))


def wake_if_ended(transaction: Transaction, waits: Mapping[str, str | None]) -> None:
    """Make due those of the jobs suspended by this transaction (job -> waits_for) whose awaited job is not live.

    The check is part of the commit. So no job waits for a past event, even if the process dies right after the commit.
    """
    ids = [job_id for job_id, waits_for in waits.items() if is_end(waits_for)]
    if ids:
        make_due(transaction, json.loads(transaction.value(WAITING_FOR_ENDED, (json.dumps(ids),))))


def make_due(transaction: Transaction, rows: Iterable[Sequence[Any]]) -> None:
    """Make suspended jobs due now; `rows` have the columns of `Waiter`."""
    found = [Waiter(*row) for row in rows]
    if not found:
        return
    values = to_columns(woken(transaction.now)).values()
    transaction.execute(WAKE, (*values, json.dumps([waiter.seq for waiter in found])))
    by_place: dict[feed.Place, list[str | JobRef]] = {}
    for waiter in found:
        by_place.setdefault((waiter.queue, waiter.task), []).append(waiter.ref)
    transaction.record(feed.entries(ChangeKind.RESUMED, by_place))
    for queue, number in Counter(waiter.queue for waiter in found).items():
        transaction.count(queue, SUSPENDED, -number)
        transaction.count(queue, PENDING, number)
        transaction.woken.add(queue)
