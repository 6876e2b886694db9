"""The metrics of an application, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mainspring.app import Mainspring
from mainspring.health import within
from mainspring.metrics.cluster import read_cluster
from mainspring.metrics.process import ProcessMetrics
from mainspring.metrics.shared_read import SharedRead

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLUSTER_FRESH_FOR = 5.0  # seconds that a read of the store serves all who ask
PROBE_FRESH_FOR = 1.0
PROBE_TIMEOUT = 2.0  # seconds for the question whether the store answers
CALLER = "metrics"  # the name under which `Contact` knows this question
EXTENSION = __name__


class Metrics:
    """Counts what happens in this process from now on: `metrics = Metrics.of(app)`."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self.process = ProcessMetrics(app)
        self._probe = SharedRead(self._look, PROBE_FRESH_FOR)
        self._cluster = SharedRead(self._read_cluster, CLUSTER_FRESH_FOR)

    @classmethod
    def of(cls, app: Mainspring) -> Metrics:
        """Return the metrics of an application. It has one set, however often this is called."""
        found: Metrics | None = app.runtime.extensions.get(EXTENSION)
        if found is None:
            found = app.runtime.extensions[EXTENSION] = cls(app)
        return found

    @contextmanager
    def delivery(self, channel: str) -> Iterator[None]:
        """Count a message that the block gives to another system, and how long that takes.

        `with metrics.delivery("email"): …` works in coroutines and in threads. If the block raises, it has failed.
        """
        began, sent = time.perf_counter(), False
        try:
            yield
            sent = True
        finally:
            self.process.delivered(channel, time.perf_counter() - began, sent=sent)

    async def of_process(self) -> bytes:
        """Return the metrics of this process as text. This works while the store does not answer."""
        await self._probe.get()
        return await asyncio.to_thread(generate_latest, self.process.registry)

    async def of_cluster(self) -> bytes:
        """Return the metrics of all processes as text. Raise StoreUnavailable if the store does not answer."""
        return await self._cluster.get()

    async def _look(self) -> None:
        """Ask the store whether it answers."""
        contact = self._app.runtime.contact
        try:
            await within(PROBE_TIMEOUT, self._app.store.halts())
        except Exception as error:  # noqa: BLE001 - any error means that the store is down
            contact.failed(CALLER, error)
        else:
            contact.answered(CALLER)

    async def _read_cluster(self) -> bytes:
        return await asyncio.to_thread(text_of, await read_cluster(self._app))


def counted_delivery(app: Mainspring, channel: str) -> AbstractContextManager[None]:
    """Count a message as `Metrics.delivery` does, if this process has metrics."""
    found: Metrics | None = app.runtime.extensions.get(EXTENSION)
    return nullcontext() if found is None else found.delivery(channel)


class Found(Collector):
    """Shows what was read before."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def text_of(families: Iterable[Family]) -> bytes:
    registry = CollectorRegistry()
    registry.register(Found(families))
    return generate_latest(registry)
