"""End runs. Every write is fenced: it changes the job only while the job runs under exactly the outcome's token.

A run that simply ended is one write. The outcome is a transaction if it adds to the history, brings follow-ups or
steps, or waits for a key, or if another job waits for this job's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.ids import new_id
from mainspring.job import CLAIMABLE, FINISHED, Move, NewJob, Outcome, ProgressReport, Status
from mainspring.log import get_log
from mainspring.stored_options import has_on_end
from mainspring.stores.dynamodb import steps, wakeups
from mainspring.stores.dynamodb.client import Cancelled, ConditionFailed
from mainspring.stores.dynamodb.counts import day_of
from mainspring.stores.dynamodb.failures import failure_actions, past_failures, register_notes
from mainspring.stores.dynamodb.insertion import (
    MAX_ITEM_BYTES,
    PendingInserts,
    forget_key,
    named_among,
    register_queues,
)
from mainspring.stores.dynamodb.items import (
    STATUSES,
    WORDS,
    history,
    place_of,
    stamp,
    state_of,
    status_of,
    text,
    to_attributes,
    ttl,
)
from mainspring.stores.dynamodb.journal import JOURNAL, recorded_update
from mainspring.stores.dynamodb.table import TRANSACTION, Action, Doubts, Refused, Table, together
from mainspring.stores.dynamodb.values import (
    Condition,
    ItemUpdate,
    Row,
    absent,
    equals,
    exists,
    pack,
    put,
    size,
    unpack,
    update,
)
from mainspring.stores.engine import feed
from mainspring.stores.engine.ack import Conclusion, JobState, conclude, note_inserted, refuse_illegal, storable
from mainspring.stores.engine.ends import jobs_after
from mainspring.stores.feed import LONGEST_TEXT, ChangeKind, Entry

log = get_log("mainspring.dynamodb")

MAX_TRIES = 20
MARKS = ("cancel_requested", "awaited", "steps")  # attributes that others may have set since the job was claimed
HISTORY_MARGIN: Millis = 30 * 86_400_000  # an attempt is kept longer than its job by this


@dataclass(slots=True)
class ItemChanges:
    """What one outcome changes in the job's item, and what it writes in the same transaction."""

    status: Status
    changes: dict[str, Any]
    attempt: Row | None
    wakeup: wakeups.PendingWakeup | None = None  # wakes the jobs that wait for this job's end
    more: list[Action] = field(default_factory=list)  # other writes of the same transaction
    entries: list[Entry] = field(default_factory=list)  # for the change feed
    duration: Millis = 0  # of the run
    waited: Millis | None = None  # if the job was held back: the wait that its claim has counted
    noted: bool = False  # there is a note for a failure group among them
    followed_by: Sequence[NewJob] = ()  # inserted in the same transaction, besides the outcome's follow-ups


async def ack(table: Table, outcomes: Sequence[Outcome]) -> list[Status | None]:
    refuse_illegal(outcomes)
    by_job: dict[str, list[int]] = {}
    for number, outcome in enumerate(outcomes):
        by_job.setdefault(outcome.job_id, []).append(number)
    await wakeups.mark(table, frozenset[str]().union(*map(named_by, outcomes)))
    statuses = take_unanswered(table, outcomes)
    alone = [numbers[0] for numbers in by_job.values() if len(numbers) == 1 and numbers[0] not in statuses]
    plain = {number: outcomes[number] for number in alone if is_plain(outcomes[number])}

    async def ack_job(numbers: list[int]) -> None:
        for number in numbers:
            if number not in statuses:
                statuses[number] = await ack_one(table, outcomes[number], table.doubts)

    try:
        statuses |= await ack_plain(table, plain)
        await together([ack_job(numbers) for numbers in by_job.values()])
        written = [outcomes[number] for number, status in statuses.items() if status is not None]
        await wakeups.wake_if_ended(table, frozenset[str]().union(*map(named_by, written)))
    except BaseException:
        remember(table, outcomes, statuses)
        raise
    return [statuses[number] for number in range(len(outcomes))]


def remember(table: Table, outcomes: Sequence[Outcome], statuses: Mapping[int, Status | None]) -> None:
    """Remember the outcomes that were written, because one of them failed and all will be repeated.

    Without this, the repetition would report them as lost claims.
    """
    written = {number: status for number, status in statuses.items() if status is not None}
    table.unanswered |= {
        (outcomes[number].job_id, outcomes[number].token): status for number, status in written.items()
    }


