"""The end of a run: where its outcome leads.

If a worker died or a run lasted too long, another process makes the outcome (`crashed`, `stalled`), and it is acked
like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, NamedTuple

from mainspring.clock import Millis
from mainspring.errors import Failure, IllegalMove, WorkerCrashed, as_code
from mainspring.fingerprint import fingerprint, of_project
from mainspring.job import (
    FINISHED,
    KEEP_FOREVER,
    MAX_CRASHES,
    TRANSITIONS,
    UNTIL_WOKEN,
    Inserted,
    Move,
    Outcome,
    Status,
    revision_of,
)
from mainspring.queue_patterns import project_of
from mainspring.stores.engine.creation import refuse_unkeepable
from mainspring.stores.protocol import AfterStall, StalledRun, Takeover, TakeoverCause

LONGEST_TRACEBACK = 16_384  # characters
LONGEST_MESSAGE = 4096  # characters, of an error or a reason
LEADS_TO = TRANSITIONS[Status.RUNNING]
COUNTS_AS_ATTEMPT = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
UNRECORDED = frozenset({Move.SNOOZE, Move.RELEASE, Move.SUSPEND})  # runs that are not attempts

Place = tuple[str, Status]
"""A queue and a status: jobs are counted by both."""

Fence = tuple[str, int]
"""The id and token of a claim. Only a job that runs under this token may be changed by the claim's outcome."""


@dataclass(slots=True)
class JobState:
    """A job as a store found it, and perhaps locked it."""

    id: str
    token: int
    task: str
    queue: str
    worker: str | None
    run_at: Millis
    attempts: int
    max_attempts: int
    crashes: int
    claimed_at: Millis  # of the last run; 0: never claimed
    timeout: Millis  # 0: none
    keep: Millis
    keep_dead: Millis
    dedupe_key: str | None
    target_type: str | None
    target_id: str | None
    options: str | None
    fingerprint: str | None
    version: str | None  # of the code of the worker that runs it, or ran it last
    updated_at: Millis  # as `Job.updated_at`
    cancel_reason: str | None  # given with a request to cancel it, may be empty; None: there was no request
    status: Status = Status.RUNNING
    ref: Any = None  # only the store reads it, to find the job again
    before: Mapping[str, Any] | None = None  # of an edited job: the columns of `compared` in change.py

    @property
    def revision(self) -> str:
        """The same as `Job.revision`."""
        return revision_of(self.token, self.status, self.updated_at)


STATE_COLUMNS = tuple(field.name for field in fields(JobState))[:-3]
"""What a store reads of a job besides its status, in order. `cancel_reason` is the job's reason, if `cancel` is set."""


class Run(NamedTuple):
    """An entry of a job's history. Its number is that of the job's last entry plus one."""

    worker: str
    started_at: Millis
    finished_at: Millis
    move: Move
    error_type: str | None
    error: str | None
    error_code: str | None
    traceback: str | None
    fingerprint: str | None
    version: str | None


@dataclass(slots=True)
class Conclusion:
    """What a job becomes when its run ends, or when it is cancelled: every value that its row gets."""

    status: Status
    run_at: Millis
    attempts: int
    crashes: int
    reason: str
    waits_for: str | None
    failure: Failure | None  # None: it keeps the failure that it shows
    result: str | None
    started_at: Millis  # when its last run began
    finished_at: Millis | None  # None: it is not finished, and so does not expire either
    expires_at: Millis | None  # KEEP_FOREVER: never
    run: Run | None  # for its history
    changed_at: Millis = 0  # if it is not finished

    def columns(self) -> dict[str, Any]:
        """Return the columns that get a new value, by name."""
        changed: dict[str, Any] = {
            "status": self.status,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "reason": self.reason,
            "waits_for": self.waits_for,
            "changed_at": self.changed_at,
        }
        if self.failure is not None:
            changed |= {"error_type": self.failure.type, "error": self.failure.message}
            changed |= {"error_code": self.failure.code, "fingerprint": self.failure.fingerprint}
        if self.finished_at is None:
            return changed | {"run_at": self.run_at}
        times = {"started_at": self.started_at, "finished_at": self.finished_at, "expires_at": self.expires_at}
        return changed | times | {"result": self.result}


def refuse_illegal(outcomes: Sequence[Outcome]) -> None:
    """Raise if an outcome cannot be written: its move does not end a run, or a follow-up cannot be stored."""
    for outcome in outcomes:
        if outcome.move not in LEADS_TO:
            msg = f"job {outcome.job_id}: a run cannot end with {outcome.move}; use one of {', '.join(LEADS_TO)}"
            raise IllegalMove(msg)
        if outcome.follow_ups:
            refuse_unkeepable(outcome.follow_ups)


