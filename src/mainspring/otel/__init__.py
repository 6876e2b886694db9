"""OpenTelemetry: a span for each enqueue and for each run, in one trace across all processes.

    from mainspring.otel import instrument

    instrument(app)

| span             | kind     | covers                                                                         |
|------------------|----------|--------------------------------------------------------------------------------|
| `send <queue>`   | PRODUCER | an enqueue; its context is stored with the job                                 |
| `process <task>` | CONSUMER | a run; current inside the handler. A child of the `send` span, or linked to it |

This needs only `opentelemetry-api` (`pip install 'mainspring[otel]'`). Where spans go, the program's SDK decides. The
names of attributes follow OpenTelemetry's conventions for messaging; docs/tracing.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mainspring.app import Mainspring
from mainspring.clock import Length
from mainspring.errors import ConfigurationError, MissingExtra
from mainspring.job import Claim
from mainspring.trace import trace_of

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context, attach, detach
except ImportError as error:
    msg = f"traces need more packages ({error}); install them with: pip install 'mainspring[otel]'"
    raise MissingExtra(msg) from error

from mainspring.otel import sdk
from mainspring.otel.observer import LINK_AFTER, OpenTelemetry
from mainspring.otel.sdk import flush

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["flush", "in_child", "instrument", "instrument_by_setting"]


def instrument(
    app: Mainspring, *, tracer_provider: TracerProvider | None = None, link_after: Length | None = LINK_AFTER
) -> None:
    """Make spans of this application's enqueues and runs. Call it before a worker starts.

    The span of a run is a child of its enqueue's span if it starts less than `link_after` later. Otherwise it begins
    a new trace with a link to the enqueue: most tracing systems cannot show a trace that lasts for days. With 0 it is
    always a link, with None always a child.
    """
    if is_instrumented(app):
        msg = "this application makes spans already; call instrument(app) once"
        raise ConfigurationError(msg)
    install(app, OpenTelemetry(tracer_provider, link_after))


def instrument_by_setting(app: Mainspring) -> None:
    """Turn traces on for `mainspring serve` and `mainspring worker`, unless the application has done it itself."""
    if not is_instrumented(app):
        sdk.set_up()
        install(app, OpenTelemetry(sdk=True))


def is_instrumented(app: Mainspring) -> bool:
    return app.runtime.observers.find(OpenTelemetry) is not None


def install(app: Mainspring, telemetry: OpenTelemetry) -> None:
    app.runtime.observers.all.append(telemetry)
    app.around_enqueue(telemetry.send)


@contextmanager
def in_child(claim: Claim, data: Mapping[str, Any]) -> Iterator[None]:
    """Make the parent's span current in a child process (`isolation="process"`).

    Spans that the handler begins are children of it. What the handler adds to the span itself is lost: the parent
    ends it, so that it is there even if the child process dies.
    """
    if data["sdk"]:
        sdk.set_up()
    token = attach(propagate.extract(trace_of(claim.options), Context()))
    try:
        yield
    finally:
        detach(token)
