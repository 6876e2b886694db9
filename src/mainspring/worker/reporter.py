"""Sends events and log lines about runs, after the store has confirmed what they say."""

from __future__ import annotations

import logging
from typing import Any

from mainspring.clock import to_datetime
from mainspring.context import UNSET
from mainspring.errors import Failure
from mainspring.events import (
    Bus,
    JobCancelled,
    JobCompleted,
    JobDeadLettered,
    JobProgressed,
    JobReleased,
    JobRetrying,
    JobSnoozed,
    JobStalled,
    JobStarted,
    JobSuspended,
    RetryReason,
    WorkerHeartbeat,
)
from mainspring.job import UNTIL_WOKEN, Claim, Move, Outcome, ProgressReport, Status
from mainspring.log import get_log
from mainspring.stores.protocol import Halt, Takeover, TakeoverCause
from mainspring.worker.run import Run, Stop

log = get_log("mainspring.worker")


class Reporter:
    """The events and log lines of one worker."""

    def __init__(self, bus: Bus, worker: str, *, log_completions: bool = False) -> None:
        self._log_completions = log_completions
        self.bus = bus
        self._worker = worker
        self._halted = False  # the system, as last reported

    def halted(self, halt: Halt | None) -> None:
        """Log that the system was halted, or resumed (None), if that is new."""
        before, self._halted = self._halted, halt is not None
        if halt is not None and not before:
            log.info("worker_halted", worker=self._worker, actor=halt.actor, reason=halt.reason)
        elif before and halt is None:
            log.info("worker_resumed", worker=self._worker)

    def heartbeat(self, *, running: int, stuck: int) -> None:
        if self.bus.wants(WorkerHeartbeat):
            event = WorkerHeartbeat(worker=self._worker, running=running, halted=self._halted, stuck=stuck)
            self.bus.emit(event)

    def started(self, run: Run) -> None:
        lateness = max(0, run.started_at - run.claim.run_at) / 1000
        self.bus.emit(JobStarted(**self._about(run.claim), lateness=lateness))

    def progressed(self, claim: Claim, report: ProgressReport) -> None:
        if self.bus.wants(JobProgressed):
            self.bus.emit(JobProgressed(**self._about(claim), fraction=report.fraction, note=report.note))

    def hears_success(self) -> bool:
        """Return whether each success must be reported: there may be tens of thousands of them a second."""
        return self._log_completions or self.bus.wants(JobCompleted) or log.wants(logging.DEBUG)

    def ended(self, run: Run, outcome: Outcome, status: Status | None) -> None:
        claim = run.claim
        duration = max(0, outcome.finished_at - outcome.started_at) / 1000 if outcome.started_at else 0.0
        fields = {"job_id": claim.id, "task": claim.task, "attempt": claim.attempt, "worker": self._worker}
        if status is None:
            log.warning("claim_lost", **fields, duration=duration, move=outcome.move)
        elif status is Status.COMPLETED:
            (log.info if self._log_completions else log.debug)("job_completed", **fields, duration=duration)
            if self.bus.wants(JobCompleted):
                self.bus.emit(JobCompleted(**self._about(claim), duration=duration))
        elif status is Status.DEAD_LETTER:
            error = error_of(outcome.failure) or outcome.reason
            log.error("job_dead_lettered", **fields, duration=duration, error=error)
            self.bus.emit(JobDeadLettered(**self._about(claim), failure=outcome.failure, reason=outcome.reason))
        elif status is Status.CANCELLED:
            log.info("job_cancelled", **fields, duration=duration, reason=outcome.reason)
            self.bus.emit(JobCancelled(job_id=claim.id, task=claim.task, queue=claim.queue, reason=outcome.reason))
        else:
            self._goes_on(run, outcome, fields, duration)

    def lost_result(self, run: Run, outcome: Outcome) -> None:
        """Warn about a value returned after `ctx.transaction()`: its commit has completed the job without it."""
        if run.context is not None and run.context.effects.result is UNSET and outcome.result is not None:
            error = "returned after ctx.transaction() had completed the job; call ctx.set_result(…) inside the block"
            log.warning("result_not_stored", job_id=run.claim.id, task=run.claim.task, error=error)

    def _goes_on(self, run: Run, outcome: Outcome, fields: dict[str, Any], duration: float) -> None:
        about, delay = self._about(run.claim), outcome.delay / 1000
        if outcome.move is Move.SNOOZE:
            log.info("job_snoozed", **fields, duration=duration, delay=delay, reason=outcome.reason)
            self.bus.emit(JobSnoozed(**about, delay=delay, reason=outcome.reason))
        elif outcome.move is Move.SUSPEND:
            self._suspended(run, outcome, fields, duration)
        elif outcome.move is Move.RELEASE:
            say = log.debug if run.stop is Stop.HALTED else log.info  # a halt may hand back thousands of jobs
            say("job_released", **fields, duration=duration, delay=delay, reason=outcome.reason)
            self.bus.emit(JobReleased(**about, reason=outcome.reason))
        else:
            reason = reason_of(run, outcome)
            error = error_of(outcome.failure)
            log.warning("job_retrying", **fields, duration=duration, delay=delay, reason=reason, error=error)
            self.bus.emit(
                JobRetrying(
                    **about, reason=reason, max_attempts=run.claim.max_attempts, delay=delay, failure=outcome.failure
                )
            )

    def _suspended(self, run: Run, outcome: Outcome, fields: dict[str, Any], duration: float) -> None:
        """Report a suspension, logged only at DEBUG: a system may have hundreds of thousands of suspended jobs."""
        due = outcome.finished_at + outcome.delay
        until = to_datetime(due) if outcome.finished_at and due < UNTIL_WOKEN else None
        log.debug("job_suspended", **fields, duration=duration, until=until, waits_for=outcome.waits_for)
        if self.bus.wants(JobSuspended):
            about = self._about(run.claim)
            event = JobSuspended(**about, until=until, waits_for=outcome.waits_for, reason=outcome.reason)
            self.bus.emit(event)

    def taken_over(self, takeover: Takeover) -> None:
        """Report a claim that this worker took over from another."""
        fields = {"job_id": takeover.job_id, "task": takeover.task, "worker": takeover.worker}
        logged = {**fields, "attempt": takeover.attempts, "cause": takeover.cause, "error": error_of(takeover.failure)}
        log.warning("job_taken_over", **logged, status=takeover.status, by=self._worker)
        about: dict[str, Any] = {**fields, "queue": takeover.queue, "attempt": takeover.attempts}
        stalled = takeover.cause is TakeoverCause.STALLED
        if stalled:
            self.bus.emit(JobStalled(**about, failure=takeover.failure))
        if takeover.status is Status.DEAD_LETTER:
            log.error("job_dead_lettered", **logged)
            self.bus.emit(JobDeadLettered(**about, failure=takeover.failure))
        elif takeover.status is Status.CANCELLED:
            self.bus.emit(JobCancelled(job_id=takeover.job_id, task=takeover.task, queue=takeover.queue))
        else:
            self.bus.emit(
                JobRetrying(
                    **about,
                    reason="timeout" if stalled else "crash",
                    max_attempts=takeover.max_attempts,
                    delay=takeover.delay / 1000,
                    failure=takeover.failure,
                )
            )

    def _about(self, claim: Claim) -> dict[str, Any]:
        return {
            "job_id": claim.id,
            "task": claim.task,
            "queue": claim.queue,
            "attempt": claim.attempt,
            "worker": self._worker,
        }


def error_of(failure: Failure | None) -> str:
    return "" if failure is None else f"{failure.type}: {failure.message}"


def reason_of(run: Run, outcome: Outcome) -> RetryReason:
    """Return why a run is retried. The handler's own `TimeoutError`, say of a service it calls, is just an error."""
    if outcome.move is Move.CRASH:
        return "crash"
    return "timeout" if run.stop is Stop.TIMEOUT else "error"
