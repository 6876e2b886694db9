"""Claims: select due jobs and assign them to a worker.

Nothing here is done per row. SQLite returns the rows as JSON text, and the thread that asked for the jobs makes objects
of them (`Taken.claims`). So the writer thread can go on with its next transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Claim
from mainspring.json_text import from_json
from mainspring.queue_patterns import EVERY, covers, is_among, is_pattern
from mainspring.stores.columns import CLAIMED
from mainspring.stores.engine.claim import Head, Level, due_suspects, earliest, ends, head_of, shares
from mainspring.stores.feed import ChangeKind
from mainspring.stores.numbers import Times, bucket_of, times_of, times_of_bucket
from mainspring.stores.protocol import Claims, Want
from mainspring.stores.sqlite.rows import PAYLOAD, read_tags
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import NEVER, PENDING, RETRYING, RUNNING, SUSPENDED

PRIORITIES = range(4)
ASIDE_LOOK = 1000  # jobs that one statement searches for unknown tasks
MAX_SET_ASIDE = 4000  # jobs that one claim sets aside, roughly: other writers wait meanwhile

LIVE = f"status < {RUNNING} AND crashes"
ALL_WAITING = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_waiting WHERE {LIVE} = 0 AND aside = 0"
ALL_SUSPECT = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_suspect WHERE {LIVE} > 0"
ALL_ASIDE = f"FROM mainspring_jobs INDEXED BY mainspring_jobs_aside WHERE {LIVE} = 0 AND aside = 1"
WAITING = f"{ALL_WAITING} AND queue = {{queue}} AND priority = {{level}}"
SUSPECT = f"{ALL_SUSPECT} AND queue = {{queue}}"
ASIDE = f"{ALL_ASIDE} AND queue = {{queue}}"
HEADS = f"""
SELECT json_group_array(json_array(name, EXISTS (SELECT 1 {SUSPECT.format(queue="name")})
                                         OR EXISTS (SELECT 1 {ASIDE.format(queue="name")}), {
    ", ".join(
        f"(SELECT run_at {WAITING.format(queue='name', level=level)} ORDER BY run_at LIMIT 1)" for level in PRIORITIES
    )
})) FROM queues
"""
HEADS_OF = f"WITH queues(name) AS (VALUES {{values}}) {HEADS}"


def each(name: str, column: str, source: str) -> str:
    """Return SQL for WITH RECURSIVE that lists the distinct values of a column by one seek each, and then NULL."""
    return f"""{name}({column}) AS (
    SELECT min({column}) {source}
    UNION ALL
    SELECT (SELECT min({column}) {source} AND {column} > {name}.{column}) FROM {name} WHERE {column} IS NOT NULL)"""


HEADS_OF_ALL = f"""
WITH RECURSIVE {each("waiting", "queue", ALL_WAITING)}, {each("suspect", "queue", ALL_SUSPECT)},
{each("aside", "queue", ALL_ASIDE)},
queues(name) AS (
    SELECT queue FROM waiting WHERE queue IS NOT NULL UNION ALL SELECT queue FROM suspect WHERE queue IS NOT NULL
    UNION ALL SELECT queue FROM aside WHERE queue IS NOT NULL)
{HEADS}
"""
SUSPECTS = f"""
WITH RECURSIVE {each("suspect", "task", SUSPECT.format(queue=":queue"))}
SELECT task, (SELECT run_at {SUSPECT.format(queue=":queue")} AND task = suspect.task ORDER BY run_at LIMIT 1) AS head
FROM suspect WHERE task IS NOT NULL
"""
SET_ASIDE = f"""
WITH RECURSIVE {each("aside", "task", ASIDE.format(queue=":queue"))},
level(priority) AS (VALUES {", ".join(f"({level})" for level in PRIORITIES)})
SELECT task, priority, (SELECT run_at {ASIDE.format(queue=":queue")} AND task = aside.task
                        AND priority = level.priority ORDER BY run_at LIMIT 1) AS head
