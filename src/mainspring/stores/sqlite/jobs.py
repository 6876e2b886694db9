"""A job's way through the file: insert, claim, finish. Each function works on a whole batch in a few statements.

Rows come back from SQLite as one JSON text per batch: see writer.py for why nothing is done per row.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import IllegalMove, SystemHalted
from mainspring.job import (
    FOREVER,
    MAX_CRASHES,
    TRANSITIONS,
    Claim,
    Failure,
    Inserted,
    Move,
    NewJob,
    Outcome,
    ProgressReport,
    Status,
)
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Halt, Want
from mainspring.stores.sqlite.batch import in_values
from mainspring.stores.sqlite.rows import (
    CANCELLED,
    CODES,
    COMPLETED,
    DEAD_LETTER,
    NEVER,
    PENDING,
    RUNNING,
    STATUSES,
)
from mainspring.stores.sqlite.writer import Transaction

LONG_PAYLOAD = 1024  # characters; beyond that it goes into a table of its own
LONGEST_TRACEBACK = 16_384
PRIORITIES = range(4)

# -- insert ---------------------------------------------------------------------------------------

INSERT = """
INSERT INTO jobs (id, task, queue, priority, run_at, max_attempts, timeout, created_at, keep, keep_dead,
                  payload, dedupe_key, target_type, target_id, tags, options)
SELECT * FROM (VALUES {values}) WHERE NOT EXISTS (SELECT 1 FROM archive WHERE id = column1)
ON CONFLICT DO NOTHING
"""
INSERT_PAYLOADS = "INSERT OR IGNORE INTO payloads VALUES {values}"
INSERT_TAGS = "INSERT OR IGNORE INTO tags VALUES {values}"
KNOWN = """
SELECT EXISTS (SELECT 1 FROM jobs WHERE id = :id) OR EXISTS (SELECT 1 FROM archive WHERE id = :id)
"""
LIVE_HOLDER = "SELECT id FROM jobs WHERE task = ? AND dedupe_key = ?"
LASTING_HOLDER = "SELECT job_id FROM dedupe WHERE task = ? AND dedupe_key = ? AND expires_at > ?"
HOLD_LASTINGLY = "INSERT OR REPLACE INTO dedupe (task, dedupe_key, job_id, expires_at) VALUES (?, ?, ?, ?)"


def insert(transaction: Transaction, jobs: list[NewJob]) -> list[Inserted]:
    refuse_while_halted(transaction, jobs)
    return insert_jobs(transaction, jobs)


def insert_jobs(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Jobs without a dedupe key go in together; those with one are looked up first, in their order."""
    plain = [job for job in jobs if job.dedupe_key is None]
    if plain:
        insert_rows(transaction, plain)
    return [
        Inserted(job.id, created=True) if job.dedupe_key is None else insert_unique(transaction, job) for job in jobs
    ]


