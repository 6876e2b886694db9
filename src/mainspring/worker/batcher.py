"""Claimed jobs of batched tasks, until enough are there or the first has waited long enough.

What is ready is put into the slots' buffer as a `Gathering`, not as a list of jobs: while all slots are busy more may
come along.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

from mainspring.batched import Batch
from mainspring.clock import Millis
from mainspring.worker.run import Run

Kind = tuple[str, Millis]  # task and timeout: the timeout holds for the whole batch


class PendingBatch:
    """The jobs of one kind. Each time it is posted, one batch may be taken."""

    def __init__(self, batch: Batch, post: Callable[[PendingBatch], None]) -> None:
        self.size, self.wait = batch.size, batch.seconds
        self.waiting: deque[Run] = deque()
        self._post = post
        self._posted = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lacks(self) -> int:
        """How many more would fill the batch that is begun, or a new one."""
        return self.size - len(self.waiting) % self.size

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._posted)

    def settle(self) -> None:
        """Post what is full; look again when the first of the others has waited long enough."""
        while (self._posted + 1) * self.size <= len(self.waiting):
            self._post_one()
        self._call_off()
        rest = self._posted * self.size
        if rest < len(self.waiting):
            loop = asyncio.get_running_loop()
            due = self.waiting[rest].claimed_at + self.wait
            if due <= loop.time():
                self._post_one()
            else:
                self._timer = loop.call_at(due, self.flush)

    def flush(self) -> None:
        """What is there goes, whether or not it fills a batch."""
        self._call_off()
        while self._posted * self.size < len(self.waiting):
            self._post_one()

    def take(self) -> list[Run]:
        """The next batch; fewer or none, if jobs were taken away since it was posted."""
        self._posted -= 1
        taken = [self.waiting.popleft() for _ in range(min(self.size, len(self.waiting)))]
        self.settle()
        return taken

    def _post_one(self) -> None:
        self._posted += 1
        self._post(self)

    def _call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Batcher:
    """All of a worker."""

    def __init__(self, post: Callable[[PendingBatch], None]) -> None:
        self._post = post
        self._by_kind: dict[Kind, PendingBatch] = {}
        self._seen: set[PendingBatch] = set()
        self._share = 0.0
        self.together = 0  # jobs in running batches that need no slot of their own: all but one of each

    def add(self, run: Run) -> None:
        self._of(run).waiting.append(run)

    def discard(self, run: Run) -> bool:
        """False: it does not wait here."""
        gathering = self._by_kind.get(kind_of(run))
        if gathering is None or run not in gathering.waiting:
            return False
        gathering.waiting.remove(run)
        return True

    def settle(self) -> None:
        for gathering in self._by_kind.values():
            if gathering.waiting:
                gathering.settle()

    def flush(self) -> None:
        for gathering in self._by_kind.values():
            gathering.flush()

    def claimed(self, runs: Sequence[Run], of: int) -> None:
        """Learn from a claim what the next one may bring: these were batched, of so many."""
        if runs or self._seen:
            self._share = len(runs) / max(1, of)
            self._seen = {self._of(run) for run in runs}
            self._by_kind = {kind: one for kind, one in self._by_kind.items() if one.busy or one in self._seen}

    @property
    def lacking(self) -> int:
        """What would fill the batches of the last claim, if the next one is like it.

        If that had other jobs too, so many of those would be too many: then less is asked for.
        """
        return math.ceil(self._share * sum(gathering.lacks for gathering in self._seen))

    @property
    def missing(self) -> int:
        """What would fill the batches that are begun, if all that is due were theirs."""
        return sum(gathering.lacks for gathering in self._by_kind.values() if len(gathering.waiting) % gathering.size)

    def __len__(self) -> int:
        return sum(len(gathering.waiting) for gathering in self._by_kind.values())

    @property
    def waiting(self) -> list[Run]:
        return [run for gathering in self._by_kind.values() for run in gathering.waiting]

    def stale(self, before: float) -> list[Run]:
        """Those that could have gone before that moment, had there been a free slot."""
        return [
            run
            for gathering in self._by_kind.values()
            for run in gathering.waiting
            if run.claimed_at + gathering.wait < before
        ]

    def _of(self, run: Run) -> PendingBatch:
        kind = kind_of(run)
        if (gathering := self._by_kind.get(kind)) is None:
            batch = run.task.batch
            assert batch is not None  # noqa: S101 - whoever has none is not gathered
            gathering = self._by_kind[kind] = PendingBatch(batch, self._post)
        return gathering


def kind_of(run: Run) -> Kind:
    return run.claim.task, run.claim.timeout
