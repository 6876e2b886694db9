"""One run of a job in a worker: what is known about it, how to stop it, and what becomes of the job when it ends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from mainspring.clock import Millis, duration
from mainspring.context import UNSET, Context
from mainspring.errors import (
    Cancel,
    CannotStoreResult,
    Discard,
    Failure,
    InvalidPayload,
    RunEnd,
    Snooze,
    UnsupportedCall,
    WorkerCrashed,
)
from mainspring.feature import Recheck
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.run import DurableRun
from mainspring.features.durable.states import reason_for
from mainspring.features.durable.suspension import is_suspended
from mainspring.job import Claim, Move, NewJob, Outcome, ProgressReport
from mainspring.json_text import from_json, read_object
from mainspring.live_settings import EMPTY, Snapshot
from mainspring.redaction import DEFAULT, Hide, Redaction
from mainspring.retry import Retry
from mainspring.stored_options import has_on_end
from mainspring.stores.engine.ack import LONGEST_MESSAGE
from mainspring.task import Task
from mainspring.worker.failures import failure_of, identified, storable

T = TypeVar("T")


class Stop(StrEnum):
    """Why the worker ends a run before its handler does."""

    CANCEL = "cancelled"  # your code or an operator cancelled the job
    TIMEOUT = "timeout"
    LOST = "claim lost"  # another worker may have the job now: this run's outcome is not written
    SHUTDOWN = "worker stops"  # the job is handed back without using an attempt
    CROWDED = "no room"  # handed back likewise: the worker claimed the job, but has no free slot for it
    HALTED = "halted"  # handed back likewise: halted or refused by a feature between its claim and its start
    CHANGED = "settings changed"  # handed back likewise: its task was paused, or one of its limits or rates lowered


class Dumped:
    """A result that is already JSON text: a child process has checked it against its task."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text


