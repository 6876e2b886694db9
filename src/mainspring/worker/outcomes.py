"""What should become of a job, given how its run ended. Pure: needs no store and no clock in tests."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

from mainspring.clock import Millis, duration
from mainspring.context import UNSET
from mainspring.durable.states import reason_for
from mainspring.durable.suspension import is_suspended
from mainspring.errors import (
    Cancel,
    CannotStoreResult,
    Discard,
    InvalidPayload,
    Snooze,
    UnsupportedCall,
    Wish,
    WorkerCrashed,
)
from mainspring.job import Failure, Move, Outcome
from mainspring.json_text import read_object
from mainspring.retry import Retry
from mainspring.stores.protocol import StalledRun
from mainspring.stores.rules import LONGEST_MESSAGE, LONGEST_TRACEBACK, shorten
from mainspring.task import Task
from mainspring.worker.run import Dumped, Run, Stop

HOPELESS = InvalidPayload, CannotStoreResult, UnsupportedCall  # the next attempt would end in the very same way
CROWDED_DELAY: Millis = 500  # for others to be quicker than the worker that handed it back

HANDED_BACK: dict[Stop | None, tuple[Millis, str]] = {
    Stop.CROWDED: (CROWDED_DELAY, "its worker had no room for it"),
    Stop.HALTED: (0, "it was halted before it started"),
}


def returned(run: Run, value: Any, now: Millis) -> Outcome | None:
    """The handler came to its end. Even past its timeout: the work is done, and undoing it is nobody's wish.

    Unless it has swallowed what should have unwound it: a lost claim (None) or a suspension.
    """
    if run.durable is not None and run.durable.lost:
        return None
    if run.durable is not None and run.durable.suspension is not None:
        return suspended(run, now)
    try:
        return completed(run, now, value)
    except Exception as error:  # noqa: BLE001 - CannotStoreResult; or a type of the user's that cannot be dumped at all
        return end(run, Move.DEAD, now, failure=failure_of(error))


def completed(run: Run, now: Millis, value: Any = None) -> Outcome:
    """With the result, which the context may know better, and the jobs that follow."""
    effects = run.context.effects if run.context is not None else None
    if effects is not None and effects.result is not UNSET:
        value = effects.result
    result = value.text if isinstance(value, Dumped) else run.task.payload.dump_result(value)
    follow_ups = tuple(effects.follow_ups) if effects is not None else ()
    claim = run.claim
    return Outcome(claim.id, claim.token, Move.DONE, run.started_at, now, 0, result, None, "", follow_ups, claim.ref)


def raised(run: Run, error: BaseException, now: Millis) -> Outcome | None:
    """The handler raised, or was stopped; None: the claim is lost and nothing may be written.

    Whatever a handler raises once its worker has told it to stop is taken as an answer to that, and burns no attempt:
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
    """Its function sleeps or waits; the record of that is written in the same commit."""
    assert run.durable is not None  # noqa: S101 - asked before
    assert run.durable.suspension is not None  # noqa: S101
    pause = run.durable.suspension
    run.look_again = pause.look_again
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
    except Exception as broken:  # noqa: BLE001 - a policy may be the user's own function, and a job must not be lost by it
        note = f"\nThe retry policy failed too, and the default one was used:\n{failure_of(broken).traceback}"
        failure = replace(failure, traceback=failure.traceback + note)
        delay = default_delay(run, error)
    if delay is None:
        return end(run, Move.DEAD, now, failure=failure, reason=reason)
    return end(run, Move.RETRY, now, delay=delay, failure=failure, reason=reason)


def retry_delay(run: Run, error: BaseException) -> Millis | None:
    """None: give up."""
    retry = run.retry
    if run.claim.attempt >= run.claim.max_attempts or not retry.allows(error):
        return None
    delay = retry.delay(run.claim.attempt, error)
    return None if delay is None else max(0, delay)


def after_stall(task: Task[..., Any, Any] | None, run: StalledRun) -> Millis | None:
    """The delay before a stalled job's next attempt, by the job's own policy or its task's; None: give up.

    A worker that does not know the task uses the default policy, as does one whose policy fails.
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
    """An error that came from a child process brings its own traceback along."""
    told = told_with(error)
    if told is not None:
        return told
    trace = trace_of(error) if error.__traceback__ else ""
    return as_failure(type(error).__name__, message_of(error), trace)


def as_failure(kind: str, message: str, trace: str) -> Failure:
    """As stores take it: without lone surrogates, and shortened."""
    return Failure(storable(kind, LONGEST_MESSAGE), storable(message, LONGEST_MESSAGE), storable(trace))


def told_with(error: BaseException) -> Failure | None:
    """Exceptions are the user's: some raise whatever they are asked for."""
    try:
        told: Failure | None = getattr(error, "mainspring_failure", None)
    except Exception:  # noqa: BLE001
        return None
    return told if isinstance(told, Failure) else None


def trace_of(error: BaseException) -> str:
    """The traceback, with the errors that led to this one.

    Long messages are shortened first. Python would split them into lines: for 50 MB that takes seconds, in which the
    worker does nothing else.
    """
    try:
        if all(has_short_message(one) for one in causes_of(error)):
            return "".join(traceback.format_exception(error))
        return CAUSED.join(short_trace_of(one) + more_about(one) for one in causes_of(error))
    except Exception:  # noqa: BLE001 - before 3.12 Python's own asking for notes was not prepared for these either
        return short_trace_of(error)


CAUSED = "\nThis exception led to the following one:\n\n"


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and those that led to it, the first one first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is seen for seen in chain):
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain[::-1]


def has_short_message(error: BaseException) -> bool:
    texts = [message_of(error), *getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return sum(map(len, texts)) <= LONGEST_TRACEBACK and all(has_short_message(one) for one in within)


def short_trace_of(error: BaseException) -> str:
    """The traceback of this error alone."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    message = shorten(message_of(error), LONGEST_MESSAGE)
    return f"Traceback (most recent call last):\n{lines}{type(error).__name__}: {message}\n"


def more_about(error: BaseException) -> str:
    """Its notes, and the errors of a group."""
    notes = [f"{shorten(note, LONGEST_MESSAGE)}\n" for note in getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "".join([*notes, *(f"\nIn this group:\n\n{short_trace_of(one)}{more_about(one)}" for one in within)])


def message_of(error: BaseException) -> str:
    """Some cannot even say what went wrong."""
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001
        return f"<its message raised {type(worse).__name__}>"


def storable(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """Undecodable bytes of file names and the like travel as lone surrogates, which no store takes."""
    return shorten(text, most).encode("utf-8", "backslashreplace").decode()