FROM aside CROSS JOIN level WHERE task IS NOT NULL AND head IS NOT NULL
"""
TAKEN = {"id": "mainspring_jobs.id", "token": "token + 1", "payload": PAYLOAD.format(table="mainspring_jobs")}
CHOSEN = f"""
SELECT count(*), sum(status = {RETRYING}), sum(status = {SUSPENDED}), json_group_array(DISTINCT task),
       json_group_array(seq), json_group_array(json_array({", ".join(TAKEN.get(name, name) for name in CLAIMED)}, seq)),
       (SELECT starts_until FROM mainspring_feed) > :now, min(run_at), max(run_at), sum(run_at)
"""
DUE_HERE = f"{WAITING.format(queue=':queue', level=':level')} AND run_at <= :now ORDER BY run_at, seq LIMIT :limit"
PICK = f"""
{CHOSEN}
FROM (SELECT seq AS picked {DUE_HERE})
CROSS JOIN mainspring_jobs ON seq = picked
"""
PICK_WITH_ASIDE = f"""
{CHOSEN}
FROM (SELECT seq AS picked FROM (
          SELECT * FROM (SELECT seq, run_at {DUE_HERE})
          UNION ALL
          SELECT own.seq, own.run_at FROM json_each(:aside) AS line CROSS JOIN mainspring_jobs AS own
          ON own.seq IN (SELECT seq {ASIDE.format(queue=":queue")} AND task = line.value AND priority = :level
                         AND run_at <= :now ORDER BY run_at, seq LIMIT :limit))
      ORDER BY run_at, seq LIMIT :limit)
CROSS JOIN mainspring_jobs ON seq = picked
"""
PICK_SUSPECT = f"""
{CHOSEN}
FROM (SELECT seq AS picked {SUSPECT.format(queue=":queue")} AND task = :task AND run_at <= :now ORDER BY run_at LIMIT 1)
CROSS JOIN mainspring_jobs ON seq = picked
"""
DUE_TIMES = """
SELECT task, json_group_array(run_at) FROM mainspring_jobs
WHERE seq IN (SELECT value FROM json_each(?)) GROUP BY task
"""
STARTED = """
SELECT task, json_group_array(iif(target_type IS NULL, id, json_array(id, target_type, target_id)))
FROM mainspring_jobs WHERE seq IN (SELECT value FROM json_each(?)) GROUP BY task
"""
PUT_ASIDE = f"""
UPDATE mainspring_jobs SET aside = 1 WHERE seq IN (
    SELECT seq FROM (SELECT seq, task {DUE_HERE}) WHERE task NOT IN (SELECT value FROM json_each(:tasks)))
"""
# For speed, this states again what engine.claim.claimed decides; `waits_for` counts only while a job is suspended.
TAKE = f"""
UPDATE mainspring_jobs SET status = {RUNNING}, token = token + 1, worker = :worker, version = :version,
                claimed_at = :now, aside = 0, progress = NULL, note = NULL,
                deadline = iif(timeout > 0, :now + timeout + :stall_grace, {NEVER})
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    tasks: frozenset[str] | None  # tasks that the worker knows; None: any
    stall_grace: Millis
    patience: Millis
    turn: int  # number of this claim; decides when a small claim goes to a starving level, see `shares`
    version: str | None = None  # of the worker's code
    max_set_aside: int = MAX_SET_ASIDE


@dataclass(slots=True)
class Taken:
    """The result of a claim, with the rows as SQLite returned them."""

    number: int = 0
    rows: list[tuple[str, Millis]] = field(default_factory=list)  # with the time of the claim
    next_due: Millis | None = None
    suspects: bool = False
    unknown: set[str] = field(default_factory=set)
    aside: int = 0  # jobs of unknown tasks that were set aside
    unfinished: bool = False  # there are more jobs to set aside

    def add(self, more: Taken) -> None:
        self.number += more.number
        self.rows += more.rows
        self.suspects = more.suspects
        self.unknown |= more.unknown

    def claims(self) -> Claims:
        jobs = [to_claim(row, at) for rows, at in self.rows for row in from_json(rows)]
        return Claims(jobs, self.next_due, self.suspects, frozenset(self.unknown))


