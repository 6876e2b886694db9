"""The progress of a batch. The code here does no I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How many jobs of a batch ended in which way."""

    id: str  # of the batch
    total: int
    completed: int = 0
    failed: int = 0  # dead letters
    cancelled: int = 0
    gone: int = 0  # finished and since removed, by retention or an operator: how they ended is not known

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

    def to_report(self) -> dict[str, Any]:
        """Return the numbers together with what follows from them, for people and other programs."""
        return {**self.to_data(), "done": self.done, "fraction": self.fraction, "finished": self.finished}


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of some members of a batch ended in which way."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    gone: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Found:
    """Some members of a batch, counted by status."""

    live: int
    tally: Tally
    missing: int

    def with_missing(self, *, failed: bool) -> Tally:
        """Count the missing jobs: as removed after they finished or, if `failed`, as never inserted, so failed."""
        return self.tally + (Tally(failed=self.missing) if failed else Tally(gone=self.missing))


class BatchState(StrEnum):
    """Where a batch is in its life."""

    COMING_IN = "coming in"  # its jobs are being inserted
    RUNNING = "running"  # some jobs have not finished
    FINISHED = "finished"
    ABANDONED = "abandoned"  # the job that waited for its members was cancelled or is gone


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch in a list."""

    id: str
    state: BatchState
    total: int
    created_at: datetime
    ended: Tally | None = None  # how its jobs ended, once it has finished


@dataclass(frozen=True, slots=True)
class BatchPage:
    """One page of a list of batches."""

    batches: list[BatchSummary]
    cursor: str | None  # pass it to get the next page; None if this is the last
