"""Runs a chunk: one call of the handler for several jobs in one slot. Each job has its own outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from mainspring.chunk import Item
from mainspring.chunk_task import ChunkTask
from mainspring.context import Context
from mainspring.errors import CannotStoreResult
from mainspring.worker.failures import failure_of
from mainspring.worker.run import Run, Stop

Verdict = tuple[Any, BaseException | None]  # the job's result, or the exception with which it failed
COMMIT_PAUSE = 0.05  # seconds until the timeout tries again to stop a chunk with a job that is just being committed


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
            error.mainspring_failure = failure_of(error)  # type: ignore[attr-defined]
        return self._endings([(None, error)] * len(self.runs))

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
