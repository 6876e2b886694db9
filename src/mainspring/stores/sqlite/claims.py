"""Which due jobs a worker gets, and that they are its own.

Nothing here is done per row, and the rows travel as JSON text: they become objects on the thread that asked for them
(`Taken.claims`), while this one goes on with its next transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json  # twice as fast as json.loads

from mainspring.clock import Millis
from mainspring.job import Claim
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Want
from mainspring.stores.rules import Level, earliest, ends, shares
from mainspring.stores.sqlite.batch import in_values
from mainspring.stores.sqlite.halts import current_halts
from mainspring.stores.sqlite.writer import Transaction
from mainspring.stores.tables import FAILED, NEVER, PENDING, RUNNING, SUSPENDED

PRIORITIES = range(4)

ALL_WAITING = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_waiting WHERE status < {RUNNING} AND crashes = 0"
ALL_SUSPECT = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_suspect WHERE status < {RUNNING} AND crashes > 0"
WAITING = f"{ALL_WAITING} AND queue = {{queue}} AND priority = {{level}}"
SUSPECT = f"{ALL_SUSPECT} AND queue = {{queue}}"
HEADS = f"""
SELECT json_group_array(json_array(name, (SELECT run_at {SUSPECT.format(queue="name")} ORDER BY run_at LIMIT 1), {
    ", ".join(
        f"(SELECT run_at {WAITING.format(queue='name', level=level)} ORDER BY run_at LIMIT 1)" for level in PRIORITIES
    )
})) FROM queues
"""
HEADS_OF = f"WITH queues(name) AS (VALUES {{values}}) {HEADS}"
HEADS_OF_ALL = f"""
WITH RECURSIVE
waiting(name) AS (
    SELECT min(queue) {ALL_WAITING}
    UNION ALL
    SELECT (SELECT min(queue) {ALL_WAITING} AND queue > name)
    FROM waiting WHERE name IS NOT NULL),
suspect(name) AS (
    SELECT min(queue) {ALL_SUSPECT}
    UNION ALL
    SELECT (SELECT min(queue) {ALL_SUSPECT} AND queue > name)
    FROM suspect WHERE name IS NOT NULL),
queues(name) AS (
    SELECT name FROM waiting WHERE name IS NOT NULL UNION ALL SELECT name FROM suspect WHERE name IS NOT NULL)
{HEADS}
"""
CHOSEN = f"""
SELECT count(*), sum(status = {FAILED}), sum(status = {SUSPENDED}), json_group_array(seq), json_group_array(json_array(
    mainspring_jobs.id, token + 1, task, queue,
    coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = mainspring_jobs.id)), priority, attempts,
    max_attempts, crashes, timeout, run_at, created_at, dedupe_key, target_type, target_id, tags, options,
    seq))
"""
PICK = f"""
{CHOSEN}
FROM (SELECT seq AS picked {WAITING.format(queue=":queue", level=":level")} AND run_at <= :now
      ORDER BY run_at, seq LIMIT :limit)
CROSS JOIN mainspring_jobs ON seq = picked
"""
PICK_SUSPECT = f"""
{CHOSEN}
FROM (SELECT seq AS picked {SUSPECT.format(queue=":queue")} AND run_at <= :now ORDER BY run_at LIMIT 1)
CROSS JOIN mainspring_jobs ON seq = picked
"""
TAKE = f"""
UPDATE mainspring_jobs SET status = {RUNNING}, token = token + 1, worker = :worker, claimed_at = :now,
                progress = NULL, note = NULL, deadline = iif(timeout > 0, :now + timeout + :stall_grace, {NEVER})
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    stall_grace: Millis
    patience: Millis
    turn: int  # counts a worker's claims, for the small ones' share of starving levels


@dataclass(slots=True)
class Taken:
    """What a claim gave, as it came from the file."""

    number: int = 0
    rows: list[str] = field(default_factory=list)
    next_due: Millis | None = None
    suspects: bool = False

    def add(self, more: Taken) -> None:
        self.number += more.number
        self.rows += more.rows
        self.suspects = more.suspects

    def claims(self) -> Claims:
        jobs = [to_claim(row) for rows in self.rows for row in from_json(rows)]
        return Claims(jobs, next_due=self.next_due, suspects=self.suspects)


