"""What routes about batches answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.features.batches.rules import BatchState
from mainspring.service.views import Moment, View


class NewBatchView(View):
    id: str
    jobs: list[str] = Field(description="the ids of its jobs, in the order given")


class BatchTally(View):
    completed: int
    failed: int = Field(description="dead letters")
    cancelled: int
    gone: int = Field(description="finished and removed since")


class BatchSummaryView(View):
    id: str
    state: BatchState
    total: int
    created_at: Moment
    ended: BatchTally | None = Field(description="how its jobs ended, once it has finished")


class BatchPage(View):
    batches: list[BatchSummaryView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class BatchView(BatchTally):
    """How far a batch is."""

    id: str
    total: int
    done: int
    fraction: float
    finished: bool


class BatchCancelled(View):
    changed: int
    requested: int = Field(description="running jobs that were asked to stop")
