"""What spans say: their attributes, how they end, and how they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry.trace import Status, StatusCode

from mainspring.clock import Millis
from mainspring.errors import Failure
from mainspring.job import Job, Move, Outcome
from mainspring.job import Status as JobStatus
from mainspring.middleware import EnqueueCall
from mainspring.observer import Execution, Result
from mainspring.stored_options import options_of
from mainspring.stores.protocol import Takeover, TakeoverCause

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

SYSTEM = "mainspring"

OUTCOMES = {
    Move.DONE: "completed",
    Move.RETRY: "retry",
    Move.SNOOZE: "snooze",
    Move.RELEASE: "release",
    Move.SUSPEND: "suspend",
    Move.CRASH: "crash",
    Move.DEAD: "dead_letter",
    Move.CANCEL: "cancel",
}
"""The values of `mainspring.outcome`; `lost` is one more: another worker has the job, and the run does not count."""

FAILURES = frozenset({Move.RETRY, Move.CRASH, Move.DEAD})


def sending(call: EnqueueCall) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": call.queue,
        "mainspring.task": call.task,
    }


def name_jobs(span: Span, job_ids: Sequence[str]) -> None:
    if len(job_ids) == 1:
        span.set_attribute("messaging.message.id", job_ids[0])
    else:
        span.set_attribute("messaging.batch.message_count", len(job_ids))


def attributes_of(execution: Execution) -> dict[str, AttributeValue]:
    claim = execution.claim
    shared: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": claim.queue,
        "mainspring.task": claim.task,
        "mainspring.worker": execution.worker,
    }
    if execution.is_chunk:
        return shared | {"messaging.batch.message_count": len(execution.claims)}
    own: dict[str, AttributeValue] = {
        "messaging.message.id": claim.id,
        "messaging.message.body.size": len(claim.payload.encode()),
        "mainspring.attempt": claim.attempt,
        "mainspring.max_attempts": claim.max_attempts,
        "mainspring.crashes": claim.crashes,
        "mainspring.wait_seconds": max(0, execution.started_at - claim.run_at) / 1000,
    }
    occurrence = options_of(claim.options).get("occurrence")
    return shared | own | ({} if occurrence is None else {"mainspring.schedule": occurrence["schedule"]})


def attributes_of_takeover(job: Job, takeover: Takeover) -> dict[str, AttributeValue]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": takeover.queue,
        "messaging.message.id": takeover.job_id,
        "mainspring.task": takeover.task,
        "mainspring.worker": takeover.worker,
        "mainspring.max_attempts": takeover.max_attempts or job.max_attempts,
        "mainspring.crashes": takeover.crashes,
        "mainspring.taken_over": True,
    }


# -- how they end ---------------------------------------------------------------------------------------------


def conclude(span: Span, results: Sequence[Result]) -> None:
    """Say on the span how the run ended; of a chunk, the first failure decides."""
    if not results or not span.is_recording():
        return
    result = next((each for each in results if is_failure(each.outcome)), results[0])
    outcome = result.outcome
    if outcome is None:
        span.set_attribute("mainspring.outcome", "lost")
    elif outcome.move in FAILURES:
        fail(span, outcome.failure, OUTCOMES[outcome.move], outcome.delay)
    else:
        describe(span, OUTCOMES[outcome.move], outcome.delay, outcome.reason)
    if len(results) > 1:
        span.set_attribute("mainspring.failed_count", sum(is_failure(each.outcome) for each in results))


def outcome_of_takeover(takeover: Takeover) -> str:
    if takeover.status is JobStatus.DEAD_LETTER:
        return OUTCOMES[Move.DEAD]
    return OUTCOMES[Move.CRASH] if takeover.cause is TakeoverCause.CRASHED else "stalled"


def is_failure(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.move in FAILURES


def describe(span: Span, outcome: str, delay: Millis = 0, reason: str = "") -> None:
    span.set_attribute("mainspring.outcome", outcome)
    if reason:
        span.set_attribute("mainspring.reason", reason)
    if delay and outcome in {"retry", "snooze", "release"}:
        span.set_attribute("mainspring.delay_seconds", delay / 1000)


def fail(span: Span, failure: Failure | None, outcome: str, delay: Millis = 0) -> None:
    """Mark the span as failed. The exception is recorded as the store has it, whichever process raised it."""
    describe(span, outcome, delay)
    kind, message = (failure.type, failure.message) if failure is not None else (outcome, "")
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}" if message else kind))
    if failure is not None:
        exception = {"exception.type": kind, "exception.message": message, "exception.stacktrace": failure.traceback}
        span.add_event("exception", {name: text for name, text in exception.items() if text})
