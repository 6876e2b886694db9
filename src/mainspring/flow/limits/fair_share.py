"""How many jobs of one key may be out of the line: so many that all workers are busy, shared by the busy keys."""

from __future__ import annotations

from collections import defaultdict

from mainspring.flow.limits.limit import Fair
from mainspring.stores.protocol import EVERY_QUEUE, Store, WorkerInfo

LOOK_EVERY = 10.0  # seconds between looks at who works,
LOOK_SOON = 0.5  # while nobody does
BUSY_FOR = 5.0  # seconds after which a key that nobody asked about is not busy any more
MOST_KEYS = 1000  # that are told apart: beyond that each has a width of one anyway


class FairShare:
    """Twice the slots of all workers: one half runs, the other is next. So another's job waits for two at most."""

    def __init__(self) -> None:
        self._workers: list[WorkerInfo] = []
        self._slots: dict[str, int] = {}  # that serve a queue
        self._looked_at = float("-inf")
        self._busy: defaultdict[str, dict[str, float]] = defaultdict(dict)  # name -> key -> when last

    async def look(self, store: Store) -> None:
        if store.clock.monotonic() - self._looked_at > (LOOK_EVERY if self._workers else LOOK_SOON):
            self._looked_at = store.clock.monotonic()
            self._workers = (await store.stats()).workers
            self._slots.clear()

    def width(self, name: str, fair: Fair, key: str, now: float) -> int:
        if fair.width is not None:
            return fair.width
        return max(1, 2 * self._slots_for(fair.queue) // self._busy_keys(name, key, now))

    def _slots_for(self, queue: str) -> int:
        if queue not in self._slots:
            self._slots[queue] = sum(one.concurrency for one in self._workers if one.alive and serves(one, queue))
        return self._slots[queue]

    def _busy_keys(self, name: str, key: str, now: float) -> int:
        busy = self._busy[name]
        busy.pop(key, None)
        busy[key] = now  # the last one is the one asked about last
        while next(iter(busy.values())) < now - BUSY_FOR or len(busy) > MOST_KEYS:
            del busy[next(iter(busy))]
        return len(busy)


def serves(worker: WorkerInfo, queue: str) -> bool:
    return EVERY_QUEUE in worker.queues or queue in worker.queues