def note_inserted(outcomes: Iterable[Outcome], inserted: Iterable[Inserted]) -> None:
    """Note in each outcome what became of its follow-ups."""
    rest = iter(inserted)
    for outcome in outcomes:
        if outcome.follow_ups:
            outcome.inserted = list(islice(rest, len(outcome.follow_ups)))


def first_of_each(outcomes: Sequence[Outcome]) -> dict[Fence, Outcome]:
    """Return the outcomes by claim. If a claim has two, the first counts and the second is refused."""
    first: dict[Fence, Outcome] = {}
    for outcome in outcomes:
        first.setdefault((outcome.job_id, outcome.token), outcome)
    return first


def conclude(job: JobState, outcome: Outcome, now: Millis) -> Conclusion:
    """Return what the job becomes after this outcome of its run."""
    status = next_status(job, outcome)
    failure = shortened(outcome.failure, job)
    is_finished = status in FINISHED
    return Conclusion(
        status,
        job.run_at if is_finished else next_time(job, outcome, now),
        next_attempts(job, outcome, status),
        next_crashes(job, outcome, status),
        storable(last_reason(job, outcome, status)),
        outcome.waits_for if status is Status.SUSPENDED else None,
        failure,
        outcome.result if is_finished else None,
        outcome.started_at or job.claimed_at,
        now if is_finished else None,
        expiry(job, status, now) if is_finished else None,
        run_of(job, outcome, status, failure, now),
        0 if is_finished else now,
    )


def moves(concluded: Iterable[tuple[JobState, Conclusion]]) -> Iterator[tuple[Place, Place]]:
    """Yield the queue and status of each job, before and after."""
    for job, conclusion in concluded:
        yield (job.queue, job.status), (job.queue, conclusion.status)


def next_status(job: JobState, outcome: Outcome) -> Status:
    """Return the job's status after the outcome.

    A crash becomes a dead letter once MAX_CRASHES is reached. A cancellation that was requested during the run applies
    if the job would otherwise run again.
    """
    status = LEADS_TO[outcome.move]
    if outcome.move is Move.CRASH and job.crashes + 1 >= MAX_CRASHES:
        status = Status.DEAD_LETTER
    if job.cancel_reason is not None and status not in FINISHED:
        status = Status.CANCELLED
    return status


def next_attempts(job: JobState, outcome: Outcome, status: Status) -> int:
    return 0 if begins_anew(outcome, status) else job.attempts + (outcome.move in COUNTS_AS_ATTEMPT)


def next_crashes(job: JobState, outcome: Outcome, status: Status) -> int:
    """Return the number of workers that died with the job. A job that was to be cancelled anyway is not to blame."""
    if begins_anew(outcome, status):
        return 0
    return job.crashes + (outcome.move is Move.CRASH and status is not Status.CANCELLED)


def begins_anew(outcome: Outcome, status: Status) -> bool:
    """Return whether the run made progress, so that the next one has the full budget of attempts and crashes."""
    return status is Status.SUSPENDED and not outcome.blocked


def next_time(job: JobState, outcome: Outcome, now: Millis) -> Millis:
    """Return when the job is due again. After a release or crash without a delay, it gets its former place back.

    It was due when it was claimed, and must stay due if the clock was set back since.
    """
    if outcome.move in {Move.RELEASE, Move.CRASH} and not outcome.delay:
        return min(job.run_at, now)
    return min(now + outcome.delay, UNTIL_WOKEN)


def last_reason(job: JobState, outcome: Outcome, status: Status) -> str:
    """Return the reason that the job shows.

    The reason given with a request to cancel the job wins. Without one, a run that cancelled itself may give its own.
    The reason for a postponement is never used as the reason for a cancellation, and success needs no reason.
    """
    if status is Status.COMPLETED:
        return ""
    if job.cancel_reason is None or status is not Status.CANCELLED:
        return outcome.reason
    return job.cancel_reason or (outcome.reason if outcome.move is Move.CANCEL else "")


def expiry(job: JobState, status: Status, now: Millis) -> Millis:
    """Return when retention removes a job that finishes now; KEEP_FOREVER: never."""
    return min(KEEP_FOREVER, now + (job.keep_dead if status is Status.DEAD_LETTER else job.keep))