class Run:
    """One claimed job, what the worker knows about its run, and how to stop it."""

    started_at: Millis = 0  # when a slot took it
    called = False  # its handler was called: until then, a halt, middleware or a missing child may hold it back
    context: Context | None = None
    thread: int | None = None  # the thread in which the handler runs
    handler_thread: int | None = None  # the same, but only while the handler runs there; also set for chunks
    durable: DurableRun | None = None  # set once the handler has used anything durable
    waits_in: deque[Run] | None = None  # of a job that waits for others to fill its chunk: where it waits
    slot: asyncio.Task[None] | None = None  # the asyncio task that runs it
    written: asyncio.Future[None] | None = None  # set if the slot must wait until the outcome is written
    kill: Callable[[], object] | None = None  # ends the child process, or otherwise stops the handler
    stop: Stop | None = None
    stop_reason = ""
    told_at: float | None = None  # when it was first told to stop, by the monotonic clock
    ended = False  # its outcome is on the way to the store, so the run cannot be stopped any more
    error: BaseException | None = None  # what the handler raised; after a timeout a TimeoutError
    admitted = False  # features have admitted it, and must be told when it ends
    observed = False  # observers are told how it ends, and what it raised
    _hide: Hide | None = None  # replaces secrets in texts, once it was needed
    report: ProgressReport | None = None  # the newest; the handler's thread sets it
    reported: ProgressReport | None = None  # the newest one that is written; if it is another one, `report` waits
    recheck: Recheck | None = None  # of a job being suspended: checks whether what it waits for has happened
    settings: Snapshot = EMPTY  # those in force when the worker took the job; features may know newer ones

    def __init__(self, claim: Claim, task: Task[..., Any, Any], claimed_at: float) -> None:
        self.claim = claim
        self.task = task
        self.claimed_at = claimed_at  # by the worker's monotonic clock

    @property
    def timeout(self) -> float | None:
        return self.claim.timeout / 1000 if self.claim.timeout else None

    @property
    def is_plain(self) -> bool:
        """Return whether it is a coroutine without context, timeout or options of its own."""
        return self.task.is_plain and not self.claim.timeout and self.claim.options is None

    @property
    def needs_recheck(self) -> bool:
        """Return whether its features must be asked again before it starts.

        Only features that go by the job's options can answer differently by then.
        """
        return self.admitted and self.claim.options is not None

    @property
    def isolated(self) -> bool:
        if self.claim.options is None or '"isolation"' not in self.claim.options:  # true of most jobs
            return self.task.options.get("isolation") == "process"
        own = read_object(self.claim.options).get("isolation")
        return (own or self.task.options.get("isolation")) == "process"

    @property
    def plan(self) -> StepPlan:
        """Return the steps that its enqueue asked for, or else those that its task declares."""
        if self.claim.options is None or '"plan"' not in self.claim.options:
            return self.task.plan
        own = read_object(self.claim.options)
        return StepPlan.from_options(own) if "plan" in own else self.task.plan

    @property
    def threaded(self) -> bool:
        """Return whether the handler can only be told to stop, as it runs in a thread.

        A job that still waits for a child process does not count: it can be stopped.
        """
        return not self.task.is_async and not self.isolated

    @property
    def waits_for_child(self) -> bool:
        return self.slot is not None and self.kill is None and self.isolated

    @property
    def retry(self) -> Retry:
        """Return the job's own retry policy, or else that of its task."""
        if self.claim.options and (own := read_object(self.claim.options).get("retry")):
            return Retry.from_data(own)
        return self.task.retry_in(self.claim.queue)

    @property
    def redaction(self) -> Redaction:
        known: Task[..., Any, Any] | None = self.task  # None: this worker does not know it
        return DEFAULT if known is None else known.shared.services.redaction

    def hide(self, text: str) -> str:
        """Return a text that is told about the run, without the secrets of its payload and headers."""
        if self._hide is None:
            self._hide = self.redaction.hide_stored([self.secretive()], self.claim.task)
        return self._hide(text)

    def secretive(self) -> tuple[Any, Any]:
        """Return what may have secrets that texts repeat: its payload and its headers."""
        try:
            payload: Any = from_json(self.claim.payload)
        except ValueError:
            payload = None
        return payload, read_object(self.claim.options).get("headers")

    def in_its_thread(self, handler: Callable[[], Any]) -> Any:
        self.thread = threading.get_ident()
        return handler()

    def hold_back(self) -> None:
        """Note that the run does not start after all. Any thread may call this."""
        self.stop = self.stop or Stop.HALTED

    def end(self, stop: Stop, reason: str = "") -> None:
        """Make the handler stop: cancel its coroutine or end its process. A handler in a thread is only told."""
        if self.ended or self.stop is Stop.LOST or (self.stop is not None and stop is not Stop.LOST):
            return
        if self._commits(stop):
            return
        self.stop, self.stop_reason = stop, reason
        self.told_at = self.told_at or time.monotonic()
        if self.context is not None:
            self.context.stop(reason or stop)
        if self.kill is not None:
            self.kill()
        elif self.slot is not None and not self.threaded:
            self.slot.cancel()

    def _commits(self, stop: Stop) -> bool:
        """Return whether the run's own transaction is writing its outcome, which a heartbeat sees as a lost claim."""
        if self.context is None:
            return False
        effects = self.context.effects
        return effects.committing or (effects.committed and stop is Stop.LOST)


# -- what becomes of the job ----------------------------------------------------------------------

HOPELESS = InvalidPayload, CannotStoreResult, UnsupportedCall  # the next attempt would fail in the same way
SEALED = '{"$encrypted":"v1.'  # how an encrypted payload begins; encryption.py is imported only if it is used
UNREADABLE_DELAY: Millis = 10_000  # leaves an encrypted job to workers that have its key
NOT_FAILED = frozenset({Move.RELEASE, Move.SNOOZE, Move.CANCEL})
CROWDED_DELAY: Millis = 500  # gives other workers a chance before the worker that handed the job back claims it again

HANDED_BACK: dict[Stop | None, tuple[Millis, str]] = {
    Stop.CROWDED: (CROWDED_DELAY, "its worker had no room for it"),
    Stop.HALTED: (0, "it was halted before it started"),
    Stop.CHANGED: (0, "its settings were changed before it started"),
}


