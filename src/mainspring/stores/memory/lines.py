"""Where jobs wait to be claimed."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from mainspring.clock import Millis
from mainspring.stores.memory.row import Row

Level = tuple[int, bool, str]  # priority, whether they are suspects, task
Tasks = frozenset[str] | None  # None: any


def is_known(row: Row, tasks: Tasks) -> bool:
    return tasks is None or row.spec.task in tasks


class Lines:
    """Waiting jobs, by queue, priority, whether they are suspects, and task; the earliest due at the head.

    A claim that knows some tasks only looks at their heaps, so jobs of other tasks cost it nothing.
    A job that leaves is not searched for: its entry is void from then on, and goes when it comes to the head.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, dict[Level, list[tuple[Millis, str, int, Row]]]] = {}
        self._places = count(1)  # for all rows: a job that was deleted may come back while its old entry is here

    def join(self, row: Row) -> None:
        row.place = next(self._places)
        levels = self._heaps.setdefault(row.spec.queue, {})
        heap = levels.setdefault((row.spec.priority, row.crashes > 0, row.spec.task), [])
        heappush(heap, (row.run_at, row.id, row.place, row))

    def leave(self, row: Row) -> None:
        row.place = next(self._places)

    def queues(self) -> list[str]:
        return list(self._heaps)

    def due(self, queues: Iterable[str], tasks: Tasks, now: Millis, *, suspects: bool = False) -> list[Row]:
        """The earliest of each priority across these queues, of these tasks, that is due; most urgent first."""
        found: dict[int, Row] = {}
        for queue in queues:
            for level in list(self._heaps.get(queue, ())):
                if level[1] is suspects and (tasks is None or level[2] in tasks) and (row := self._head(queue, level)):
                    known = found.get(level[0])
                    if row.run_at <= now and (known is None or (row.run_at, row.id) < (known.run_at, known.id)):
                        found[level[0]] = row
        return [found[priority] for priority in sorted(found)]

    def heads(self, queue: str) -> list[Row]:
        """The first job of each priority and task, suspects apart from the others."""
        levels = list(self._heaps.get(queue, ()))
        return [row for level in levels if (row := self._head(queue, level))]

    def _head(self, queue: str, level: Level) -> Row | None:
        heap = self._heaps.get(queue, {}).get(level)
        while heap:
            _, _, place, row = heap[0]
            if row.place == place:
                return row
            heappop(heap)
        if heap is not None:
            self._forget(queue, level)
        return None

    def _forget(self, queue: str, level: Level) -> None:
        del self._heaps[queue][level]
        if not self._heaps[queue]:
            del self._heaps[queue]
