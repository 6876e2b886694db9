"""The end of a run whose worker died, or that lasted too long. It is an outcome, and is acked like any other."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.clock import Millis
from mainspring.errors import Failure, WorkerCrashed
from mainspring.job import Move, Outcome, Status
from mainspring.stores.engine.ack import next_attempts, next_crashes
from mainspring.stores.engine.state import JobState
from mainspring.stores.protocol import AfterStall, StalledRun, Takeover, TakeoverCause


@dataclass(slots=True)
class Timed:
    """A claim with a timeout."""

    id: str
    token: int
    longest: Millis  # how long the run may last: the timeout plus the stall grace


def crashed(job: JobState) -> Outcome:
    """Return the outcome of a run whose worker died."""
    failure = Failure(WorkerCrashed.__name__, f"worker {job.worker} died while it held the job")
    return Outcome(job.id, job.token, Move.CRASH, job.claimed_at, failure=failure, ref=job.ref)


def stalled(job: JobState, after_stall: AfterStall) -> Outcome:
    """Return the outcome of a run that lasted longer than its timeout and grace."""
    message = f"still running on {job.worker} after its timeout of {job.timeout / 1000:g} s and the grace"
    failure, attempt = Failure(TimeoutError.__name__, message), job.attempts + 1
    run = StalledRun(job.id, job.task, job.queue, attempt, job.options)
    delay = after_stall(run) if attempt < job.max_attempts else None
    move = Move.DEAD if delay is None else Move.RETRY
    return Outcome(job.id, job.token, move, job.claimed_at, delay=delay or 0, failure=failure, ref=job.ref)


def released(job: JobState) -> Outcome:
    """Return the outcome of a run that its worker gives back, because it leaves or never got the claim."""
    return Outcome(job.id, job.token, Move.RELEASE, ref=job.ref)


def takeover(job: JobState, outcome: Outcome, status: Status) -> Takeover:
    """Return what `reap` reports about a run that was taken from its worker. `status` is the job's new one."""
    cause = TakeoverCause.CRASHED if outcome.move is Move.CRASH else TakeoverCause.STALLED
    return Takeover(
        job.id,
        job.task,
        job.queue,
        job.worker or "",
        cause,
        status,
        next_attempts(job, outcome, status),
        next_crashes(job, outcome, status),
        outcome.failure,
        job.max_attempts,
        outcome.delay,
    )