def to_claim(row: Sequence[Any], claimed_at: Millis) -> Claim:
    """Make a claim from the columns of CHOSEN: 13 and 14 are its target, 15 its tags.

    Its `ref` is the job's row, queue, task, target and time of the claim: all of them are fixed while it runs.
    """
    target = None if row[13] is None else (row[13], row[14])
    tags = read_tags(row[15]) if row[15] else ()
    return Claim(*row[:13], target, tags, *row[16:-1], (row[-1], row[3], row[2], target, claimed_at))  # type: ignore[call-arg]


def claim(transaction: Transaction, requests: list[ClaimRequest]) -> list[Taken]:
    return [claim_one(transaction, request) for request in requests]


claim.last = True  # type: ignore[attr-defined]  # runs last in a transaction, after jobs were inserted or released


def claim_one(transaction: Transaction, request: ClaimRequest) -> Taken:
    taken = Taken()
    halts = transaction.halts()
    if any(halt.queue is None for halt in halts):
        taken.next_due = earliest(ends(halts, {None}))
        return taken
    paused = {halt.queue for halt in halts}
    heads = read_heads(transaction, request, paused)
    (take_suspect if request.solo else take_waiting)(transaction, request, heads, taken)
    if taken.aside:
        heads = read_heads(transaction, request, paused)
    suspects = [moment for head in heads for moment in head.suspects.values()]
    taken.suspects = any(moment <= transaction.now for moment in suspects)
    taken.unknown.update(task for head in heads for task in head.unknown)
    if not taken.number:
        later = (moment for moment in suspects if moment > transaction.now)
        waiting = (level.head for head in heads for level in head.levels)
        wanted = {want.queue for want in request.wants}
        taken.next_due = earliest([*(() if request.solo else waiting), *later, *ends(halts, wanted)])
    return taken


# -- finding jobs ----------------------------------------------------------------------------------


def read_heads(transaction: Transaction, request: ClaimRequest, paused: set[str | None]) -> list[Head]:
    """Return the heads of the wanted queues that are not paused, in the order of the wants."""
    wants = request.wants
    wanted = dict.fromkeys([want.queue for want in wants])
    if EVERY in wanted:
        rows = from_json(transaction.value(HEADS_OF_ALL))
    elif any(map(is_pattern, wanted)):
        rows = [row for row in from_json(transaction.value(HEADS_OF_ALL)) if is_among(row[0], wanted)]
    else:
        names = [(name,) for name in wanted]
        rows = [row for part in in_values(HEADS_OF, names) for row in from_json(transaction.value(*part))]
    heads = {row[0]: row for row in rows if row[0] not in paused}  # HEADS_OF_ALL may list a queue twice
    return [read_head(transaction, request.tasks, *row) for row in heads.values()]


def read_head(
    transaction: Transaction, tasks: frozenset[str] | None, queue: str, has_apart: int, *heads: Millis | None
) -> Head:
    """Return the head of one queue. Suspects and jobs set aside are rare: they are read only if there are any."""
    suspects: dict[str, Millis] = {}
    aside: list[tuple[str, int, Millis]] = []
    if has_apart:
        suspects = dict(transaction.execute(SUSPECTS, {"queue": queue}).fetchall())
        aside = transaction.execute(SET_ASIDE, {"queue": queue}).fetchall()
    return head_of(queue, heads, suspects, aside, tasks=tasks, now=transaction.now)


def wanted_by(want: Want, heads: Iterable[Head]) -> list[Level]:
    return [level for head in heads if covers(want.queue, head.queue) for level in head.levels]


# -- taking jobs ----------------------------------------------------------------------------------------


def take_waiting(transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], taken: Taken) -> None:
    for want in request.wants:
        room = min(want.limit, request.limit - taken.number)
        patience, turn = request.patience, request.turn
        for level, share in shares(wanted_by(want, heads), room, now=transaction.now, patience=patience, turn=turn):
            if room > 0:
                room -= take_level(transaction, request, level, min(share, room), taken)


