"""Trace contexts: from the headers of a job to those of OpenTelemetry, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from mainspring.job import Claim
from mainspring.trace import join_baggage, trace_of


@dataclass(frozen=True, slots=True)
class Parentage:
    """Where a span belongs: the context in which it begins, and the spans to which it has a link."""

    context: Context
    links: list[Link]


def given_context(given: Mapping[str, str]) -> Context | None:
    """Return the context of the trace that an enqueue was given; None for the current one.

    If the current span belongs to the same trace, it is nearer: say the span of the HTTP request that brought the
    header.
    """
    if not given:
        return None
    found = propagate.extract(given)
    theirs = trace.get_current_span(found).get_span_context()
    ours = trace.get_current_span().get_span_context()
    return None if not theirs.is_valid or theirs.trace_id == ours.trace_id else found


def carried(given: Mapping[str, str]) -> dict[str, str]:
    """Return the current context as headers; with the baggage that the job has from others, such as Sentry."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if "baggage" in carrier and "baggage" in given:
        carrier["baggage"] = join_baggage(given["baggage"], carrier["baggage"])
    return carrier


def without_span(context: Context) -> Context:
    """Return the context with its baggage, and without its span: a span that begins in it begins a new trace."""
    return trace.set_span_in_context(trace.INVALID_SPAN, context)


def links_of(context: Context) -> list[Link]:
    found = trace.get_current_span(context).get_span_context()
    return [Link(found)] if found.is_valid else []


def links_to(claim: Claim) -> list[Link]:
    carrier = trace_of(claim.options)
    attributes = {"messaging.message.id": claim.id}
    return [
        Link(link.context, attributes) for link in (links_of(propagate.extract(carrier, Context())) if carrier else [])
    ]
