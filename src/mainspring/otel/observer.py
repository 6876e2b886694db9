"""Makes the spans of an application."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import SpanKind, Status, StatusCode

from mainspring.clock import Length, Millis, duration, to_millis
from mainspring.job import Job
from mainspring.json_text import to_json
from mainspring.middleware import EnqueueCall
from mainspring.observer import Execution, Observer
from mainspring.otel.contexts import Parentage, carried, given_context, links_of, links_to, without_span
from mainspring.otel.spans import (
    attributes_of,
    attributes_of_takeover,
    conclude,
    fail,
    name_jobs,
    outcome_of_takeover,
    sending,
)
from mainspring.stored_options import options_of
from mainspring.stores.protocol import Takeover
from mainspring.trace import trace_of

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

LINK_AFTER = timedelta(hours=1)
MOST_LINKS = 128  # that an SDK keeps of one span by default
MODULE = "mainspring.otel"


class OpenTelemetry(Observer):
    """Makes the spans of one application."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        link_after: Length | None = LINK_AFTER,
        *,
        sdk: bool = False,
    ) -> None:
        """`sdk`: child processes set up the SDK by its variables, as this process did."""
        self._tracer: Tracer = trace.get_tracer("mainspring", tracer_provider=tracer_provider)
        self._link_after = None if link_after is None else duration(link_after)
        self.child = (MODULE, {"sdk": sdk})

    # -- enqueues -----------------------------------------------------------------------------------

    def send(self, call: EnqueueCall) -> Iterator[None]:
        """Make a `send` span around an enqueue, and give its context to the jobs. This is middleware.

        The span of an enqueue that fails has only the type of the error: its traceback may repeat the payload.
        """
        with self._tracer.start_as_current_span(
            f"send {call.queue}",
            given_context(call.trace),
            kind=SpanKind.PRODUCER,
            attributes=sending(call),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            call.trace.update(carried(call.trace))
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
                raise
            name_jobs(span, call.job_ids)

    # -- runs ---------------------------------------------------------------------------------------

    @contextmanager
    def around(self, execution: Execution) -> Iterator[None]:
        place = self._place_of(execution)
        span = self._tracer.start_span(
            f"process {execution.claim.task}",
            place.context,
            kind=SpanKind.CONSUMER,
            attributes=attributes_of(execution),
            links=place.links,
        )
        token = attach(trace.set_span_in_context(span, place.context))
        try:
            if span.get_span_context().is_valid:
                execution.carry(carried(trace_of(execution.claim.options)))
            yield
        finally:
            detach(token)
            conclude(span, execution.results)
            span.end()

    def _place_of(self, execution: Execution) -> Parentage:
        """Return where the span of a run belongs. A chunk has a link to each of its jobs."""
        if execution.is_chunk:
            return Parentage(Context(), [link for claim in execution.claims[:MOST_LINKS] for link in links_to(claim)])
        claim = execution.claim
        return self._place_in_trace(claim.options, execution.started_at - claim.created_at)

    def _place_in_trace(self, options: str | None, waited: Millis) -> Parentage:
        carrier = trace_of(options)
        if not carrier:
            return Parentage(Context(), [])
        sender = propagate.extract(carrier, Context())
        is_late = self._link_after is not None and waited >= self._link_after
        if is_late or "occurrence" in options_of(options):  # all fires of a schedule have the trace that it was given
            return Parentage(without_span(sender), links_of(sender))
        return Parentage(sender, [])

    # -- runs that ended with their worker ------------------------------------------------------------

    def taken_over(self, job: Job, takeover: Takeover) -> None:
        """Make the span of a run whose worker died, or was too slow, and did not send it itself."""
        began, ended = takeover.claimed_at, to_millis(job.updated_at)
        stored = to_json(job.options) if job.options else None
        place = self._place_in_trace(stored, began - to_millis(job.created_at))
        span = self._tracer.start_span(
            f"process {job.task}",
            place.context,
            kind=SpanKind.CONSUMER,
            attributes=attributes_of_takeover(job, takeover),
            links=place.links,
            start_time=began * 1_000_000,
        )
        fail(span, takeover.failure, outcome_of_takeover(takeover))
        span.end(max(began, ended) * 1_000_000)
