"""Where jobs wait to be claimed."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from mainspring.clock import Millis
from mainspring.stores.memory.row import Row


class Lines:
    """Waiting jobs, by queue, priority and whether they are suspects; the earliest due at the head.

    A job that leaves is not searched for: its entry is void from then on, and goes when it comes to the head.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, dict[tuple[int, bool], list[tuple[Millis, str, int, Row]]]] = {}
        self._places = count(1)  # for all rows: a job that was deleted may come back while its old entry is here

    def join(self, row: Row) -> None:
        row.place = next(self._places)
        levels = self._heaps.setdefault(row.spec.queue, {})
        heap = levels.setdefault((row.spec.priority, row.crashes > 0), [])
        heappush(heap, (row.run_at, row.id, row.place, row))

    def leave(self, row: Row) -> None:
        row.place = next(self._places)

    def queues(self) -> list[str]:
        return list(self._heaps)

    def head(self, queues: Iterable[str], priority: int, *, suspects: bool = False) -> Row | None:
        """The earliest due of one level across these queues."""
        heads = [row for queue in queues if (row := self._head(queue, (priority, suspects)))]
        return min(heads, key=lambda row: (row.run_at, row.id), default=None)

    def head_times(self, queue: str) -> list[Millis]:
        levels = list(self._heaps.get(queue, ()))
        return [row.run_at for level in levels if (row := self._head(queue, level))]

    def _head(self, queue: str, level: tuple[int, bool]) -> Row | None:
        heap = self._heaps.get(queue, {}).get(level)
        while heap:
            _, _, place, row = heap[0]
            if row.place == place:
                return row
            heappop(heap)
        if heap is not None:
            self._forget(queue, level)
        return None

    def _forget(self, queue: str, level: tuple[int, bool]) -> None:
        del self._heaps[queue][level]
        if not self._heaps[queue]:
            del self._heaps[queue]
