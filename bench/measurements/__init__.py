"""The measurements. Each is a coroutine that plays one on a peer and returns figures by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.measurements.claim import claim
from bench.measurements.drain import drain, drain_backlog, drain_in_chunks
from bench.measurements.enqueue import enqueue, enqueue_concurrently, enqueue_heard, enqueue_in_bulk
from bench.measurements.feed import drain_followed, idle_reader
from bench.measurements.http import http_bulk, http_enqueue, http_share, live_memory
from bench.measurements.idle import idle
from bench.measurements.latency import latency, lateness
from bench.measurements.limits import drain_beside_blocked, drain_fairly, drain_rated, fairness
from bench.measurements.occasions import burst, import_people
from bench.measurements.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEASUREMENTS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    measurement.__name__: measurement
    for measurement in (
        enqueue,
        enqueue_concurrently,
        enqueue_in_bulk,
        enqueue_heard,
        drain,
        drain_backlog,
        drain_in_chunks,
        drain_followed,
        idle_reader,
        latency,
        lateness,
        idle,
        claim,
        drain_rated,
        drain_beside_blocked,
        drain_fairly,
        fairness,
        import_people,
        burst,
        http_enqueue,
        http_share,
        http_bulk,
        live_memory,
        prepare,
    )
}