def refuse_while_halted(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    for halt in current_halts(transaction):
        if not halt.accept and (halt.queue is None or any(job.queue == halt.queue for job in jobs)):
            what = "the system is halted" if halt.queue is None else f"queue {halt.queue!r} is paused"
            msg = f"{what} by {halt.actor} ({halt.reason or 'no reason given'}) and refuses new jobs"
            raise SystemHalted(msg)


def insert_rows(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    last = transaction.value("SELECT max(seq) FROM jobs") or 0
    rows = [to_row(job, transaction.now) for job in jobs]
    inserted = sum(transaction.execute(*chunk).rowcount for chunk in in_values(INSERT, rows))
    if inserted != len(jobs):  # some of these ids are here already: a repeated insert, which counts once
        first = {job.id: job for job in reversed(jobs)}
        jobs = [first[job_id] for (job_id,) in transaction.execute("SELECT id FROM jobs WHERE seq > ?", (last,))]
    for queue, number in Counter(job.queue for job in jobs).items():
        transaction.count(queue, PENDING, number)
        transaction.woken.add(queue)
    insert_beside(transaction, jobs)


def to_row(job: NewJob, now: Millis) -> tuple[Any, ...]:
    target_type, target_id = job.target or (None, None)
    return (
        job.id,
        job.task,
        job.queue,
        int(job.priority),
        now + job.delay if job.run_at is None else job.run_at,
        job.max_attempts,
        job.timeout,
        now,
        job.keep,
        job.keep_dead,
        job.payload if len(job.payload) <= LONG_PAYLOAD else None,
        job.dedupe_key,
        target_type,
        target_id,
        json.dumps(job.tags) if job.tags else None,
        job.options,
    )


def insert_beside(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    """What stands in tables of its own: long payloads and tags."""
    long = [(job.id, job.payload) for job in jobs if len(job.payload) > LONG_PAYLOAD]
    tags = [(tag, job.id) for job in jobs for tag in job.tags]
    for chunk in chain(in_values(INSERT_PAYLOADS, long), in_values(INSERT_TAGS, tags)):
        transaction.execute(*chunk)


def insert_unique(transaction: Transaction, job: NewJob) -> Inserted:
    if transaction.value(KNOWN, {"id": job.id}):
        return Inserted(job.id, created=True)
    if holder := dedupe_holder(transaction, job.task, job.dedupe_key):
        return Inserted(holder, created=False)
    insert_rows(transaction, [job])
    if job.dedupe_for is not None:
        expires_at = NEVER if job.dedupe_for == FOREVER else transaction.now + job.dedupe_for
        transaction.execute(HOLD_LASTINGLY, (job.task, job.dedupe_key, job.id, expires_at))
    return Inserted(job.id, created=True)


def dedupe_holder(transaction: Transaction, task: str, key: str | None) -> str | None:
    """The job that holds the key: a live one, or one whose record outlives it."""
    holder: str | None = transaction.value(LIVE_HOLDER, (task, key))
    return holder or transaction.value(LASTING_HOLDER, (task, key, transaction.now))


# -- halts ----------------------------------------------------------------------------------------


def current_halts(transaction: Transaction) -> list[Halt]:
    if transaction.halts is None:
        rows = transaction.execute("SELECT queue, actor, reason, since, until, accept FROM halts").fetchall()
        transaction.halts = [to_halt(row) for row in rows if row[4] is None or row[4] > transaction.now]
    return transaction.halts


def to_halt(row: tuple[Any, ...]) -> Halt:
    queue, actor, reason, since, until, accept = row
    return Halt(
        actor=actor,
        reason=reason,
        since=to_datetime(since),
        until=None if until is None else to_datetime(until),
        queue=queue or None,
        accept=bool(accept),
    )


# -- claim ----------------------------------------------------------------------------------------

LEVEL = "FROM jobs INDEXED BY jobs_waiting WHERE queue = {queue} AND priority = {level} AND status < 2 AND crashes = 0"
HEADS = "SELECT " + ", ".join(
    f"(SELECT run_at {LEVEL.format(queue=':queue', level=level)} ORDER BY run_at LIMIT 1)" for level in PRIORITIES
)
CLAIM_COLUMNS = """
seq, status, jobs.id, token + 1, task, queue,
coalesce(payload, (SELECT body FROM payloads WHERE job_id = jobs.id)), priority, attempts, max_attempts,
crashes, timeout, run_at, created_at, dedupe_key, target_type, target_id, tags, options
"""
PICK = f"""
SELECT json_group_array(json_array({CLAIM_COLUMNS}))
FROM (SELECT seq AS picked {LEVEL.format(queue=":queue", level=":level")} AND run_at <= :now
      ORDER BY run_at, seq LIMIT :limit)
CROSS JOIN jobs ON seq = picked
"""
PICK_SUSPECT = f"""
SELECT json_group_array(json_array({CLAIM_COLUMNS}))
FROM (SELECT seq AS picked FROM jobs INDEXED BY jobs_suspect
      WHERE queue = :queue AND status < 2 AND crashes > 0 AND run_at <= :now ORDER BY run_at LIMIT 1)
CROSS JOIN jobs ON seq = picked
"""
SUSPECT_HEAD = """
SELECT run_at FROM jobs INDEXED BY jobs_suspect
WHERE queue = ? AND status < 2 AND crashes > 0 ORDER BY run_at LIMIT 1
"""
TAKE = f"""
UPDATE jobs SET status = {RUNNING}, token = token + 1, worker = :worker, claimed_at = :now,
                progress = NULL, note = NULL, deadline = iif(timeout > 0, :now + timeout + :stall_grace, {NEVER})
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""
QUEUES = """
WITH RECURSIVE found(name) AS (
    SELECT min(queue) FROM jobs INDEXED BY {index}
    UNION ALL
    SELECT (SELECT min(queue) FROM jobs INDEXED BY {index} AND queue > name) FROM found WHERE name IS NOT NULL)
SELECT json_group_array(name) FROM found WHERE name IS NOT NULL
"""
WAITING_QUEUES = QUEUES.format(index="jobs_waiting WHERE status < 2 AND crashes = 0")
SUSPECT_QUEUES = QUEUES.format(index="jobs_suspect WHERE status < 2 AND crashes > 0")


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    stall_grace: Millis
    patience: Millis
    turn: int  # counts a worker's claims, for the small ones' share of starving levels


def claim(transaction: Transaction, requests: list[ClaimRequest]) -> list[Claims]:
    return [claim_one(transaction, request) for request in requests]


claim.last = True  # type: ignore[attr-defined]  # within one transaction: after what was inserted or released


def claim_one(transaction: Transaction, request: ClaimRequest) -> Claims:
    halts = current_halts(transaction)
    if any(halt.queue is None for halt in halts):
        return Claims([], next_due=earliest(ends(halts)))
    groups = open_groups(transaction, request.wants, {halt.queue for halt in halts})
    suspects = suspect_heads(transaction, groups)
    picked, dues = (pick_suspect if request.solo else pick_waiting)(transaction, request, groups)
    due_suspect = any(head <= transaction.now for head in suspects)
    if picked:
        take(transaction, request, picked)
        return Claims([to_claim(row) for row in picked], suspects=due_suspect)
    later = (head for head in suspects if head > transaction.now)
    return Claims([], next_due=earliest([*dues, *later, *ends(halts)]), suspects=due_suspect)


@dataclass(slots=True)
class Group:
    """The queues that one want is about: one, or for `*` every queue that has something waiting."""

    queues: list[str]
    limit: int


def open_groups(transaction: Transaction, wants: Sequence[Want], paused: set[str | None]) -> list[Group]:
    named = ([want.queue] if want.queue != EVERY_QUEUE else waiting_queues(transaction) for want in wants)
    return [
        Group([queue for queue in queues if queue not in paused], want.limit)
        for queues, want in zip(named, wants, strict=True)
    ]


def waiting_queues(transaction: Transaction) -> list[str]:
    found = (json.loads(transaction.value(statement)) for statement in (WAITING_QUEUES, SUSPECT_QUEUES))
    return sorted(set(chain.from_iterable(found)))


@dataclass(slots=True)
class Level:
    """One priority of one queue, and since when (or from when) its first job is due."""

    priority: int
    queue: str
    head: Millis


def pick_waiting(
    transaction: Transaction, request: ClaimRequest, groups: Sequence[Group]
) -> tuple[list[list[Any]], list[Millis]]:
    """The rows to take, and the times at which jobs are due."""
    picked: list[list[Any]] = []
    dues: list[Millis] = []
    for group in groups:
        levels = levels_of(transaction, group.queues)
        dues += (level.head for level in levels)
        room = min(group.limit, request.limit - len(picked))
        for level, share in shares(levels, transaction.now, request, room):
            rows = pick_level(transaction, level, min(share, room), picked)
            picked += rows
            room -= len(rows)
    return picked, dues


def levels_of(transaction: Transaction, queues: Sequence[str]) -> list[Level]:
    return [
        Level(priority, queue, head)
        for queue in queues
        for priority, head in enumerate(transaction.execute(HEADS, {"queue": queue}).fetchone())
        if head is not None
    ]


def pick_level(transaction: Transaction, level: Level, limit: int, picked: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The level's next rows; what it gave before in this claim still waits in the index and is passed over."""
    if limit <= 0:
        return []
    before = {row[0] for row in picked if row[5] == level.queue and row[7] == level.priority}
    parameters = {
        "queue": level.queue,
        "level": level.priority,
        "now": transaction.now,
        "limit": limit + len(before),
    }
    rows: list[list[Any]] = json.loads(transaction.value(PICK, parameters))
    return [row for row in rows if row[0] not in before] if before else rows


def shares(levels: Sequence[Level], now: Millis, request: ClaimRequest, limit: int) -> list[tuple[Level, int]]:
    """Which levels to take from, in order, and how many of each at most.

    By priority; but a priority whose head has waited beyond the patience gets a quarter of the room first (a small
    claim: every fourth time all of it). Not more, or an old backlog of low priority would hold up what is urgent.
    """
    due = sorted((level for level in levels if level.head <= now), key=lambda level: (level.priority, level.head))
    by_priority = [(level, limit) for level in due]
    starving = [level for level in heads_by_priority(due)[1:] if now - level.head > request.patience]
    if not starving:
        return by_priority
    if limit >= SMALLEST_SHARED_CLAIM:
        return [(level, limit // SMALLEST_SHARED_CLAIM) for level in starving] + by_priority
    turn, is_theirs = request.turn // SMALLEST_SHARED_CLAIM, request.turn % SMALLEST_SHARED_CLAIM == 0
    return [(starving[turn % len(starving)], limit), *by_priority] if is_theirs else by_priority


def heads_by_priority(due: Sequence[Level]) -> list[Level]:
    """Of each priority the queue that has waited longest."""
    first: dict[int, Level] = {}
    for level in due:
        first.setdefault(level.priority, level)
    return list(first.values())


SMALLEST_SHARED_CLAIM = 4


def pick_suspect(
    transaction: Transaction, request: ClaimRequest, groups: Sequence[Group]
) -> tuple[list[list[Any]], list[Millis]]:
    """One, and nothing beside it."""
    del request
    for queue in chain.from_iterable(group.queues for group in groups):
        rows: list[list[Any]] = json.loads(transaction.value(PICK_SUSPECT, {"queue": queue, "now": transaction.now}))
        if rows:
            return rows, []
    return [], []


def suspect_heads(transaction: Transaction, groups: Iterable[Group]) -> list[Millis]:
    queues = set(chain.from_iterable(group.queues for group in groups))
    heads = (transaction.value(SUSPECT_HEAD, (queue,)) for queue in queues)
    return [head for head in heads if head is not None]


def take(transaction: Transaction, request: ClaimRequest, rows: Sequence[Sequence[Any]]) -> None:
    transaction.execute(
        TAKE,
        {
            "worker": request.worker,
            "now": transaction.now,
            "stall_grace": request.stall_grace,
            "seqs": json.dumps([row[0] for row in rows]),
        },
    )
    for (queue, status), number in Counter((row[5], row[1]) for row in rows).items():
        transaction.count(queue, status, -number)
        transaction.count(queue, RUNNING, number)


def to_claim(row: Sequence[Any]) -> Claim:
    target_type, target_id, tags, options = row[15:19]
    target = None if target_type is None else (target_type, target_id)
    ref = (row[0], row[5])  # its row and its queue, which do not change while it runs
    return Claim(*row[2:15], target, tuple(json.loads(tags)) if tags else (), options, ref)  # type: ignore[call-arg]


def ends(halts: Iterable[Halt]) -> list[Millis]:
    return [to_millis(halt.until) for halt in halts if halt.until is not None]


def earliest(times: Iterable[Millis]) -> Millis | None:
    return min(times, default=None)


# -- finish ---------------------------------------------------------------------------------------

HELD = f"""
WITH outcome(number, job_id, job_token) AS (VALUES {{values}})
SELECT json_group_array(json_array(number, seq, id, queue, cancel, attempts, crashes, worker, claimed_at))
FROM outcome CROSS JOIN jobs ON id = job_id AND token = job_token AND status = {RUNNING}
"""
ARCHIVE = f"""
WITH ended(
    ended_seq, end_status, is_attempt, is_crash, began_at, end_reason, end_error_type, end_error, end_result, now
) AS (VALUES {{values}})
INSERT INTO archive
SELECT id, task, queue, end_status, priority, run_at, attempts + is_attempt, max_attempts, crashes + is_crash, token,
       worker, coalesce(began_at, claimed_at), now,
       min({NEVER}, now + iif(end_status = {DEAD_LETTER}, keep_dead, keep)), timeout, created_at, keep,
       keep_dead, dedupe_key, target_type, target_id, tags, options,
       coalesce(end_reason, reason), progress, note, coalesce(end_error_type, error_type),
       iif(end_error_type IS NULL, error, end_error), payload, end_result
FROM ended CROSS JOIN jobs ON seq = ended_seq
"""
REMOVE = "DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?))"
ARCHIVE_COMPLETED = f"""
INSERT INTO archive -- columns 1 to 6: seq, id, token, began, result, now; sqlite3 counts rows only of what begins so
SELECT id, task, queue, {COMPLETED}, priority, run_at, attempts + 1, max_attempts, crashes, token, worker,
       coalesce(column4, claimed_at), column6, min({NEVER}, column6 + keep), timeout, created_at, keep, keep_dead,
       dedupe_key, target_type, target_id, tags, options, reason, progress, note, error_type, error, payload, column5
FROM (VALUES {{values}}) CROSS JOIN jobs ON seq = column1 AND +id = column2 AND token = column3 AND status = {RUNNING}
"""
GO_ON = """
UPDATE jobs SET status = :status, run_at = coalesce(:run_at, min(run_at, :now)), attempts = attempts + :attempts,
                crashes = crashes + :crashes, cancel = 0, reason = :reason,
                error_type = coalesce(:error_type, error_type), error = iif(:error_type IS NULL, error, :error)
WHERE seq = :seq
"""
RECORD_ATTEMPT = """
INSERT INTO attempts (job_id, number, worker, started_at, finished_at, move, error_type, error, traceback)
VALUES (:job_id, (SELECT coalesce(max(number), 0) + 1 FROM attempts WHERE job_id = :job_id), :worker, :started_at,
        :finished_at, :move, :error_type, :error, :traceback)
"""
COUNTS_AS_ATTEMPT = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
LEADS_TO = {move: CODES[status] for move, status in TRANSITIONS[Status.RUNNING].items()}


@dataclass(slots=True)
class Held:
    """A running job of which the fence said yes."""

    number: int  # which outcome
    seq: int
    id: str
    queue: str
    cancel: int
    attempts: int
    crashes: int
    worker: str
    claimed_at: Millis


def ack(transaction: Transaction, outcomes: list[Outcome]) -> list[Status | None]:
    """The fence: only a job that runs under the outcome's very token is touched. A zombie's outcome finds none."""
    refuse_illegal(outcomes)
    if complete(transaction, outcomes):
        return [Status.COMPLETED] * len(outcomes)
    statuses: list[Status | None] = [None] * len(outcomes)
    ended: list[tuple[Held, int, Outcome]] = []
    for job in first_of_each(held_jobs(transaction, outcomes)):
        outcome = outcomes[job.number]
        status = next_status(job, outcome)
        statuses[job.number] = STATUSES[status]
        if status >= COMPLETED:
            ended.append((job, status, outcome))
        else:
            go_on(transaction, job, status, outcome)
        if outcome.move is not Move.DONE:
            record_attempt(transaction, job, status, outcome)
    end(transaction, ended)
    follow_ups = [
        job for outcome, status in zip(outcomes, statuses, strict=True) if status for job in outcome.follow_ups
    ]
    insert_jobs(transaction, follow_ups)  # last, since one may want the dedupe key that its parent held
    return statuses


def complete(transaction: Transaction, outcomes: Sequence[Outcome]) -> bool:
    """The usual case in half the time: every run succeeded and none lost its claim. Else nothing is done, and False.

    The claim's `ref` says in which row the job is, but a row may by now be another job's: id and token decide.
    """
    if any(outcome.move is not Move.DONE or outcome.follow_ups or outcome.ref is None for outcome in outcomes):
        return False
    rows = [to_completion(outcome, transaction.now) for outcome in outcomes]
    transaction.execute("SAVEPOINT completing")
    try:
        done = sum(transaction.execute(*chunk).rowcount for chunk in in_values(ARCHIVE_COMPLETED, rows))
    except sqlite3.IntegrityError:  # two outcomes for one claim
        done = 0
    if done == len(rows):
        transaction.execute(REMOVE, (json.dumps([row[0] for row in rows]),))
        for queue, number in Counter(outcome.ref[1] for outcome in outcomes).items():
            transaction.count(queue, RUNNING, -number)
            transaction.count(queue, COMPLETED, number)
    else:
        transaction.execute("ROLLBACK TO completing")
    transaction.execute("RELEASE completing")
    return done == len(rows)


def to_completion(outcome: Outcome, now: Millis) -> tuple[Any, ...]:
    return outcome.ref[0], outcome.job_id, outcome.token, outcome.started_at or None, outcome.result, now


def refuse_illegal(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.move not in LEADS_TO:
            msg = f"job {outcome.job_id}: {outcome.move} is no way for a run to end"
            raise IllegalMove(msg)


def held_jobs(transaction: Transaction, outcomes: Sequence[Outcome]) -> Iterable[Held]:
    fences = [(number, outcome.job_id, outcome.token) for number, outcome in enumerate(outcomes)]
    for chunk in in_values(HELD, fences):
        for row in json.loads(transaction.value(*chunk)):
            yield Held(*row)


def first_of_each(held: Iterable[Held]) -> Iterable[Held]:
    """Two outcomes for one claim: the first counts."""
    seen: set[int] = set()
    for job in held:
        if job.seq not in seen:
            seen.add(job.seq)
            yield job


def next_status(job: Held, outcome: Outcome) -> int:
    """Where the outcome leads; a cancellation that came meanwhile is not lost, and the last crash is the end."""
    status = LEADS_TO[outcome.move]
    if outcome.move is Move.CRASH and job.crashes + 1 >= MAX_CRASHES:
        status = DEAD_LETTER
    if job.cancel and status < COMPLETED:
        status = CANCELLED
    return status


def go_on(transaction: Transaction, job: Held, status: int, outcome: Outcome) -> None:
    """The job stays live: it waits for its next run."""
    keeps_its_time = outcome.move in {Move.RELEASE, Move.CRASH} and not outcome.delay
    failure = outcome.failure
    transaction.execute(
        GO_ON,
        {
            "seq": job.seq,
            "status": status,
            "run_at": None if keeps_its_time else transaction.now + outcome.delay,
            "now": transaction.now,  # it was due when it was claimed, even if the clock was set back since
            "attempts": int(outcome.move in COUNTS_AS_ATTEMPT),
            "crashes": int(outcome.move is Move.CRASH),
            "reason": outcome.reason,
            "error_type": failure.type if failure else None,
            "error": failure.message if failure else None,
        },
    )
    transaction.count(job.queue, RUNNING, -1)
    transaction.count(job.queue, status, 1)
    transaction.woken.add(job.queue)


def end(transaction: Transaction, ended: Sequence[tuple[Held, int, Outcome]]) -> None:
    """The jobs are finished: they leave the live table for the archive."""
    if not ended:
        return
    archive(transaction, [to_end(job, status, outcome, transaction.now) for job, status, outcome in ended])
    for (queue, status), number in Counter((job.queue, status) for job, status, _ in ended).items():
        transaction.count(queue, RUNNING, -number)
        transaction.count(queue, status, number)


def archive(transaction: Transaction, rows: Sequence[Sequence[Any]]) -> None:
    for chunk in in_values(ARCHIVE, rows):
        transaction.execute(*chunk)
    transaction.execute(REMOVE, (json.dumps([row[0] for row in rows]),))


def to_end(job: Held, status: int, outcome: Outcome, now: Millis) -> tuple[Any, ...]:
    failure = outcome.failure
    return (
        job.seq,
        status,
        int(outcome.move in COUNTS_AS_ATTEMPT),
        int(outcome.move is Move.CRASH and status != CANCELLED),
        outcome.started_at or None,
        outcome.reason or None,
        failure.type if failure else None,
        failure.message if failure else None,
        outcome.result,
        now,
    )


def record_attempt(transaction: Transaction, job: Held, status: int, outcome: Outcome) -> None:
    """History of what went wrong. A snooze or release that really led back is no attempt and leaves no trace."""
    if outcome.move in {Move.SNOOZE, Move.RELEASE, Move.SUSPEND} and status != CANCELLED:
        return
    move = Move.CANCEL if status == CANCELLED else Move.DEAD if status == DEAD_LETTER else outcome.move
    failure = outcome.failure or Failure("", "")
    transaction.execute(
        RECORD_ATTEMPT,
        {
            "job_id": job.id,
            "worker": job.worker,
            "started_at": outcome.started_at or job.claimed_at,
            "finished_at": outcome.finished_at or transaction.now,
            "move": Move.CRASH if outcome.move is Move.CRASH else move,
            "error_type": failure.type or None,
            "error": failure.message or None,
            "traceback": shorten(failure.traceback) or None,
        },
    )


def shorten(traceback: str) -> str:
    """Keep both ends: where it began and where it broke."""
    if len(traceback) <= LONGEST_TRACEBACK:
        return traceback
    half = LONGEST_TRACEBACK // 2
    return f"{traceback[:half]}\n  … shortened …\n{traceback[-half:]}"


# -- progress -------------------------------------------------------------------------------------

REPORT = f"""
UPDATE jobs SET progress = ?, note = ? WHERE id = ? AND token = ? AND status = {RUNNING}
"""


def report(transaction: Transaction, reports: list[ProgressReport]) -> list[bool]:
    return [
        transaction.execute(REPORT, (one.fraction, one.note, one.job_id, one.token)).rowcount == 1 for one in reports
    ]