def take_unanswered(table: Table, outcomes: Sequence[Outcome]) -> dict[int, Status | None]:
    """Return the statuses of outcomes that an earlier, failed call has written."""
    found: dict[int, Status | None] = {}
    for number, outcome in enumerate(outcomes):
        if (status := table.unanswered.pop((outcome.job_id, outcome.token), None)) is not None:
            found[number] = status
    return found


def is_plain(outcome: Outcome) -> bool:
    """Return whether one write is enough and the job's item is known."""
    if not isinstance(outcome.ref, dict) or outcome.ref["token"] != outcome.token:
        return False
    simple = outcome.move in {Move.DONE, Move.SNOOZE, Move.RELEASE, Move.SUSPEND}
    if outcome.move is Move.DONE and "fingerprint" in outcome.ref:  # it failed before: its group hears of the success
        return False
    if outcome.move is Move.DONE and has_on_end(outcome.ref.get("options")):
        return False
    brings = outcome.follow_ups or outcome.steps or outcome.waits_for
    return simple and not brings and not any(outcome.ref.get(mark) for mark in MARKS)


async def ack_plain(table: Table, outcomes: Mapping[int, Outcome]) -> dict[int, Status | None]:
    """Write plain outcomes, many per request. Leave out jobs that are not as expected: the caller acks each alone."""
    if len(outcomes) < 2:
        return {}
    mark = new_id()
    decisions = {number: decide(table, outcome.ref, outcome, mark) for number, outcome in outcomes.items()}
    try:
        results = await table.update_many(
            [plain_update(table, outcome, decisions[number]) for number, outcome in outcomes.items()]
        )
    except BaseException:
        for outcome in outcomes.values():
            table.doubts.setdefault((outcome.job_id, outcome.token), set()).add(mark)
        raise
    done: list[int] = []
    for number, result in zip(outcomes, results, strict=True):
        if not isinstance(result, Refused) or is_ours(result, mark):
            done.append(number)
        elif result.item:
            outcomes[number].ref = unpack(result.item)
    await together([afterwards(table, outcomes[number].ref, decisions[number]) for number in done])
    return {number: decisions[number].status for number in done}


def plain_update(table: Table, outcome: Outcome, decision: ItemChanges) -> ItemUpdate:
    where, conditions = table.job_key(outcome.job_id), fence(outcome.ref, decision)
    return recorded_update(table, outcome.job_id, ItemUpdate(where, decision.changes, conditions), decision.entries)


def is_ours(refused: Refused, mark: str) -> bool:
    """Return whether this ack has written the job: a write that was repeated after its answer got lost."""
    return str(unpack(refused.item or {}).get("acked")).startswith(mark)


def named_by(outcome: Outcome) -> frozenset[str]:
    """Return the jobs whose end is waited for, by this job or by its follow-ups."""
    own = wakeups.named_by(outcome.waits_for)
    return named_among(outcome.follow_ups) | ({own} if own else frozenset())


async def take_over(table: Table, job: JobState, outcome: Outcome) -> Status | None:
    """End a run in place of its worker. Neither must take the other's write for its own, so it shares no doubts."""
    return await ack_one(table, outcome, {}, feed.stalled([(job, outcome)]))


