"""How runs end. Every write is fenced: it changes the job only while it runs under the outcome's very token.

A run that simply ended is one write. One that is kept in the history, or brings follow-ups, is a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.ids import new_id
from mainspring.job import FINISHED, WAITING, Move, NewJob, Outcome, ProgressReport, Status
from mainspring.log import get_log
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.counts import day_of
from mainspring.stores.dynamodb.insertion import (
    LARGEST_ITEM,
    Action,
    checked,
    forget_key,
    holder_of,
    is_kept,
    put_keyed,
    write_down,
)
from mainspring.stores.dynamodb.items import (
    STATUSES,
    WORDS,
    history,
    new_item,
    place_resting,
    place_waiting,
    stamp,
    status_of,
    text,
    ttl,
    unstamp,
)
from mainspring.stores.dynamodb.table import TRANSACTION, Refused, Table, together
from mainspring.stores.dynamodb.values import (
    Change,
    Condition,
    Row,
    absent,
    equals,
    exists,
    pack,
    put,
    put_item,
    size,
    unpack,
    update,
)
from mainspring.stores.rules import (
    COUNTS_AS_ATTEMPT,
    keeps_its_time,
    next_status,
    recorded_as,
    refuse_illegal,
    shorten,
)
from mainspring.stores.tables import NEVER

log = get_log("mainspring.dynamodb")

TRIES = 20
LONGEST_ERROR = 4_096  # characters of a message
HISTORY_BEYOND: Millis = 30 * 86_400_000  # that a line of history is kept for, beyond what its job would be


@dataclass(slots=True)
class Ending:
    """What an outcome makes of a job."""

    status: Status
    changes: dict[str, Any]
    attempt: Row | None


async def ack(table: Table, outcomes: Sequence[Outcome]) -> list[Status | None]:
    refuse_illegal(outcomes)
    by_job: dict[str, list[int]] = {}
    for number, outcome in enumerate(outcomes):
        by_job.setdefault(outcome.job_id, []).append(number)
    together_with = [numbers[0] for numbers in by_job.values() if len(numbers) == 1 and is_plain(outcomes[numbers[0]])]
    statuses = await ack_plain(table, {number: outcomes[number] for number in together_with})

    async def ack_job(numbers: list[int]) -> None:
        for number in numbers:
            if number not in statuses:
                statuses[number] = await ack_one(table, outcomes[number])

    await together([ack_job(numbers) for numbers in by_job.values()])
    return [statuses[number] for number in range(len(outcomes))]


def is_plain(outcome: Outcome) -> bool:
    """One write, of which all is known."""
    known = isinstance(outcome.ref, dict) and outcome.ref["token"] == outcome.token
    return known and outcome.move in {Move.DONE, Move.SNOOZE, Move.RELEASE} and not outcome.follow_ups


async def ack_plain(table: Table, outcomes: Mapping[int, Outcome]) -> dict[int, Status | None]:
    """In batches; of those that were not as expected nothing is said, they are looked at one by one."""
    if len(outcomes) < 2:
        return {}
    mark = new_id()
    endings = {number: decide(table, outcome.ref, outcome, mark) for number, outcome in outcomes.items()}
    try:
        results = await table.update_many(
            [
                Change(table.job_key(outcome.job_id), endings[number].changes, fence(outcome.ref))
                for number, outcome in outcomes.items()
            ]
        )
    except BaseException:
        for outcome in outcomes.values():
            table.doubts.setdefault((outcome.job_id, outcome.token), set()).add(mark)
        raise
    done = [
        number
        for number, result in zip(outcomes, results, strict=True)
        if not isinstance(result, Refused) or is_ours(result, mark)
    ]
    await together([afterwards(table, outcomes[number].ref, endings[number], ()) for number in done])
    return {number: endings[number].status for number in done}


def is_ours(refused: Refused, mark: str) -> bool:
    """Our own write, met when it was repeated after its answer got lost."""
    return str(unpack(refused.item or {}).get("acked")).startswith(mark)


async def ack_one(table: Table, outcome: Outcome) -> Status | None:
    """The new status, or None: the claim was lost."""
    mark = new_id()
    row: Row | None = outcome.ref if isinstance(outcome.ref, dict) else None
    if row is None or row["token"] != outcome.token:
        row = await table.get(table.job_key(outcome.job_id))
    follow_ups = FollowUps(table, outcome)
    for _ in range(TRIES):
        if row is None or row["token"] != outcome.token or status_of(row) is not Status.RUNNING:
            return written_before(table, row, outcome, mark)
        ending = decide(table, row, outcome, mark)
        try:
            await write(table, row, ending, await follow_ups.actions(ending))
        except ConditionFailed as failed:
            row = unpack(failed.item) if failed.item else None
        except Cancelled as cancelled:
            if cancelled.failed(0):
                item = cancelled.item(0)
                row = unpack(item) if item else None
            else:
                follow_ups.learn(cancelled)
        except StoreUnavailable:
            table.doubts.setdefault((outcome.job_id, outcome.token), set()).add(mark)
            raise
        else:
            await afterwards(table, row, ending, follow_ups.jobs)
            return ending.status
    msg = f"job {outcome.job_id} changed too often to be acked"
    raise StoreUnavailable(msg)


def written_before(table: Table, row: Row | None, outcome: Outcome, mark: str) -> Status | None:
    """An outcome that had arrived when its answer got lost is no lost claim."""
    marks = table.doubts.pop((outcome.job_id, outcome.token), set()) | {mark}
    acked, _, word = (row or {}).get("acked", "").partition("#")
    return STATUSES[word] if acked in marks else None


# -- deciding -------------------------------------------------------------------------------------------


def decide(table: Table, row: Row, outcome: Outcome, mark: str) -> Ending:
    now = table.clock.now()
    cancel = bool(row.get("cancel_requested"))
    status = next_status(outcome, cancel=cancel, crashes=row["crashes"])
    asked_for = cancel and status is Status.CANCELLED
    changes: dict[str, Any] = {
        "status": WORDS[status],
        "attempts": row["attempts"] + (outcome.move in COUNTS_AS_ATTEMPT),
        "crashes": row["crashes"] + (outcome.move is Move.CRASH and status is not Status.CANCELLED),
        **text("result", outcome.result),
        "reason": (asked_for and row.get("reason")) or outcome.reason or None,
        "lock_expires_at": None,
        "acked": f"{mark}#{WORDS[status]}",
        **failure_of(outcome),
    }
    if status in FINISHED:
        changes |= finish(row, status, now)
        if outcome.started_at:
            changes["started_at"] = stamp(outcome.started_at)
        changes |= place_resting(row, status, table.shards)
    elif status in WAITING:
        changes["scheduled_for"] = due_again(row, outcome, now)
        changes |= place_waiting(row | changes, table.shards)
    else:
        changes |= place_resting(row, status, table.shards)
    return Ending(status, fitted(row, changes), attempt_of(row, outcome, status, now))


def finish(row: Row, status: Status, now: Millis) -> dict[str, Any]:
    expires = now + row["keep_dead" if status is Status.DEAD_LETTER else "keep"]
    return {
        "completed_at": stamp(now),
        "expires_at": stamp(expires) if expires < NEVER else None,
        "ttl": ttl(expires),
    }


def due_again(row: Row, outcome: Outcome, now: Millis) -> str:
    if keeps_its_time(outcome):
        return min(str(row["scheduled_for"]), stamp(now))  # due when claimed, even if the clock was set back since
    return stamp(now + outcome.delay)


def failure_of(outcome: Outcome) -> dict[str, Any]:
    if outcome.failure is None:
        return {}
    return {
        "error_type": outcome.failure.type,
        "last_error": outcome.failure.message[:LONGEST_ERROR],
        "traceback": shorten(outcome.failure.traceback) or None,
    }


def fitted(row: Row, changes: dict[str, Any]) -> dict[str, Any]:
    """A result that does not fit is left out, and the job says so: the work was done."""
    length = len(changes["result"] or changes["result_zlib"] or "")
    if not length or size(pack(row | changes)) <= LARGEST_ITEM - 1024:
        return changes
    log.warning("result_left_out", job_id=row["SK"], task=row["job_type"], bytes=length)
    words = f"its result of {length // 1024} KB does not fit into an item of DynamoDB and was not kept"
    return changes | text("result", None) | {"reason": words}


def attempt_of(row: Row, outcome: Outcome, status: Status, now: Millis) -> Row | None:
    move = recorded_as(outcome, status)
    if move is None:
        return None
    kept = max(row["keep"], row["keep_dead"])
    return {
        "PK": history(row["SK"]),
        "SK": f"run#{row['token']:012d}",
        "locked_by": row.get("locked_by"),
        "started_at": stamp(outcome.started_at or unstamp(row["started_at"])),
        "completed_at": stamp(outcome.finished_at or now),
        "move": move.value,
        "ttl": ttl(now + outcome.delay + kept + HISTORY_BEYOND),
        **failure_of(outcome),
    }


# -- writing --------------------------------------------------------------------------------------------


def fence(row: Row) -> list[Condition]:
    """Only while it runs under this token; and with a cancel asked for, or not, as we decided by."""
    asked = exists("cancel_requested") if row.get("cancel_requested") else absent("cancel_requested")
    return [equals("token", row["token"]), equals("status", WORDS[Status.RUNNING]), asked]


async def write(table: Table, row: Row, ending: Ending, more: Sequence[Action]) -> None:
    change = update(table.job_key(row["SK"]), ending.changes, only_if=fence(row))
    actions: list[Action] = [("Update", change), *more]
    if ending.attempt is not None:
        actions.append(("Put", put(ending.attempt)))
    if len(actions) == 1:
        await table.update(change)
        return
    if len(actions) > TRANSACTION:
        msg = f"job {row['SK']} brings too many follow-ups: DynamoDB writes at most {TRANSACTION} items at once"
        raise StoreError(msg)
    await table.transact(*actions)


async def afterwards(table: Table, row: Row, ending: Ending, follow_ups: Sequence[NewJob]) -> None:
    """What need not be in the same write: counts, wake-ups, and a key that nobody needs."""
    table.counts.add(row["queue"], Status.RUNNING, -1)
    table.counts.add(row["queue"], ending.status, 1, day_of(ending.status, ending.changes.get("expires_at")))
    table.held.get(row.get("locked_by", ""), {}).pop(row["SK"], None)
    for job in follow_ups:
        table.counts.add(job.queue, Status.PENDING, 1)
        table.crew.call([job.queue])
    if ending.status in WAITING:
        table.crew.call([row["queue"]])
    if ending.status in FINISHED:
        await forget_key(table, row)


class FollowUps:
    """The jobs that an outcome brings, as actions of its transaction; those whose key is taken are left out."""

    def __init__(self, table: Table, outcome: Outcome) -> None:
        self._table = table
        self._parent = outcome.job_id
        self.jobs = list({job.id: job for job in outcome.follow_ups}.values())
        self._found: dict[str, Row] = {}  # job -> the state of its key
        self._written: list[tuple[NewJob, int]] = []  # with the number of its first action
        self._asked: list[NewJob] = []
        self._ready = False

    async def actions(self, ending: Ending) -> list[Action]:
        now = self._table.clock.now()
        if self.jobs and not self._ready:
            await write_down(self._table, {job.queue for job in self.jobs})
            self._ready = True
        await self._drop_those_whose_key_is_held(now, parent_ends=ending.status in FINISHED)
        self._written = []
        actions: list[Action] = []
        for job in self.jobs:
            item = checked(new_item(job, now, self._table.shards))
            self._written.append((job, 1 + len(actions)))
            if job.dedupe_key is None:
                actions.append(("Put", put_item(item, [absent("PK")])))
            else:
                actions += put_keyed(job, item, self._found.get(job.id), now)
        return actions

    async def _drop_those_whose_key_is_held(self, now: Millis, *, parent_ends: bool) -> None:
        for job in list(self._asked):
            found = self._found[job.id]
            freed = parent_ends and found["job_sk"] == self._parent and not is_kept(found, now)
            if not freed and await holder_of(self._table, found, now):
                self.jobs.remove(job)
        self._asked = []
        keys = set()
        for job in list(self.jobs):
            if job.dedupe_key is not None and (job.task, job.dedupe_key) in keys:
                self.jobs.remove(job)  # of two with one key the first
            keys.add((job.task, job.dedupe_key))

    def learn(self, cancelled: Cancelled) -> None:
        """From a transaction that failed: which jobs are there already, and who has which key."""
        for job, number in self._written:
            if cancelled.failed(number):
                self.jobs.remove(job)
            elif job.dedupe_key is not None and cancelled.failed(number + 1):
                item = cancelled.item(number + 1)
                if item:
                    self._found[job.id] = unpack(item)
                    self._asked.append(job)
                else:
                    self._found.pop(job.id, None)


# -- progress -------------------------------------------------------------------------------------------


async def report(table: Table, reports: Sequence[ProgressReport]) -> set[str]:
    accepted = await together([report_one(table, one) for one in reports])
    return {one.job_id for one, good in zip(reports, accepted, strict=True) if good}


async def report_one(table: Table, one: ProgressReport) -> bool:
    changes: Mapping[str, Any] = {"progress": one.fraction, "note": one.note or None}
    held = [equals("token", one.token), equals("status", WORDS[Status.RUNNING])]
    try:
        await table.update(update(table.job_key(one.job_id), changes, only_if=held))
    except ConditionFailed:
        return False
    return True
