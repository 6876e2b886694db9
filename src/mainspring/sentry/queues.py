"""Spans for Sentry's Queues page: `queue.publish` at the enqueue, `queue.process` at the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sentry_sdk

from mainspring.job import Move, Outcome
from mainspring.middleware import EnqueueCall
from mainspring.observer import Execution
from mainspring.trace import join_baggage, trace_of

if TYPE_CHECKING:
    from sentry_sdk.tracing import Span

ORIGIN = "auto.queue.mainspring"
SYSTEM = "mainspring"
STATUSES = {Move.DONE: "ok", Move.RETRY: "internal_error", Move.DEAD: "internal_error", Move.CRASH: "internal_error"}
INTERRUPTED = "cancelled"  # snoozed, suspended, cancelled or handed back


@contextmanager
def publishing(call: EnqueueCall) -> Iterator[None]:
    """Make the span of an enqueue, and give its context to the jobs."""
    with sentry_sdk.start_span(op="queue.publish", name=call.task, origin=ORIGIN) as span:
        span.set_data("messaging.system", SYSTEM)
        span.set_data("messaging.destination.name", call.queue)
        call.trace.update(carried(call.trace))
        yield
        if len(call.job_ids) == 1:
            span.set_data("messaging.message.id", call.job_ids[0])
        else:
            span.set_data("messaging.batch.message_count", len(call.job_ids))


@contextmanager
def processing(execution: Execution) -> Iterator[None]:
    """Make the transaction of a run, in the trace of its enqueue, and the span within it that Queues shows."""
    claim = execution.claim
    given = {} if execution.is_chunk else dict(trace_of(claim.options))
    transaction = sentry_sdk.continue_trace(
        given, op="queue.task.mainspring", name=claim.task, source="task", origin=ORIGIN
    )
    with sentry_sdk.start_transaction(transaction) as root:
        with sentry_sdk.start_span(op="queue.process", name=claim.task, origin=ORIGIN) as span:
            describe(span, execution)
            execution.carry(carried({}))
            yield
            span.set_status(status_of(execution))
        root.set_status(status_of(execution))


def describe(span: Span, execution: Execution) -> None:
    claim = execution.claim
    span.set_data("messaging.system", SYSTEM)
    span.set_data("messaging.destination.name", claim.queue)
    span.set_data("messaging.message.receive.latency", max(0, execution.started_at - claim.run_at))  # milliseconds
    if execution.is_chunk:
        span.set_data("messaging.batch.message_count", len(execution.claims))
        return
    span.set_data("messaging.message.id", claim.id)
    span.set_data("messaging.message.body.size", len(claim.payload.encode()))
    span.set_data("messaging.message.retry.count", claim.attempts)


def status_of(execution: Execution) -> str:
    """Return the status of a run; of a chunk, that of its first failure."""
    outcomes = [result.outcome for result in execution.results if result.outcome is not None]
    failed = next((outcome for outcome in outcomes if is_failure(outcome)), None)
    shown = failed or next(iter(outcomes), None)
    return INTERRUPTED if shown is None else STATUSES.get(shown.move, INTERRUPTED)


def is_failure(outcome: Outcome | None) -> bool:
    return outcome is not None and STATUSES.get(outcome.move) == "internal_error"


def carried(given: Mapping[str, str]) -> dict[str, str]:
    """Return the current trace as headers. A job that was given another trace of Sentry's keeps that one."""
    current = sentry_sdk.get_traceparent()
    if current is None or not same_trace(given.get("sentry-trace"), current):
        return {}
    headers = {"sentry-trace": current}
    if baggage := sentry_sdk.get_baggage():
        headers["baggage"] = join_baggage(given.get("baggage", ""), baggage)
    return headers


def same_trace(given: str | None, current: str) -> bool:
    return given is None or given.partition("-")[0] == current.partition("-")[0]