def to_claim(row: Sequence[Any]) -> Claim:
    """From the columns of CHOSEN. Its `ref` is the job's row and its queue, which do not change while it runs."""
    target = None if row[13] is None else (row[13], row[14])
    tags = tuple(json.loads(row[15])) if row[15] else ()
    return Claim(*row[:13], target, tags, row[16], (row[17], row[3]))  # type: ignore[call-arg]


def claim(transaction: Transaction, requests: list[ClaimRequest]) -> list[Taken]:
    return [claim_one(transaction, request) for request in requests]


claim.last = True  # type: ignore[attr-defined]  # within one transaction: after what was inserted or released


def claim_one(transaction: Transaction, request: ClaimRequest) -> Taken:
    taken = Taken()
    halts = current_halts(transaction)
    if any(halt.queue is None for halt in halts):
        taken.next_due = earliest(ends(halts, {None}))
        return taken
    heads = read_heads(transaction, request.wants, {halt.queue for halt in halts})
    (take_suspect if request.solo else take_waiting)(transaction, request, heads, taken)
    suspects = [head.suspect for head in heads if head.suspect is not None]
    taken.suspects = any(suspect <= transaction.now for suspect in suspects)
    if not taken.number:
        later = (suspect for suspect in suspects if suspect > transaction.now)
        waiting = (level.head for head in heads for level in head.levels)
        wanted = {want.queue for want in request.wants}
        taken.next_due = earliest([*(() if request.solo else waiting), *later, *ends(halts, wanted)])
    return taken


# -- what is there ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Head:
    """The first jobs of a queue: of each priority, and of the suspects."""

    queue: str
    suspect: Millis | None
    levels: list[Level]


def read_heads(transaction: Transaction, wants: Sequence[Want], paused: set[str | None]) -> list[Head]:
    """Of the wanted queues that are not paused, in the order of the wants."""
    if any(want.queue == EVERY_QUEUE for want in wants):
        rows = from_json(transaction.value(HEADS_OF_ALL))
    else:
        names = [(name,) for name in dict.fromkeys(want.queue for want in wants)]
        rows = [row for chunk in in_values(HEADS_OF, names) for row in from_json(transaction.value(*chunk))]
    heads = {row[0]: to_head(*row) for row in rows if row[0] not in paused}  # a queue may come twice
    return list(heads.values())


def to_head(queue: str, suspect: Millis | None, *heads: Millis | None) -> Head:
    levels = [Level(priority, queue, head) for priority, head in enumerate(heads) if head is not None]
    return Head(queue, suspect, levels)


def wanted_by(want: Want, heads: Iterable[Head]) -> list[Level]:
    return [level for head in heads if want.queue in {EVERY_QUEUE, head.queue} for level in head.levels]


# -- taking it ----------------------------------------------------------------------------------------


def take_waiting(transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], taken: Taken) -> None:
    for want in request.wants:
        room = min(want.limit, request.limit - taken.number)
        patience, turn = request.patience, request.turn
        for level, share in shares(wanted_by(want, heads), room, now=transaction.now, patience=patience, turn=turn):
            if room > 0:
                place = {"queue": level.queue, "level": level.priority, "limit": min(share, room)}
                room -= take(transaction, request, taken, PICK, place)


def take_suspect(transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], taken: Taken) -> None:
    """One, and nothing beside it."""
    for want in request.wants:
        for head in heads:
            if want.queue in {EVERY_QUEUE, head.queue} and head.suspect is not None and not taken.number:
                take(transaction, request, taken, PICK_SUSPECT, {"queue": head.queue})


def take(transaction: Transaction, request: ClaimRequest, taken: Taken, pick: str, place: dict[str, Any]) -> int:
    """Take what the statement picks there; the number of jobs."""
    now, queue = transaction.now, place["queue"]
    number, failed, suspended, seqs, rows = transaction.execute(pick, {**place, "now": now}).fetchone()
    if number:
        given = {"worker": request.worker, "now": now, "stall_grace": request.stall_grace, "seqs": seqs}
        transaction.execute(TAKE, given)
        transaction.count(queue, FAILED, -failed)
        transaction.count(queue, SUSPENDED, -suspended)
        transaction.count(queue, PENDING, failed + suspended - number)
        transaction.count(queue, RUNNING, number)
        taken.number += number
        taken.rows.append(rows)
    return int(number)