def outcome_of_value(run: Run, value: Any, now: Millis) -> Outcome | None:
    """Return the outcome of a handler that returned. It counts even after the timeout: the work is done.

    Two exceptions are for handlers that caught the exception meant to unwind them. If the claim is lost, return None.
    If the job was to be suspended, it still is.
    """
    if run.durable is not None and run.durable.lost:
        return None
    if run.durable is not None and run.durable.suspension is not None:
        return suspended(run, now)
    try:
        return completed(run, now, value)
    except Exception as error:  # noqa: BLE001 - CannotStoreResult, or one of the user's types that cannot be dumped
        return outcome(run, Move.DEAD, now, failure=failure_of(error, run.hide))


def completed(run: Run, now: Millis, value: Any = None) -> Outcome:
    """Return a completed outcome: with the result (the one set on the context, if any) and the follow-up jobs."""
    claim, result = run.claim, None
    follow_ups: tuple[NewJob, ...] = ()
    if run.context is not None:
        effects = run.context.effects
        value = value if effects.result is UNSET else effects.result
        follow_ups = tuple(effects.follow_ups)
    if value is not None:
        result = value.text if isinstance(value, Dumped) else run.task.payload.dump_result(value)
    done = Outcome(claim.id, claim.token, Move.DONE, run.started_at, now, 0, result, None, "", follow_ups, claim.ref)
    if claim.fingerprint is not None:  # true of few jobs
        done.recovers = claim.fingerprint
    if claim.options is not None and has_on_end(claim.options):
        done.is_followed = True
    return done


def outcome_of_error(run: Run, error: BaseException, now: Millis) -> Outcome | None:
    """Return the outcome of a handler that raised or was stopped; None if the claim is lost and nothing may be written.

    Whatever a handler raises after its worker has told it to stop counts as the answer to that, and uses no attempt:
    libraries turn a cancellation into errors of their own.
    """
    if run.stop is Stop.LOST or (run.durable is not None and run.durable.lost):
        return None
    if run.stop is Stop.CANCEL:
        return outcome(run, Move.CANCEL, now, reason=run.stop_reason)
    if run.stop in HANDED_BACK:
        delay, reason = HANDED_BACK[run.stop]
        return outcome(run, Move.RELEASE, now, delay=delay, reason=reason)
    if run.durable is not None and run.durable.suspension is not None and is_suspended(error):
        return suspended(run, now)
    if run.stop is Stop.SHUTDOWN and not isinstance(error, (Snooze, Discard)):
        return outcome(run, Move.RELEASE, now, reason="its worker stopped")
    return timed_out(run, error, now) if run.stop is Stop.TIMEOUT else by_error(run, error, now)


def by_error(run: Run, error: BaseException, now: Millis) -> Outcome:
    return by_run_end(run, error, now) if isinstance(error, RunEnd) else failed(run, error, now)


def timed_out(run: Run, error: BaseException, now: Millis) -> Outcome:
    """Return the outcome of a run that its timeout has stopped, whatever the handler raised then."""
    message = f"ran longer than its timeout of {run.claim.timeout / 1000:g} s"
    ended = failed(run, TimeoutError(message).with_traceback(error.__traceback__), now)
    ended.timed_out = True
    return ended


def suspended(run: Run, now: Millis) -> Outcome:
    """Return the outcome of a function that sleeps or waits. The same commit writes the record of that."""
    assert run.durable is not None  # noqa: S101 - the callers have checked it
    assert run.durable.suspension is not None  # noqa: S101
    pause = run.durable.suspension
    run.recheck = pause.recheck
    return outcome(run, Move.SUSPEND, now, delay=pause.delay(run.durable.now()), waits_for=pause.key, steps=pause.steps)


def by_run_end(run: Run, end: RunEnd, now: Millis) -> Outcome:
    if isinstance(end, Snooze):
        return outcome(run, Move.SNOOZE, now, delay=duration(end.delay), reason=end.reason)
    if isinstance(end, Cancel):
        return outcome(run, Move.CANCEL, now, reason=end.reason)
    return outcome(run, Move.DEAD, now, failure=failure_of(end, run.hide), reason=end.reason)


