"""Decides how many jobs of one key may be ready or running: enough for all workers, shared by the busy keys."""

from __future__ import annotations

from collections import defaultdict

from mainspring.features.limits.options import Fair
from mainspring.queue_patterns import is_among
from mainspring.stores.protocol import Store, WorkerInfo

LOOK_EVERY = 10.0  # seconds between two looks at the workers
LOOK_SOON = 0.5  # seconds between them while there are no workers
BUSY_FOR = 5.0  # seconds after its last request in which a key counts as busy
MAX_KEYS = 1000  # keys that are counted: with more, each has a size of one anyway


class FairShare:
    """Shares twice the slots of all workers: half run, half are next. So another key's job waits for two at most."""

    def __init__(self) -> None:
        self._workers: list[WorkerInfo] = []
        self._slots: dict[str, int] = {}  # queue -> slots of the workers that serve it
        self._looked_at = float("-inf")
        self._busy: defaultdict[str, dict[str, float]] = defaultdict(dict)  # name -> key -> time of its last request

    async def look(self, store: Store) -> None:
        if store.clock.monotonic() - self._looked_at > (LOOK_EVERY if self._workers else LOOK_SOON):
            self._looked_at = store.clock.monotonic()
            self._workers = (await store.stats()).workers
            self._slots.clear()

    def size(self, name: str, fair: Fair, key: str, now: float) -> int:
        if fair.size is not None:
            return fair.size
        return max(1, 2 * self._slots_for(fair.queue) // self._busy_keys(name, key, now))

    def _slots_for(self, queue: str) -> int:
        if queue not in self._slots:
            self._slots[queue] = sum(
                worker.concurrency for worker in self._workers if worker.alive and serves(worker, queue)
            )
        return self._slots[queue]

    def _busy_keys(self, name: str, key: str, now: float) -> int:
        busy = self._busy[name]
        busy.pop(key, None)
        busy[key] = now  # at the end: the dict is ordered by time
        while next(iter(busy.values())) < now - BUSY_FOR or len(busy) > MAX_KEYS:
            del busy[next(iter(busy))]
        return len(busy)


def serves(worker: WorkerInfo, queue: str) -> bool:
    return is_among(queue, worker.queues)
