"""The trace context of a job: headers by which tracing systems connect the work of several programs.

It is a small mapping, such as `{"traceparent": "00-4bf9…-01"}`, with `tracestate`, `baggage` or the headers of another
system beside it. It is stored among a job's options, so jobs without one pay nothing for it. Unlike `headers`, it is
passed on: a job that a handler enqueues belongs to the trace of the handler's own job, unless it has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from mainspring.job import Claim, FreshJobs, NewJob
from mainspring.log import running
from mainspring.stored_options import options_of, with_options

OPTION = "trace"
MAX_TRACE_CHARS = 16_384  # names and values together; the W3C asks for 8,192 of baggage and 512 of tracestate
NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")  # of an HTTP header
VALUE = re.compile(r"[\t -~]*")  # of an HTTP header
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-.*)?")
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate", b"baggage", b"sentry-trace"})  # that a request may have
EXAMPLE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def problem_of_trace(trace: Any) -> str | None:
    """Return what is wrong with a trace context; None if nothing is."""
    if not isinstance(trace, Mapping):
        return f"trace must be a mapping of header names to strings, such as {{'traceparent': …}}, not {trace!r:.200}"
    for name, value in trace.items():
        if problem := problem_of_header(name, value):
            return problem
    if (size := sum(len(name) + len(value) for name, value in trace.items())) > MAX_TRACE_CHARS:
        return f"trace has {size:,} characters; give at most {MAX_TRACE_CHARS:,}, for example less baggage"
    return None


def problem_of_header(name: Any, value: Any) -> str | None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return f"trace has the name {name!r:.100}; give the name of an HTTP header in lower case, such as traceparent"
    if not isinstance(value, str) or not VALUE.fullmatch(value):
        return f"trace: {name} is {value!r:.100}; give a string of printable ASCII characters"
    if name == "traceparent" and not is_traceparent(value):
        return f"trace: traceparent is {value!r:.100}; give it in the form of the W3C, such as {EXAMPLE}"
    return None


def trace_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the trace context among the headers of an HTTP request. What is not valid is ignored, as the W3C asks."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in TRACE_HEADERS:
            text = value.decode("latin-1").strip()
            if problem_of_header(key := name.decode(), text) is None and key not in found:
                found[key] = text
    if "traceparent" not in found:
        found.pop("tracestate", None)  # it says nothing alone
    return found if not found or problem_of_trace(found) is None else {}


def is_traceparent(value: str) -> bool:
    """Return whether this is a `traceparent` of the W3C. Only later versions than 00 may have more fields."""
    found = TRACEPARENT.fullmatch(value)
    return found is not None and not (found["more"] and value.startswith("00"))


def trace_of(options: str | None) -> Mapping[str, str]:
    """Return the trace context among a job's stored options; an empty one if it has none."""
    return options_of(options).get("trace", {}) if options is not None and '"trace"' in options else {}


def in_trace_of_run(jobs: list[NewJob]) -> list[NewJob]:
    """Return the jobs in the trace of the job whose handler runs here, except those that have their own."""
    claim = running.get()
    if claim is None or claim.options is None:  # as for most jobs
        return jobs
    return cast("list[NewJob]", in_trace_of(claim, jobs))


def in_trace_of(claim: Claim, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs in the trace of this job, except those that have their own."""
    trace = trace_of(claim.options)
    if not trace:
        return jobs
    traced = [with_trace(job, trace) for job in jobs]
    return FreshJobs(traced) if isinstance(jobs, FreshJobs) else traced


def join_baggage(first: str, second: str) -> str:
    """Return the members of two `baggage` headers; of two with the same name, the second one."""
    members = [part.strip() for part in f"{first},{second}".split(",") if part.strip()]
    return ",".join({member.partition("=")[0].strip(): member for member in members}.values())


def with_trace(job: NewJob, trace: Mapping[str, str]) -> NewJob:
    return job if OPTION in options_of(job.options) else with_options(job, trace=trace)
