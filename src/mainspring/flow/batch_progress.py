"""How far a batch is. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Of a batch's jobs, how many ended in which way."""

    id: str  # of the batch
    total: int
    completed: int = 0
    failed: int = 0  # dead letters
    cancelled: int = 0
    gone: int = 0  # finished, and removed by retention or by hand since: nobody knows how

    @property
    def done(self) -> int:
        return self.completed + self.failed + self.cancelled + self.gone

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.total else 1.0

    @property
    def finished(self) -> bool:
        return self.done >= self.total

    @property
    def succeeded(self) -> bool:
        return self.finished and not self.failed and not self.cancelled

    @property
    def tally(self) -> Tally:
        return Tally(self.completed, self.failed, self.cancelled, self.gone)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tally:
    """Of some members of a batch."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    gone: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Found:
    """Members of a batch by how they stand."""

    live: int
    tally: Tally
    missing: int

    def with_missing(self, *, failed: bool) -> Tally:
        """Those that are not there have finished and were removed; or they never came in, which is a failure."""
        return self.tally + (Tally(failed=self.missing) if failed else Tally(gone=self.missing))


class BatchState(StrEnum):
    COMING_IN = "coming in"  # its jobs are being put in
    RUNNING = "running"  # some have not finished
    FINISHED = "finished"
    ABANDONED = "abandoned"  # nobody waits for its jobs any more: the one that did was cancelled or is gone


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch in a list."""

    id: str
    state: BatchState
    total: int
    created_at: datetime
    ended: Tally | None = None  # how its jobs did, once it has finished


@dataclass(frozen=True, slots=True)
class BatchPage:
    batches: list[BatchSummary]
    cursor: str | None  # pass it to get the next page; None: this was the last
