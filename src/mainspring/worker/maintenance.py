"""What each worker does for the whole system: takes over from dead workers, deletes old jobs, notices clock changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.errors import StoreError
from mainspring.events import JobCancelled, JobDeadLettered, JobRetrying, JobStalled
from mainspring.job import RetryReason, Status
from mainspring.json_text import read_object
from mainspring.log import get_log
from mainspring.retry import Retry
from mainspring.runtime import Runtime
from mainspring.stores.protocol import AUDIT_RETENTION, Measured, StalledRun, Takeover, TakeoverCause
from mainspring.task import Task
from mainspring.worker.acker import AfterAck
from mainspring.worker.clock_watch import ClockWatch
from mainspring.worker.failures import in_one_line
from mainspring.worker.membership import Heartbeat

log = get_log("mainspring.worker")

CLOCK_JUMP = 250  # milliseconds by which the wall clock may be off between two looks before it counts as a jump
PRUNE_EVERY = 10.0  # seconds
PRUNE_LIMIT = 1000  # jobs
HEARTBEAT_POLL = 0.05  # seconds
PRUNE_FOR = 1.0  # seconds at a time, as this worker does not look for dead workers meanwhile


class Maintenance:
    """The maintenance of one worker; belongs to one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        worker: str,
        after_ack: AfterAck,
        heartbeat: Heartbeat,
        stopping: asyncio.Event,
        *,
        keep_audit: Millis = AUDIT_RETENTION,
    ) -> None:
        self._runtime = runtime
        self._keep_audit = keep_audit
        self._store = runtime.store
        self._worker = worker
        self._after_ack = after_ack
        self._heartbeat = heartbeat
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._looked_at = self._loop.time()
        self._pruned_at = self._loop.time()
        self._clock_offset = self._offset()
        self._must_recover = False
        self._watch = ClockWatch(runtime)

    async def look_after_others(self, every: float) -> None:
        """Take over from dead workers and delete what is old. The worker calls this every `every` seconds."""
        await self._watch.look()
        if isinstance(self._store, Measured):
            self._runtime.contact.measured(self._store.measures())
        await self._leave_time_to_wake(every)
        await self._take_over()
        self._looked_at = self._loop.time()
        await self._prune()

    async def _take_over(self) -> None:
        """Take over from dead workers, then finish what they left half done. If that fails, the next look retries."""
        reaped = await self._store.reap(self._after_stall)
        for takeover in reaped.takeovers:
            self._report(takeover)
            if takeover.status is Status.CANCELLED:
                self._after_ack.cancelled(takeover.job_id)
        if reaped.takeovers and self._runtime.observers:
            await self._tell_observers(reaped.takeovers)
        self._must_recover = self._must_recover or bool(reaped.dead)
        if self._must_recover:
            await self._runtime.timers.recover()
            self._must_recover = False

    async def _tell_observers(self, takeovers: Sequence[Takeover]) -> None:
        """Tell the observers what became of the jobs. Only the jobs themselves have their traces and payloads."""
        try:
            jobs = {job.id: job for job in await self._store.get([takeover.job_id for takeover in takeovers])}
        except StoreError as error:  # the takeovers are written and count; only the observers miss them
            log.warning("observers_not_told", jobs=len(takeovers), error=str(error))
            return
        for takeover in takeovers:
            if takeover.job_id in jobs:
                self._runtime.observers.taken_over(jobs[takeover.job_id], takeover)

    def _report(self, takeover: Takeover) -> None:
        """Report a claim that this worker took over from another."""
        bus = self._runtime.bus
        fields = {"job_id": takeover.job_id, "task": takeover.task, "worker": takeover.worker}
        error, stalled = in_one_line(takeover.failure), takeover.cause is TakeoverCause.STALLED
        logged = {**fields, "attempt": takeover.attempts, "cause": takeover.cause, "error": error}
        log.warning("job_taken_over", **logged, status=takeover.status, by=self._worker)
        about: dict[str, Any] = {**fields, "queue": takeover.queue, "attempt": takeover.attempts}
        duration = max(0, self._store.clock.now() - takeover.claimed_at) / 1000
        if stalled:
            bus.emit(JobStalled(**about, **times_of(takeover), duration=duration, failure=takeover.failure))
        if takeover.status is Status.DEAD_LETTER:
            log.error("job_dead_lettered", **logged)
            bus.emit(JobDeadLettered(**about, duration=duration, failure=takeover.failure))
        elif takeover.status is Status.CANCELLED:
            bus.emit(JobCancelled(job_id=takeover.job_id, task=takeover.task, queue=takeover.queue))
        else:
            reason: RetryReason = "timeout" if stalled else "crash"
            more: dict[str, Any] = {
                "max_attempts": takeover.max_attempts,
                "delay": takeover.delay / 1000,
                "duration": duration,
            }
            bus.emit(JobRetrying(**about, **more, reason=reason, failure=takeover.failure))

    def _after_stall(self, run: StalledRun) -> Millis | None:
        return after_stall(self._runtime.task_named(run.task), run)

    async def _leave_time_to_wake(self, every: float) -> None:
        """After a long pause, wait before any worker is declared dead: for half a lease, and for our own heartbeat.

        If the machine slept, all workers fell silent together. Without this, the first one that looks would take over
        the jobs of the others, or even its own, before their heartbeats get through.
        """
        lease, woken = self._store.lease, self._loop.time()
        if woken - self._looked_at <= every + lease / 2:
            return
        await asyncio.sleep(lease / 2)
        ours = self._heartbeat
        while ours.beaten_at < woken and self._loop.time() < woken + lease:  # noqa: ASYNC110 - it beats in a thread
            await asyncio.sleep(HEARTBEAT_POLL)

    def clock_jumped(self) -> bool:
        """Return whether the clock was set or the machine slept: then other jobs may be due than the worker thought."""
        before, self._clock_offset = self._clock_offset, self._offset()
        return abs(self._clock_offset - before) > CLOCK_JUMP

    def _offset(self) -> float:
        return self._store.clock.now() - self._loop.time() * 1000

    async def _prune(self) -> None:
        """Delete old jobs some at a time, so that others can write in between."""
        began = self._loop.time()
        if began - self._pruned_at < PRUNE_EVERY or not self._watch.may_delete():
            return
        while await self._store.prune(PRUNE_LIMIT, keep_audit=self._keep_audit) >= PRUNE_LIMIT:
            if self._stopping.is_set() or self._loop.time() - began > PRUNE_FOR:
                return  # there is more; the next look goes on
        self._pruned_at = self._loop.time()


def after_stall(task: Task[..., Any, Any] | None, run: StalledRun) -> Millis | None:
    """Return the delay before a stalled job's next attempt, by the job's own policy or its task's; None to give up.

    A worker that does not know the task uses the default policy. So does a worker whose policy fails.
    """
    own = read_object(run.options).get("retry")
    try:
        retry = Retry.from_data(own) if own else Retry() if task is None else task.retry_in(run.queue)
        error = TimeoutError("it ran longer than its timeout and the grace")
        delay = retry.delay(run.attempt, error) if retry.allows(error) else None
    except Exception:  # noqa: BLE001 - a policy may be the user's own function
        return Retry().delay(run.attempt, TimeoutError())
    return None if delay is None else max(0, delay)


def times_of(takeover: Takeover) -> dict[str, Any]:
    """Return when the run began, and when it reached its timeout."""
    ends = takeover.claimed_at + takeover.timeout if takeover.timeout else None
    return {"started_at": to_datetime(takeover.claimed_at), "timeout_at": None if ends is None else to_datetime(ends)}
