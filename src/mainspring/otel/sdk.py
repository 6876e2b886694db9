"""Sets up OpenTelemetry's SDK by its own variables, for programs that are started without code for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from opentelemetry import trace

from mainspring.errors import ConfigurationError, MissingExtra

GROUP = "opentelemetry_traces_exporter"
DEFAULT_EXPORTER = "otlp"
FLUSH_TIMEOUT = 2_000  # milliseconds
OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}  # the protocol, and the name of its exporter


def is_set_up() -> bool:
    """Return whether the program has set up an SDK: the API alone has nothing to flush."""
    return hasattr(trace.get_tracer_provider(), "force_flush")


def set_up() -> None:
    """Send spans as OTEL_TRACES_EXPORTER and the SDK's other variables say, unless the program has done it."""
    if is_set_up():
        return
    try:
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only programs without code need it
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "traces are turned on, but nothing would receive them; install opentelemetry-sdk and an exporter, such as "
            "opentelemetry-exporter-otlp, or leave out MAINSPRING_OTEL"
        )
        raise MissingExtra(msg) from error
    exporters = [exporter() for exporter in wanted_exporters()]
    provider = TracerProvider()
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def wanted_exporters() -> Iterator[Any]:
    """Return the classes of the exporters that the environment names."""
    named = os.environ.get("OTEL_TRACES_EXPORTER", DEFAULT_EXPORTER)
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in filter(None, map(str.strip, named.split(","))):
        if name != "none":
            yield exporter_named(name, found).load()


def exporter_named(name: str, found: dict[str, EntryPoint]) -> EntryPoint:
    known = [protocol_exporter(), *OTLP.values()] if name == "otlp" else [name]
    for each in known:
        if each in found:
            return found[each]
    installed = ", ".join(sorted(found)) or "none"
    hint = "; install opentelemetry-exporter-otlp" if name == "otlp" else ""
    msg = f"OTEL_TRACES_EXPORTER is {name!r}, but no such exporter is installed; those that are: {installed}{hint}"
    raise ConfigurationError(msg)


def protocol_exporter() -> str:
    shared = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    return OTLP.get(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", shared), "")


def flush() -> None:
    """Send the spans that this process has collected."""
    force_flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force_flush is not None:
        force_flush(FLUSH_TIMEOUT)