def failed(run: Run, error: BaseException, now: Millis) -> Outcome:
    failure, step = failure_of(error, run.hide), None if run.durable is None else run.durable.failed_step
    reason = "" if step is None else reason_for(step)
    if isinstance(error, WorkerCrashed):
        return outcome(run, Move.CRASH, now, failure=failure)
    if isinstance(error, HOPELESS):
        return outcome(run, Move.DEAD, now, failure=failure, reason=reason)
    try:
        delay = retry_delay(run, error)
    except Exception as broken:  # noqa: BLE001 - a policy may be the user's function, and must not lose the job
        note = f"\nThe retry policy failed too, and the default one was used:\n{failure_of(broken, run.hide).traceback}"
        failure = replace(failure, traceback=failure.traceback + note)
        delay = default_delay(run, error)
    if delay is None:
        return outcome(run, Move.DEAD, now, failure=failure, reason=reason)
    return outcome(run, Move.RETRY, now, delay=delay, failure=failure, reason=reason)


def retry_delay(run: Run, error: BaseException) -> Millis | None:
    """Return the delay before the next attempt; None to give up."""
    retry = run.retry
    if run.claim.attempt >= run.claim.max_attempts or not retry.allows(error):
        return None
    delay = retry.delay(run.claim.attempt, error)
    return None if delay is None else max(0, delay)


def default_delay(run: Run, error: BaseException) -> Millis | None:
    return None if run.claim.attempt >= run.claim.max_attempts else Retry().delay(run.claim.attempt, error)


def outcome_of_unreadable(run: Run, now: Millis) -> Outcome:
    """Release a job whose payload this worker cannot decrypt to workers that have the key, without using an attempt."""
    return outcome(run, Move.RELEASE, now, delay=UNREADABLE_DELAY, reason="its worker cannot decrypt it")


def outcome_of_unknown_task(run: Run, now: Millis) -> Outcome:
    """Release the job at once to workers that know its task, without using an attempt."""
    return outcome(run, Move.RELEASE, now, reason=f"its worker does not know task {run.claim.task!r}")


def outcome(
    run: Run, move: Move, now: Millis, *, reason: str = "", failure: Failure | None = None, **rest: Any
) -> Outcome:
    claim = run.claim
    if reason and move is not Move.RELEASE:  # those are our own words, and a halt may release thousands of jobs
        reason = run.hide(reason)
    return Outcome(
        claim.id,
        claim.token,
        move,
        run.started_at,
        now,
        reason=storable(reason, LONGEST_MESSAGE),
        failure=None if failure is None else identified(failure, claim),
        ref=claim.ref,
        blocked=not run.called and move in NOT_FAILED,  # an attempt that failed counts as a start in any case
        **rest,
    )


# -- what is told about it --------------------------------------------------------------------------


def fields_of(run: Run, worker: str) -> dict[str, Any]:
    """Return the fields that all events about a run have."""
    claim = run.claim
    return {
        "job_id": claim.id,
        "task": claim.task,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "worker": worker,
    }


# -- where its handler runs ------------------------------------------------------------------------


def in_this_thread(runs: Sequence[Run], handler: Callable[[], Any]) -> Any:
    """Call the handler of these runs. Meanwhile note the thread it runs in, to show its stack if it hangs."""
    for run in runs:
        run.handler_thread = threading.get_ident()
    try:
        return handler()
    finally:
        for run in runs:
            run.handler_thread = None


@types.coroutine
def run_in_new_context(work: Coroutine[Any, Any, T], on_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await a coroutine in a copy of the current context. Call `on_wait` when it first has to wait."""
    context = contextvars.copy_context()
    step: Callable[[Any], Any] = work.send
    argument: Any = None
    value: T
    try:
        wanted = context.run(step, None)
    except StopIteration as stop:
        value = stop.value
        return value
    on_wait()
    while True:
        try:
            argument = yield wanted
            step = work.send
        except BaseException as error:  # noqa: BLE001 - whatever is thrown at us is for the coroutine
            step, argument = work.throw, error
        try:
            wanted = context.run(step, argument)
        except StopIteration as stop:
            value = stop.value
            return value
