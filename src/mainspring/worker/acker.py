"""Writes the outcomes of runs to the store, many at a time (`Acker`), and follows up on them (`AfterAck`).

A finished job waits up to `delay` seconds so that others are written together with it. It does not wait if its task has
ack="sync" or if no other job is running. If the process is killed in that window, the finished jobs in it run again:
at most those of `delay` seconds plus one commit.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from mainspring.clock import to_datetime
from mainspring.context import UNSET
from mainspring.errors import ConfigurationError, Failure, IllegalMove, StoreError
from mainspring.events import (
    JobCancelled,
    JobCompleted,
    JobDeadLettered,
    JobReleased,
    JobRetrying,
    JobSnoozed,
    JobSuspended,
)
from mainspring.feature import Recheck, RunResult
from mainspring.job import UNTIL_WOKEN, Claim, Move, Outcome, Status, retry_reason
from mainspring.log import get_log
from mainspring.observer import RunEnd
from mainspring.pipeline import Pipeline
from mainspring.runtime import Runtime
from mainspring.worker.failures import in_one_line
from mainspring.worker.outage import Backoff, Outage, is_being_cancelled
from mainspring.worker.run import Run, Stop, fields_of

log = get_log("mainspring.worker")

UNWRITABLE = "how its run ended could not be written"
FULL_GROUP = 500  # outcomes; when this many are collected, they are written without waiting for more
ALL_WAITING = 1_000_000  # jobs to wake per key: more than ever wait
PROGRESS_ATTEMPTS = 3  # to write a run's last report of progress; after that, its outcome is written without it
LARGE_RESULT = 262_144  # characters; a longer result is written by itself, in parallel to the others


class WriteProgress(Protocol):
    """Writes the last reports of runs: `Progress.write_last`."""

    async def __call__(self, runs: Sequence[Run], *, insist: bool) -> None: ...


class Acker:
    """Collects outcomes, writes them, and passes the resulting status of each job to `AfterAck`.

    Two kinds of outcomes are written by instances of their own, so that other outcomes do not wait for them. Large
    results are one: a database takes seconds for a result of 50 MB. Outcomes of runs with an unwritten report of
    progress are the other: the report is written first.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        after_ack: AfterAck,
        outage: Outage,
        *,
        delay: float,
        write_progress: WriteProgress | None = None,
        room: asyncio.Event | None = None,
        most: int = sys.maxsize,
        is_lane: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._after_ack = after_ack
        self._outage = outage
        self._delay = delay
        self._write_progress = write_progress if is_lane else None
        self.room = room or asyncio.Event()  # set after each write: the worker may run more jobs
        self._most = most  # outcomes in one write
        self._waiting: list[tuple[Run, Outcome]] = []
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._writing = self._written = 0
        self._progressed = asyncio.Event()
        self._lanes: tuple[Acker, ...] = ()
        if not is_lane:
            lane = partial(Acker, pipeline, after_ack, outage, write_progress=write_progress, room=self.room)
            self._large = lane(delay=0, most=1, is_lane=True)
            self._reporting = lane(delay=delay, is_lane=True)
            self._lanes = self._large, self._reporting

    def add(self, run: Run, outcome: Outcome, *, urgent: bool = False) -> None:
        if self._lanes:
            if outcome.result is not None and len(outcome.result) > LARGE_RESULT:
                self._large.add(run, outcome, urgent=True)
                return
            if run.report is not run.reported:
                self._reporting.add(run, outcome, urgent=urgent)
                return
        waiting = self._waiting
        waiting.append((run, outcome))
        if len(waiting) == 1:
            self._some.set()
        if urgent or len(waiting) == FULL_GROUP:
            self._urgent.set()

    @property
    def unwritten(self) -> int:
        """Return the number of outcomes that wait; those that are being written do not count."""
        return len(self._waiting) + sum(lane.unwritten for lane in self._lanes)

    @property
    def written(self) -> int:
        """Return the number of outcomes written so far."""
        return self._written + sum(lane.written for lane in self._lanes)

    async def serve(self) -> None:
        """Write outcomes until cancelled, for as long as the worker runs."""
        await asyncio.gather(self._serve(), *(lane.serve() for lane in self._lanes))

    async def _serve(self) -> None:
        while True:
            await self._some.wait()
            await self._gather()
            group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not self._waiting:
                self._some.clear()
                self._urgent.clear()
            self._writing = len(group)
            await self._write(group)
            self._written += len(group)
            self._writing = 0
            self._progressed.set()
            self.room.set()

    async def flush(self) -> None:
        """Return when everything added so far is written."""
        for lane in self._lanes:
            await lane.flush()
        target = self._written + self._writing + len(self._waiting)
        while self._written < target:
            self._urgent.set()
            self._progressed.clear()
            await self._progressed.wait()

    async def _gather(self) -> None:
        if self._delay and not self._urgent.is_set():
            try:
                async with asyncio.timeout(self._delay):
                    await self._urgent.wait()
            except TimeoutError:
                pass

    async def _write(self, group: list[tuple[Run, Outcome]]) -> None:
        """Retry until the store accepts the outcomes, so that a full or locked database loses no finished work."""
        backoff, doubts = Backoff(), 0
        for attempt in count():
            try:
                if self._write_progress is not None:
                    await self._write_progress([run for run, _ in group], insist=attempt < PROGRESS_ATTEMPTS)
                statuses = await self._pipeline.ack([outcome for _, outcome in group])
            except (Exception, asyncio.CancelledError) as error:
                if is_being_cancelled():
                    raise
                patience = patience_with(error)
                doubts += patience != math.inf
                if doubts >= patience:
                    await self._write_singly(group, error)
                    return
                if isinstance(error, StoreError):
                    self._outage.failed("acks", error)
                else:
                    log.warning("ack_failed", jobs=len(group), error=str(error), retry_in=backoff.next)
                await backoff.wait()
            else:
                self._outage.worked("acks")
                self._confirm(group, statuses)
                return

    async def _write_singly(self, group: list[tuple[Run, Outcome]], error: BaseException) -> None:
        """Write the outcomes one by one, because one of them cannot be written and must not block the others."""
        if len(group) > 1:
            for entry in group:
                await self._write([entry])
            return
        run, outcome = group[0]
        log.error("outcome_not_writable", job_id=outcome.job_id, task=run.claim.task, error=str(error))
        if outcome.reason == UNWRITABLE:  # the replacement outcome below could not be written either
            self._confirm(group, [None])
            return
        failure = Failure(type(error).__name__, str(error))
        buried = Outcome(
            outcome.job_id, outcome.token, Move.DEAD, outcome.started_at, failure=failure, reason=UNWRITABLE
        )
        await self._write([(run, buried)])

    def _confirm(self, group: list[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        try:
            self._after_ack.confirmed(group, statuses)
        except Exception as error:  # noqa: BLE001 - if this loop ended, no outcome would be written any more
            log.warning("announcing_failed", jobs=len(group), error=f"{type(error).__name__}: {error}")


class AfterAck:
    """Does what is left to do once the store has an outcome; belongs to one event loop.

    `confirmed`, `committed` and `lost` emit events at once and release the slots that wait for the write. `settle` does
    the rest in the background, for many jobs at a time: it tells the features, re-checks the conditions that suspended
    jobs wait for, and cancels the children of cancelled jobs.
    """

    def __init__(self, runtime: Runtime, worker: str, *, log_completions: bool = False) -> None:
        self._runtime = runtime
        self._bus = runtime.bus
        self._worker = worker
        self._log_completions = log_completions
        self._store = runtime.store
        self._features = runtime.features
        self._cancelled: list[str] = []
        self._ended: list[tuple[Claim, RunResult | None]] = []
        self._suspended: dict[str, set[Recheck]] = {}
        self._some = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self.released = 0  # jobs handed back because the worker stops

    # -- what has happened ----------------------------------------------------------------------

    def confirmed(self, written: Sequence[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        """Follow up on outcomes that were written. A status is None if the claim was lost and nothing was changed."""
        all_wanted, meter = self._hears_success(), self._bus.meter
        if self._runtime.observers:
            self._tell_observers(written, statuses)
        for (run, outcome), status in zip(written, statuses, strict=True):
            if meter is not None and status is Status.COMPLETED:
                meter.completed(run.claim, outcome.finished_at - outcome.started_at)
            if all_wanted or status is not Status.COMPLETED:
                self._report(run, outcome, status)
                self.released += run.stop is Stop.SHUTDOWN and outcome.move is Move.RELEASE
            if outcome.follow_ups and status is not None:
                self._runtime.pipeline.announce(outcome.follow_ups, outcome.inserted, "job")
            if run.admitted:
                self.ended(run.claim, RunResult(outcome, run.error))
            if status is Status.CANCELLED and (run.claim.token > 1 or (run.durable and run.durable.spawned)):
                self.cancelled(run.claim.id)
            if run.recheck is not None and outcome.waits_for is not None and status is Status.SUSPENDED:
                self._suspend(outcome.waits_for, run.recheck)
            if run.written is not None and not run.written.done():
                run.written.set_result(None)

    def committed(self, run: Run, outcome: Outcome) -> None:
        """Follow up on a run that wrote its own outcome, by `ctx.transaction()`."""
        assert run.context is not None  # noqa: S101 - without a context there is no transaction
        if run.admitted:
            self.ended(run.claim, RunResult(outcome, run.error))
        if self._runtime.observers:
            self._tell_observers([(run, outcome)], [Status.COMPLETED])
        if self._bus.meter is not None:
            self._bus.meter.completed(run.claim, outcome.finished_at - outcome.started_at)
        self._report(run, outcome, Status.COMPLETED)
        self._warn_of_lost_result(run, outcome)
        if (written := run.context.effects.outcome) is not None:
            self._runtime.pipeline.announce(written.follow_ups, written.inserted, "job")

    def _tell_observers(self, written: Sequence[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        for (run, outcome), status in zip(written, statuses, strict=True):
            self._runtime.observers.ended(RunEnd(run.claim, outcome, status, run.error, self._worker))

    def lost(self, run: Run) -> None:
        """Follow up on a run whose claim is lost, and for which nothing is written."""
        if run.admitted:
            self.ended(run.claim)

    # -- events and log lines ---------------------------------------------------------------------

    def _hears_success(self) -> bool:
        """Return whether each success must be reported: there may be tens of thousands of them a second."""
        return self._log_completions or self._bus.wants(JobCompleted) or log.wants(logging.DEBUG)

    def _report(self, run: Run, outcome: Outcome, status: Status | None) -> None:
        claim = run.claim
        duration = max(0, outcome.finished_at - outcome.started_at) / 1000 if outcome.started_at else 0.0
        fields = {"job_id": claim.id, "task": claim.task, "attempt": claim.attempt, "worker": self._worker}
        if status is None:
            log.warning("claim_lost", **fields, duration=duration, move=outcome.move)
        elif status is Status.COMPLETED:
            (log.info if self._log_completions else log.debug)("job_completed", **fields, duration=duration)
            if self._bus.wants(JobCompleted):
                self._bus.emit(JobCompleted(**fields_of(run, self._worker), duration=duration))
        elif status is Status.DEAD_LETTER:
            error = in_one_line(outcome.failure) or outcome.reason
            log.error("job_dead_lettered", **fields, duration=duration, error=error)
            self._bus.emit(
                JobDeadLettered(
                    **fields_of(run, self._worker), duration=duration, failure=outcome.failure, reason=outcome.reason
                )
            )
        elif status is Status.CANCELLED:
            log.info("job_cancelled", **fields, duration=duration, reason=outcome.reason)
            self._bus.emit(JobCancelled(job_id=claim.id, task=claim.task, queue=claim.queue, reason=outcome.reason))
        else:
            self._report_unfinished(run, outcome, fields, duration)

    def _warn_of_lost_result(self, run: Run, outcome: Outcome) -> None:
        """Warn about a value returned after `ctx.transaction()`: its commit has completed the job without it."""
        if run.context is not None and run.context.effects.result is UNSET and outcome.result is not None:
            error = "returned after ctx.transaction() had completed the job; call ctx.set_result(…) inside the block"
            log.warning("result_not_stored", job_id=run.claim.id, task=run.claim.task, error=error)

    def _report_unfinished(self, run: Run, outcome: Outcome, fields: dict[str, Any], duration: float) -> None:
        about, delay = fields_of(run, self._worker), outcome.delay / 1000
        if outcome.move is Move.SNOOZE:
            log.info("job_snoozed", **fields, duration=duration, delay=delay, reason=outcome.reason)
            self._bus.emit(JobSnoozed(**about, delay=delay, reason=outcome.reason))
        elif outcome.move is Move.SUSPEND:
            self._report_suspended(run, outcome, fields, duration)
        elif outcome.move is Move.RELEASE:
            is_mass = run.stop in {Stop.HALTED, Stop.CHANGED}  # these may hand back thousands of jobs
            say = log.debug if is_mass else log.info
            say("job_released", **fields, duration=duration, delay=delay, reason=outcome.reason)
            self._bus.emit(JobReleased(**about, reason=outcome.reason))
        else:
            reason = retry_reason(outcome)
            error = in_one_line(outcome.failure)
            log.warning("job_retrying", **fields, duration=duration, delay=delay, reason=reason, error=error)
            self._bus.emit(
                JobRetrying(
                    **about,
                    reason=reason,
                    max_attempts=run.claim.max_attempts,
                    delay=delay,
                    duration=duration,
                    failure=outcome.failure,
                )
            )

    def _report_suspended(self, run: Run, outcome: Outcome, fields: dict[str, Any], duration: float) -> None:
        """Report a suspension, logged only at DEBUG: a system may have hundreds of thousands of suspended jobs."""
        due = outcome.finished_at + outcome.delay
        until = to_datetime(due) if outcome.finished_at and due < UNTIL_WOKEN else None
        log.debug("job_suspended", **fields, duration=duration, until=until, waits_for=outcome.waits_for)
        if self._bus.wants(JobSuspended):
            about, waits_for = fields_of(run, self._worker), outcome.waits_for
            self._bus.emit(JobSuspended(**about, until=until, waits_for=waits_for, reason=outcome.reason))

    # -- what is left to do ---------------------------------------------------------------------

    def ended(self, claim: Claim, result: RunResult | None = None) -> None:
        """Tell the features that a run which had passed them is over."""
        self._ended.append((claim, result))
        self._some.set()

    def cancelled(self, job_id: str) -> None:
        """Cancel the children of this job, if it has any."""
        self._cancelled.append(job_id)
        self._some.set()

    def _suspend(self, key: str, recheck: Recheck) -> None:
        """Check once more whether what the job waits for has happened: it may have, before the job was suspended."""
        self._suspended.setdefault(key, set()).add(recheck)
        self._some.set()

    async def step(self) -> None:
        """Do one turn of a supervised loop."""
        await self._some.wait()
        await self.settle()

    async def settle(self) -> None:
        """Do everything noted so far and wait for what is already being done. What fails is kept for the next call."""
        async with self._one_at_a_time:
            await self._settle()

    async def _settle(self) -> None:
        while self._ended or self._suspended or self._cancelled:
            ended, self._ended = self._ended, []
            cancelled, self._cancelled = self._cancelled, []
            suspended, self._suspended = self._suspended, {}
            self._some.clear()
            try:
                results = {claim.id: result for claim, result in ended if result is not None}
                await self._features.ended([claim for claim, _ in ended], results)
                ended = []
                if happened := await all_that_happened(suspended):
                    await self._store.wake(dict.fromkeys(happened, ALL_WAITING))
                suspended = {}
                await self._runtime.jobs.cancel_children(cancelled, "mainspring")
            except BaseException:
                self._ended = ended + self._ended
                self._cancelled = cancelled + self._cancelled
                for key, looks in suspended.items():
                    self._suspended.setdefault(key, set()).update(looks)
                self._some.set()
                raise


def patience_with(error: BaseException) -> float:
    """Return after how many failed writes to blame the outcomes; infinite if the store is clearly at fault."""
    if isinstance(error, (IllegalMove, ConfigurationError, ValueError, TypeError, ArithmeticError)):
        return 1
    return math.inf if isinstance(error, StoreError) and type(error) is not StoreError else 5


async def all_that_happened(suspended: Mapping[str, Iterable[Recheck]]) -> set[str]:
    """Return the keys whose condition is met. All conditions are checked at once, as each may need the store."""
    asked = [(key, look) for key, looks in suspended.items() for look in looks]
    answers = await asyncio.gather(*(look() for _, look in asked), return_exceptions=True)
    for error in (answer for answer in answers if isinstance(answer, BaseException)):
        raise error
    return {key for (key, _), happened in zip(asked, answers, strict=True) if happened}