def shortened(failure: Failure | None, job: JobState) -> Failure | None:
    """Return the failure as stores keep it: shortened, and with a fingerprint, which is that of the job's project."""
    if failure is None:
        return None
    message, traceback = shorten(failure.message, LONGEST_MESSAGE), shorten(failure.traceback)
    known = failure.fingerprint or fingerprint(job.task, failure.type, failure.place, failure.message)
    known = of_project(known, project_of(job.queue))
    kind, place = storable(failure.type), storable(failure.place)
    return Failure(kind, storable(message), storable(traceback), known, place, as_code(failure.code))


def storable(text: str) -> str:
    """Replace NUL characters: a handler's message may contain them, and PostgreSQL cannot store them in text."""
    return text.replace("\0", "�")


def shorten(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """Cut a text to about `most` characters; keep both ends, where a traceback begins and where it fails.

    Error texts of megabytes would be written into several rows of one transaction, and delay the acks of other jobs.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  … shortened …\n{text[-half:]}"


def run_of(job: JobState, outcome: Outcome, status: Status, failure: Failure | None, now: Millis) -> Run | None:
    """Return the run for the job's history; None if it is not listed."""
    move = recorded_as(outcome, status)
    if move is None:
        return None
    error_type, error, traceback = (failure.type, failure.message, failure.traceback) if failure else ("", "", "")
    code, known = (failure.code, failure.fingerprint) if failure else (None, None)
    return Run(
        job.worker or "",
        outcome.started_at or job.claimed_at,
        outcome.finished_at or now,
        move,
        error_type or None,
        error or None,
        code,
        traceback or None,
        known,
        job.version,
    )


def recorded_as(outcome: Outcome, status: Status) -> Move | None:
    """Return the move under which the history lists the run; None if it is not listed.

    A success is not listed, because the job's own row describes it. A run that was snoozed, released or suspended is
    not an attempt, unless the job was cancelled.
    """
    if outcome.move is Move.DONE or (outcome.move in UNRECORDED and status is not Status.CANCELLED):
        return None
    if outcome.move is Move.CRASH:
        return Move.CRASH
    if status is Status.CANCELLED:
        return Move.CANCEL
    return Move.DEAD if status is Status.DEAD_LETTER else outcome.move


# -- runs that their workers do not end ---------------------------------------------------------------


def known_by_cause(job: JobState, kind: str, cause: str) -> str:
    """Return the fingerprint of a failure whose message names a worker: that of its cause."""
    return of_project(fingerprint(job.task, kind, "", cause), project_of(job.queue))


def crashed(job: JobState) -> Outcome:
    """Return the outcome of a run whose worker died."""
    kind, message = WorkerCrashed.__name__, f"worker {job.worker} died while it held the job"
    failure = Failure(kind, message, fingerprint=known_by_cause(job, kind, "worker died"))
    return Outcome(job.id, job.token, Move.CRASH, job.claimed_at, failure=failure, ref=job.ref)


def stalled(job: JobState, after_stall: AfterStall) -> Outcome:
    """Return the outcome of a run that lasted longer than its timeout and grace."""
    message = f"still running on {job.worker} after its timeout of {job.timeout / 1000:g} s and the grace"
    kind = TimeoutError.__name__
    failure = Failure(kind, message, fingerprint=known_by_cause(job, kind, "still running after its timeout"))
    attempt = job.attempts + 1
    run = StalledRun(job.id, job.task, job.queue, attempt, job.options)
    delay = after_stall(run) if attempt < job.max_attempts else None
    move = Move.DEAD if delay is None else Move.RETRY
    return Outcome(
        job.id, job.token, move, job.claimed_at, delay=delay or 0, failure=failure, ref=job.ref, timed_out=True
    )


def released(job: JobState, *, blocked: bool = False) -> Outcome:
    """Return the outcome of a run that its worker gives back, because it leaves or never got the claim (`blocked`)."""
    return Outcome(job.id, job.token, Move.RELEASE, ref=job.ref, blocked=blocked)


def takeover(job: JobState, outcome: Outcome, status: Status) -> Takeover:
    """Return what `reap` reports about a run that was taken from its worker. `status` is the job's new one."""
    return Takeover(
        job.id,
        job.task,
        job.queue,
        job.worker or "",
        cause_of(outcome),
        status,
        next_attempts(job, outcome, status),
        next_crashes(job, outcome, status),
        outcome.failure,
        job.max_attempts,
        outcome.delay,
        job.claimed_at,
        job.timeout,
    )


def cause_of(outcome: Outcome) -> TakeoverCause:
    """Return why a run was taken from its worker."""
    return TakeoverCause.CRASHED if outcome.move is Move.CRASH else TakeoverCause.STALLED
