"""Collects claimed jobs of chunk tasks until a chunk is full or its first job has waited long enough.

A chunk that is ready is put into `Runs.ready` as a `PendingChunk`, not as a list of jobs. So more jobs can join it
while all slots are busy.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

from mainspring.chunk import Chunk
from mainspring.clock import Millis
from mainspring.worker.run import Run

Kind = tuple[str, Millis]  # task and timeout: the timeout applies to the whole chunk


class PendingChunk:
    """The waiting jobs of one kind. Each time it is posted, one chunk may be taken."""

    def __init__(self, chunk: Chunk, put: Callable[[PendingChunk], None]) -> None:
        self.size, self.wait = chunk.size, chunk.seconds
        self.waiting: deque[Run] = deque()
        self._put = put
        self._posted = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lacks(self) -> int:
        """Return how many more jobs would fill the chunk that has begun, or a new one."""
        return self.size - len(self.waiting) % self.size

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._posted)

    def settle(self) -> None:
        """Post the full chunks, and set a timer for when the first of the other jobs has waited long enough."""
        while (self._posted + 1) * self.size <= len(self.waiting):
            self._post_one()
        self._cancel_timer()
        rest = self._posted * self.size
        if rest < len(self.waiting):
            loop = asyncio.get_running_loop()
            due = self.waiting[rest].claimed_at + self.wait
            if due <= loop.time():
                self._post_one()
            else:
                self._timer = loop.call_at(due, self.flush)

    def flush(self) -> None:
        """Post all waiting jobs, even if they do not fill a chunk."""
        self._cancel_timer()
        while self._posted * self.size < len(self.waiting):
            self._post_one()

    def take(self) -> list[Run]:
        """Remove and return the next chunk. It is smaller or empty if jobs were taken away since it was posted."""
        self._posted -= 1
        taken = [self.waiting.popleft() for _ in range(min(self.size, len(self.waiting)))]
        self.settle()
        return taken

    def _post_one(self) -> None:
        self._posted += 1
        self._put(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Chunker:
    """All pending chunks of a worker. `put` passes one on to the slots."""

    def __init__(self, put: Callable[[PendingChunk], None]) -> None:
        self._put = put
        self._by_kind: dict[Kind, PendingChunk] = {}
        self._seen: set[PendingChunk] = set()
        self._share = 0.0
        self.is_used = False  # becomes True with the first job of a chunk task

    def add(self, run: Run) -> None:
        run.waits_in = self._of(run).waiting
        run.waits_in.append(run)

    def settle(self) -> None:
        for pending in self._by_kind.values():
            if pending.waiting:
                pending.settle()

    def flush(self) -> None:
        for pending in self._by_kind.values():
            pending.flush()

    def claimed(self, runs: Sequence[Run], of: int) -> None:
        """Learn from a claim what the next may bring: `runs` are its jobs of chunk tasks, `of` the number of all."""
        if runs or self._seen:
            self._share = len(runs) / max(1, of)
            self._seen = {self._of(run) for run in runs}
            self._by_kind = {kind: jobs for kind, jobs in self._by_kind.items() if jobs.busy or jobs in self._seen}

    @property
    def lacking(self) -> int:
        """Return how many jobs to claim to fill the chunks of the last claim, if the next claim is like it.

        If only a share of the last claim belonged to chunk tasks, only that share of the number is returned.
        Otherwise the worker would claim too many other jobs.
        """
        return math.ceil(self._share * sum(pending.lacks for pending in self._seen))

    @property
    def missing(self) -> int:
        """Return how many jobs would fill the chunks that have begun, if all due jobs belonged to them."""
        return sum(pending.lacks for pending in self._by_kind.values() if len(pending.waiting) % pending.size)

    def __len__(self) -> int:
        return sum(len(pending.waiting) for pending in self._by_kind.values())

    @property
    def waiting(self) -> list[Run]:
        return [run for pending in self._by_kind.values() for run in pending.waiting]

    def stale(self, before: float) -> list[Run]:
        """Return the runs that could have started before this moment if a slot had been free."""
        return [
            run
            for pending in self._by_kind.values()
            for run in pending.waiting
            if run.claimed_at + pending.wait < before
        ]

    def _of(self, run: Run) -> PendingChunk:
        kind = run.claim.task, run.claim.timeout
        if (pending := self._by_kind.get(kind)) is None:
            chunk = run.task.chunk
            assert chunk is not None  # noqa: S101 - only runs of chunk tasks are added
            pending = self._by_kind[kind] = PendingChunk(chunk, self._put)
            self.is_used = True
        return pending