def take_level(transaction: Transaction, request: ClaimRequest, level: Level, limit: int, taken: Taken) -> int:
    """Take up to `limit` jobs of one level; return their number. Set aside jobs of unknown tasks at its head."""
    place = {"queue": level.queue, "level": level.priority, "limit": limit}
    pick = PICK
    if level.aside:
        pick, place["aside"] = PICK_WITH_ASIDE, json.dumps(level.aside)
    while (number := take(transaction, request, taken, pick, place)) is None:
        if taken.aside >= request.max_set_aside:
            taken.unfinished = True
            return 0
        taken.aside += put_aside(transaction, request, level, max(limit, ASIDE_LOOK))
    return number


def put_aside(transaction: Transaction, request: ClaimRequest, level: Level, look: int) -> int:
    """Set aside the jobs of unknown tasks among the first `look` jobs of a level; return their number."""
    given = {"queue": level.queue, "level": level.priority, "now": transaction.now, "limit": look}
    return transaction.execute(PUT_ASIDE, {**given, "tasks": json.dumps(sorted(request.tasks or ()))}).rowcount


def take_suspect(transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], taken: Taken) -> None:
    """Take a single suspect and no other job."""
    due = [place for want in request.wants for place in due_suspects(want, heads, transaction.now)]
    if due and request.limit > 0:
        queue, task = due[0]
        take(transaction, request, taken, PICK_SUSPECT, {"queue": queue, "task": task})


def take(transaction: Transaction, request: ClaimRequest, taken: Taken, pick: str, place: dict[str, Any]) -> int | None:
    """Take the jobs that the statement `pick` selects; return their number.

    If some of them are of unknown tasks, take none and return None.
    """
    now, queue = transaction.now, place["queue"]
    picked = transaction.execute(pick, {**place, "now": now}).fetchone()
    number, retrying, suspended, tasks, seqs, rows, asked, *due = picked
    names = from_json(tasks)
    if request.tasks is not None and not request.tasks.issuperset(names):
        return None
    if number:
        given = {"worker": request.worker, "version": request.version, "now": now, "seqs": seqs}
        given["stall_grace"] = request.stall_grace
        transaction.execute(TAKE, given)
        times = waits(transaction, names, seqs, number, due)
        if asked:
            record_starts(transaction, request.worker, queue, seqs, times)
        else:
            count_starts(transaction, queue, times)
        transaction.count(queue, RETRYING, -retrying)
        transaction.count(queue, SUSPENDED, -suspended)
        transaction.count(queue, PENDING, retrying + suspended - number)
        transaction.count(queue, RUNNING, number)
        taken.number += number
        taken.rows.append((rows, now))
    return int(number)


def count_starts(transaction: Transaction, queue: str, times: dict[str, Times]) -> None:
    for task, waited in times.items():
        transaction.count_starts(queue, task, json.dumps(waited))


def record_starts(transaction: Transaction, worker: str, queue: str, seqs: str, times: dict[str, Times]) -> None:
    """Record the jobs that are claimed, because a reader of the change feed asks for them."""
    data = json.dumps({"worker": worker})
    for task, jobs in transaction.execute(STARTED, (seqs,)).fetchall():
        transaction.record_row(ChangeKind.STARTED, queue, task, jobs, data, 0, json.dumps(times[task]))


def waits(
    transaction: Transaction, tasks: list[str], seqs: str, number: int, due: Sequence[Millis]
) -> dict[str, Times]:
    """Return how long the claimed jobs have waited since they were due, by task.

    `due` says when the first and the last of them were due, and the sum of these times. Usually that is enough to know.
    """
    now = transaction.now
    first, last, total = due
    bucket = bucket_of(now - first)
    if len(tasks) == 1 and bucket == bucket_of(now - last):
        return {tasks[0]: times_of_bucket(bucket, number, number * now - total)}
    found = transaction.execute(DUE_TIMES, (seqs,)).fetchall()
    return {task: times_of([now - moment for moment in json.loads(moments)]) for task, moments in found}
