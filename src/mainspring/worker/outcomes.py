"""Decides what becomes of a job, given how its run ended. Tests need neither a store nor a clock for it."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

from mainspring.clock import Millis, duration
from mainspring.context import UNSET
from mainspring.errors import (
    Cancel,
    CannotStoreResult,
    Discard,
    Failure,
    InvalidPayload,
    Snooze,
    UnsupportedCall,
    Wish,
    WorkerCrashed,
)
from mainspring.features.durable.states import reason_for
from mainspring.features.durable.suspension import is_suspended
from mainspring.job import Move, Outcome
from mainspring.json_text import read_object
from mainspring.retry import Retry
from mainspring.stores.engine.ack import LONGEST_MESSAGE, LONGEST_TRACEBACK, shorten
from mainspring.stores.protocol import StalledRun
from mainspring.task import Task
from mainspring.worker.run import Dumped, Run, Stop

HOPELESS = InvalidPayload, CannotStoreResult, UnsupportedCall  # the next attempt would fail in the same way
CROWDED_DELAY: Millis = 500  # gives other workers a chance before the worker that handed the job back claims it again

HANDED_BACK: dict[Stop | None, tuple[Millis, str]] = {
    Stop.CROWDED: (CROWDED_DELAY, "its worker had no room for it"),
    Stop.HALTED: (0, "it was halted before it started"),
}


def returned(run: Run, value: Any, now: Millis) -> Outcome | None:
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
        return end(run, Move.DEAD, now, failure=failure_of(error))


def completed(run: Run, now: Millis, value: Any = None) -> Outcome:
    """Return a completed outcome: with the result (the one set on the context, if any) and the follow-up jobs."""
    effects = run.context.effects if run.context is not None else None
    if effects is not None and effects.result is not UNSET:
        value = effects.result
    result = value.text if isinstance(value, Dumped) else run.task.payload.dump_result(value)
    follow_ups = tuple(effects.follow_ups) if effects is not None else ()
    claim = run.claim
    return Outcome(claim.id, claim.token, Move.DONE, run.started_at, now, 0, result, None, "", follow_ups, claim.ref)


def raised(run: Run, error: BaseException, now: Millis) -> Outcome | None:
    """Return the outcome of a handler that raised or was stopped; None if the claim is lost and nothing may be written.

    Whatever a handler raises after its worker has told it to stop counts as the answer to that, and uses no attempt:
    libraries turn a cancellation into errors of their own.
    """
    if run.stop is Stop.LOST or (run.durable is not None and run.durable.lost):
        return None
    if run.stop is Stop.CANCEL:
        return end(run, Move.CANCEL, now, reason=run.stop_reason)
    if run.stop in HANDED_BACK:
        delay, reason = HANDED_BACK[run.stop]
        return end(run, Move.RELEASE, now, delay=delay, reason=reason)
    if run.durable is not None and run.durable.suspension is not None and is_suspended(error):
        return suspended(run, now)
    if run.stop is Stop.SHUTDOWN and not isinstance(error, (Snooze, Discard)):
        return end(run, Move.RELEASE, now, reason="its worker stopped")
    if run.stop is Stop.TIMEOUT:
        error = TimeoutError(f"ran longer than its timeout of {run.claim.timeout / 1000:g} s").with_traceback(
            error.__traceback__
        )
    return by_wish(run, error, now) if isinstance(error, Wish) else failed(run, error, now)


def suspended(run: Run, now: Millis) -> Outcome:
    """Return the outcome of a function that sleeps or waits. The same commit writes the record of that."""
    assert run.durable is not None  # noqa: S101 - the callers have checked it
    assert run.durable.suspension is not None  # noqa: S101
    pause = run.durable.suspension
    run.recheck = pause.recheck
    return end(run, Move.SUSPEND, now, delay=pause.delay(run.durable.now()), waits_for=pause.key, steps=pause.steps)


def by_wish(run: Run, wish: Wish, now: Millis) -> Outcome:
    if isinstance(wish, Snooze):
        return end(run, Move.SNOOZE, now, delay=duration(wish.delay), reason=wish.reason)
    if isinstance(wish, Cancel):
        return end(run, Move.CANCEL, now, reason=wish.reason)
    return end(run, Move.DEAD, now, failure=failure_of(wish), reason=wish.reason)


def failed(run: Run, error: BaseException, now: Millis) -> Outcome:
    failure, step = failure_of(error), None if run.durable is None else run.durable.failed_step
    reason = "" if step is None else reason_for(step)
    if isinstance(error, WorkerCrashed):
        return end(run, Move.CRASH, now, failure=failure)
    if isinstance(error, HOPELESS):
        return end(run, Move.DEAD, now, failure=failure, reason=reason)
    try:
        delay = retry_delay(run, error)
    except Exception as broken:  # noqa: BLE001 - a policy may be the user's function, and must not lose the job
        note = f"\nThe retry policy failed too, and the default one was used:\n{failure_of(broken).traceback}"
        failure = replace(failure, traceback=failure.traceback + note)
        delay = default_delay(run, error)
    if delay is None:
        return end(run, Move.DEAD, now, failure=failure, reason=reason)
    return end(run, Move.RETRY, now, delay=delay, failure=failure, reason=reason)


def retry_delay(run: Run, error: BaseException) -> Millis | None:
    """Return the delay before the next attempt; None to give up."""
    retry = run.retry
    if run.claim.attempt >= run.claim.max_attempts or not retry.allows(error):
        return None
    delay = retry.delay(run.claim.attempt, error)
    return None if delay is None else max(0, delay)


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


def default_delay(run: Run, error: BaseException) -> Millis | None:
    return None if run.claim.attempt >= run.claim.max_attempts else Retry().delay(run.claim.attempt, error)


def unknown_task(run: Run, now: Millis) -> Outcome:
    """Release the job at once to workers that know its task, without using an attempt."""
    return end(run, Move.RELEASE, now, reason=f"its worker does not know task {run.claim.task!r}")


def end(run: Run, move: Move, now: Millis, *, reason: str = "", **rest: Any) -> Outcome:
    claim = run.claim
    return Outcome(
        claim.id,
        claim.token,
        move,
        run.started_at,
        now,
        reason=storable(reason, LONGEST_MESSAGE),
        ref=claim.ref,
        **rest,
    )


def failure_of(error: BaseException) -> Failure:
    """Describe an exception. One that came from a child process brings its own description along."""
    failure = attached_failure(error)
    if failure is not None:
        return failure
    trace = trace_of(error) if error.__traceback__ else ""
    return as_failure(type(error).__name__, message_of(error), trace)


def as_failure(kind: str, message: str, trace: str) -> Failure:
    """Return a failure that stores accept: without lone surrogates, and shortened."""
    return Failure(storable(kind, LONGEST_MESSAGE), storable(message, LONGEST_MESSAGE), storable(trace))


def attached_failure(error: BaseException) -> Failure | None:
    """Return the description attached to the exception, if any. Some exceptions raise on any attribute access."""
    try:
        failure: Failure | None = getattr(error, "mainspring_failure", None)
    except Exception:  # noqa: BLE001
        return None
    return failure if isinstance(failure, Failure) else None


def trace_of(error: BaseException) -> str:
    """Return the traceback, with the exceptions that led to this one.

    Long messages are shortened first. Python would split them into lines: for 50 MB that takes seconds, in which the
    worker does nothing else.
    """
    try:
        if all(has_short_message(cause) for cause in causes_of(error)):
            return "".join(traceback.format_exception(error))
        return CAUSED.join(short_trace_of(cause) + more_about(cause) for cause in causes_of(error))
    except Exception:  # noqa: BLE001 - before 3.12, Python failed on exceptions that raise when asked for their notes
        return short_trace_of(error)


CAUSED = "\nThis exception led to the following one:\n\n"


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the exception and those that led to it, the earliest first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is seen for seen in chain):
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain[::-1]


def has_short_message(error: BaseException) -> bool:
    texts = [message_of(error), *getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return sum(map(len, texts)) <= LONGEST_TRACEBACK and all(has_short_message(cause) for cause in within)


def short_trace_of(error: BaseException) -> str:
    """Return the traceback of this exception alone."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    message = shorten(message_of(error), LONGEST_MESSAGE)
    return f"Traceback (most recent call last):\n{lines}{type(error).__name__}: {message}\n"


def more_about(error: BaseException) -> str:
    """Return the exception's notes, and the exceptions of a group."""
    notes = [f"{shorten(note, LONGEST_MESSAGE)}\n" for note in getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "".join([*notes, *(f"\nIn this group:\n\n{short_trace_of(cause)}{more_about(cause)}" for cause in within)])


def message_of(error: BaseException) -> str:
    """Return the exception's message, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001
        return f"<its message raised {type(worse).__name__}>"


def storable(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """Shorten the text and escape lone surrogates (undecodable bytes of file names, say), which no store accepts."""
    return shorten(text, most).encode("utf-8", "backslashreplace").decode()