async def ack_one(
    table: Table, outcome: Outcome, doubts: Doubts, entries_before: Sequence[Entry] = ()
) -> Status | None:
    """Write one outcome; return the new status, or None if the claim was lost.

    The change feed gets `entries_before` before the entry about the outcome.
    """
    mark, given = new_id(), outcome
    inserts = PendingInserts(table, outcome.follow_ups, named_by(outcome))
    await register_queues(table, {job.queue for job in outcome.follow_ups})
    lighter = await steps.save_beforehand(table, outcome)
    if lighter is None:
        return written_before(await table.get(table.job_key(outcome.job_id)), outcome, doubts, mark)
    outcome = lighter
    row: Row | None = outcome.ref if isinstance(outcome.ref, dict) else None
    if row is None or row["token"] != outcome.token:
        row = await table.get(table.job_key(outcome.job_id))
    for _ in range(MAX_TRIES):
        if row is None or row["token"] != outcome.token or status_of(row) is not Status.RUNNING:
            return written_before(row, outcome, doubts, mark)
        past = await past_failures(table, state_of(row)) if outcome.move is Move.DONE else ()
        decision = decide(table, row, outcome, mark, past)
        decision.entries[:0] = entries_before
        followers = PendingInserts(table, decision.followed_by)
        try:
            await write(table, row, decision, inserts, followers)
        except ConditionFailed as failed:
            row = unpack(failed.item) if failed.item else None
        except Cancelled as cancelled:
            if cancelled.failed(0):
                item = cancelled.item(0)
                row = unpack(item) if item else None
            else:
                ends = outcome.job_id if decision.status in FINISHED else None
                await inserts.learn(cancelled, ends=ends)
        except StoreUnavailable:
            doubts.setdefault((outcome.job_id, outcome.token), set()).add(mark)
            raise
        else:
            inserts.after_write()
            followers.after_write()
            note_inserted([given], inserts.answers())
            await afterwards(table, row, decision)
            return decision.status
    msg = f"job {outcome.job_id} changed too often to be acked"
    raise StoreUnavailable(msg)


def written_before(row: Row | None, outcome: Outcome, doubts: Doubts, mark: str) -> Status | None:
    """Return the status if the outcome was written and only its answer got lost; None if the claim was lost."""
    marks = doubts.pop((outcome.job_id, outcome.token), set()) | {mark}
    acked, _, word = (row or {}).get("acked", "").partition("#")
    return STATUSES[word] if acked in marks else None


# -- deciding -------------------------------------------------------------------------------------------


def decide(table: Table, row: Row, outcome: Outcome, mark: str, past: Sequence[str] = ()) -> ItemChanges:
    """Return what the outcome changes. `past` has the fingerprints of the job's last failures if it succeeds."""
    job, now = state_of(row), table.clock.now()
    conclusion = conclude(job, outcome, now)
    status = conclusion.status
    changes = {
        **to_attributes(conclusion.columns()),
        "lock_expires_at": None,
        "acked": f"{mark}#{WORDS[status]}",
    }
    if conclusion.failure is not None:
        changes["traceback"] = conclusion.failure.traceback or None
    if job.cancel_reason is not None:
        changes["cancel_requested"] = None
    if outcome.steps:
        changes["steps"] = True
    changes |= place_of(row | changes, status, table.shards)
    decision = ItemChanges(status, fitted(row, changes), run_item(job, conclusion, now))
    decision.entries = feed.ended([(job, conclusion)], [outcome]) if table.recording else []
    decision.duration = feed.duration_of(conclusion)
    decision.waited = job.claimed_at - job.run_at if outcome.blocked else None
    noted = failure_actions(table, job, conclusion, now, past)
    decision.more, decision.noted = [*steps.puts(row["SK"], outcome.steps), *noted], bool(noted)
    if status in FINISHED:
        decision.followed_by = jobs_after([(job, conclusion)])
        decision.wakeup = wakeups.wakeup_for(row)
        decision.more += actions_after_end(row | {"steps": changes.get("steps", row.get("steps"))}, decision)
    elif changes.get("waits_for") is not None:
        decision.more.append(wakeups.waiter(row | changes))
    return decision


def actions_after_end(row: Row, decision: ItemChanges) -> list[Action]:
    """Return writes that record what is left to do after the job's end. If this process dies, another one does it."""
    wakeup = [] if decision.wakeup is None else [decision.wakeup.action()]
    return wakeup + steps.note_of_end(row, decision.changes.get("expires_at"))


def fitted(row: Row, changes: dict[str, Any]) -> dict[str, Any]:
    """Leave out a result that does not fit, and say so in the job's reason. The job completes: its work is done."""
    length = len(changes.get("result") or changes.get("result_zlib") or "")
    if not length or size(pack(row | changes)) <= MAX_ITEM_BYTES - 1024:
        return changes
    log.warning("result_left_out", job_id=row["SK"], task=row["job_type"], bytes=length)
    words = f"its result of {length // 1024} KB does not fit into an item of DynamoDB and was not stored"
    return changes | text("result", None) | {"reason": words}


