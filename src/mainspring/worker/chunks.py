"""Chunks: several jobs of a chunk task that one call of its handler runs.

`Chunker` collects claimed jobs until a chunk is full or its first job has waited long enough. A chunk that is ready is
put into `Runs.ready` as a `PendingChunk`, not as a list of jobs, so more jobs can join it while all slots are busy.
`ChunkRun` is the call in one slot. Each job has its own outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from mainspring.chunk import ChunkTask, Item
from mainspring.clock import Millis
from mainspring.context import Context
from mainspring.errors import CannotStoreResult
from mainspring.options import Chunk
from mainspring.redaction import Hide
from mainspring.worker.failures import failure_of
from mainspring.worker.run import Run, Stop

Kind = tuple[str, Millis]  # task and timeout: the timeout applies to the whole chunk
Verdict = tuple[Any, BaseException | None]  # the job's result, or the exception with which it failed
COMMIT_PAUSE = 0.05  # seconds until the timeout tries again to stop a chunk with a job that is just being committed


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


class ChunkRun:
    """The jobs of one call, their argument, and the rules by which each gets its verdict."""

    def __init__(self, runs: list[Run], slot: asyncio.Task[None], context_of: Callable[[Run], Context]) -> None:
        self.task: ChunkTask[Any, Any, Any] = runs[0].task  # type: ignore[assignment] # only chunk tasks come here
        self.timeout = runs[0].timeout  # the same for all of them
        self._slot = slot
        self._rejected: list[tuple[Run, Verdict]] = []
        self.runs: list[Run] = []
        self.argument: list[Any] = []
        self._load(runs, context_of)
        self._stops = 0
        for run in runs:
            run.kill = self._stop

    def _load(self, runs: list[Run], context_of: Callable[[Run], Context]) -> None:
        load, wrap = self.task.payload.load_one, self.task.payload.takes_items
        for run in runs:
            try:
                payload = load(run.claim.payload)
            except Exception as error:  # noqa: BLE001 - InvalidPayload, or whatever one of the user's types raises
                self._rejected.append((run, (None, error)))
                continue
            self.runs.append(run)
            self.argument.append(Item(payload, partial(context_of, run)) if wrap else payload)

    def _stop(self) -> None:
        """Note that a job was told to stop. The others go on; if all of them are told, cancel an async handler."""
        self._stops += 1  # an upper bound that is cheap to check: one job may be told twice
        if self._stops >= len(self.runs) and self.task.is_async and all(run.stop is not None for run in self.runs):
            self._slot.cancel()

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        if self.timeout is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def overrun() -> None:
            nonlocal timer
            for run in self.runs:
                run.end(Stop.TIMEOUT)
            if any(run.stop is None for run in self.runs):
                timer = loop.call_later(COMMIT_PAUSE, overrun)

        timer = loop.call_later(self.timeout, overrun)
        try:
            yield
        finally:
            timer.cancel()

    def returned(self, value: Any) -> list[tuple[Run, Verdict]]:
        """Return each job's verdict. What the handler said through an `Item` counts more than what it returned."""
        if value is None:
            value = [None] * len(self.runs)
        elif not isinstance(value, (list, tuple)) or len(value) != len(self.runs):
            return self.raised(CannotStoreResult(misfit(self.task.name, value, len(self.runs))))
        return self._endings(
            [(None, result) if isinstance(result, BaseException) else (result, None) for result in value]
        )

    def raised(self, error: BaseException) -> list[tuple[Run, Verdict]]:
        with contextlib.suppress(Exception):  # an exception may refuse attributes; then each job formats it anew
            error.mainspring_failure = None  # type: ignore[attr-defined] # a reused exception may carry an old one
            error.mainspring_failure = failure_of(error, self._hide())  # type: ignore[attr-defined]
        return self._endings([(None, error)] * len(self.runs))

    def _hide(self) -> Hide:
        """Return what hides the secrets of all jobs: an error of the handler may name any of them."""
        run = self.runs[0]
        return run.redaction.hide_stored([each.secretive() for each in self.runs], run.claim.task)

    def _endings(self, by_handler: list[Verdict]) -> list[tuple[Run, Verdict]]:
        endings = by_handler
        if self.task.payload.takes_items:
            endings = [
                (item.result, item.error) if item.settled else ending
                for item, ending in zip(self.argument, by_handler, strict=True)
            ]
        return [*self._rejected, *zip(self.runs, endings, strict=True)]


def misfit(task: str, value: Any, jobs: int) -> str:
    what = f"{len(value)} results" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
    return f"chunk task {task!r} returned {what} for {jobs} jobs: return nothing, or a list with one for each"