def run_item(job: JobState, conclusion: Conclusion, now: Millis) -> Row | None:
    """Return the item of the run in the job's history. It is kept for longer than the job."""
    run = conclusion.run
    if run is None:
        return None
    kept = max(job.keep, job.keep_dead)
    return {
        "PK": history(job.id),
        "SK": f"run#{job.token:012d}",
        "locked_by": run.worker or None,
        "started_at": stamp(run.started_at),
        "completed_at": stamp(run.finished_at),
        "move": run.move.value,
        "error_type": run.error_type,
        "last_error": run.error,
        "error_code": run.error_code,
        "traceback": run.traceback,
        "fingerprint": run.fingerprint,
        "version": run.version,
        "ttl": ttl(max(now, conclusion.run_at) + kept + HISTORY_MARGIN),
    }


# -- writing --------------------------------------------------------------------------------------------


def fence(row: Row, decision: ItemChanges) -> list[Condition]:
    """Return the conditions: the job runs under this token, and its marks are those that the decision used.

    A write that finishes the job must also know of jobs that wait for its end, and of the steps that it leaves.
    """
    marks = MARKS if decision.status in FINISHED else MARKS[:1]
    as_decided = [exists(mark) if row.get(mark) else absent(mark) for mark in marks]
    return [equals("token", row["token"]), equals("status", WORDS[Status.RUNNING]), *as_decided]


async def write(
    table: Table, row: Row, decision: ItemChanges, inserts: PendingInserts, followers: PendingInserts
) -> None:
    await register_queues(table, {job.queue for job in followers.jobs})
    rest = [*inserts.actions(1), *followers.actions(0), *decision.more]
    lines = inserts.hint.journal(row["SK"], decision.entries)
    append = {JOURNAL: lines} if lines else None
    change = update(table.job_key(row["SK"]), decision.changes, append=append, only_if=fence(row, decision))
    actions: list[Action] = [("Update", change), *rest]
    if decision.attempt is not None:
        actions.append(("Put", put(decision.attempt)))
    actions += [*inserts.hint.actions(), *followers.hint.actions()]
    if len(actions) == 1:
        await table.update(change)
        return
    if len(actions) > TRANSACTION:
        msg = f"job {row['SK']} brings too many follow-ups: DynamoDB writes at most {TRANSACTION} items at once"
        raise StoreError(msg)
    if decision.noted:
        await register_notes(table)
    await table.transact(*actions)


async def afterwards(table: Table, row: Row, decision: ItemChanges) -> None:
    """Do what need not be part of the write: count, wake workers and waiting jobs, and delete an unused key."""
    table.counts.add(row["queue"], Status.RUNNING, -1)
    table.counts.add(row["queue"], decision.status, 1, day_of(decision.status, decision.changes.get("expires_at")))
    now = table.clock.now()
    table.numbers.add_end(now, row["queue"], row["job_type"], decision.status, decision.duration)
    if decision.waited is not None:
        table.numbers.take_start_back(now, row["queue"], row["job_type"], decision.waited)
    table.held.get(row.get("locked_by", ""), {}).pop(row["SK"], None)
    if decision.status in CLAIMABLE:
        table.local_workers.wake([row["queue"]])
    if decision.status in FINISHED:
        await forget_key(table, row)
    if decision.wakeup is not None:
        await decision.wakeup.carry_out(table)


# -- progress -------------------------------------------------------------------------------------------


async def report(table: Table, reports: Sequence[ProgressReport]) -> set[str]:
    accepted = await together([report_one(table, progress) for progress in reports])
    return {progress.job_id for progress, good in zip(reports, accepted, strict=True) if good}


async def report_one(table: Table, progress: ProgressReport) -> bool:
    changed_at = stamp(table.clock.now())
    changes: Mapping[str, Any] = {
        "progress": progress.fraction, "note": storable(progress.note), "changed_at": changed_at,
    }  # fmt: skip
    held = [equals("token", progress.token), equals("status", WORDS[Status.RUNNING])]
    told = [Entry(ChangeKind.PROGRESSED, data={"fraction": progress.fraction, "note": changes["note"][:LONGEST_TEXT]})]
    change = ItemUpdate(table.job_key(progress.job_id), changes, held)
    (result,) = await table.update_many([recorded_update(table, progress.job_id, change, told)])
    return not isinstance(result, Refused)
