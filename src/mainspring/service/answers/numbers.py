"""What routes about overviews answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import HaltView, Moment, QueueView, View, WorkerView


class HistogramView(View):
    count: int
    mean: float | None
    p50: float | None = Field(description="an estimate, in seconds")
    p95: float | None
    p99: float | None
    buckets: list[int] = Field(description="how many, by `bounds`; the last bucket has no end")


class TallyView(View):
    """What happened to jobs in a time."""

    start: Moment
    end: Moment
    enqueued: int
    started: int
    completed: int
    failed: int = Field(description="attempts that failed: `retried` and `dead` together")
    retried: int
    dead: int
    cancelled: int
    stalled: int
    failure_rate: float = Field(description="the share of attempts that failed, from 0 to 1")
    throughput: float = Field(description="completed jobs per second")
    wait: HistogramView = Field(description="seconds from when a job was due until a worker claimed it")
    duration: HistogramView = Field(description="seconds of attempts that succeeded or failed")


class SeriesView(View):
    step: str
    zone: str
    bounds: list[float] = Field(description="where the buckets end, in seconds, exclusive")
    total: TallyView
    series: list[TallyView] = Field(description="one for each step, oldest first")


class NumbersView(SeriesView):
    groups: dict[str, SeriesView] = Field(description="with `by`: the same for each queue or task")


class DueTaskView(View):
    task: str
    queue: str
    due: int = Field(description="counted up to 10,000")
    oldest_due: Moment


class StatsView(View):
    """How the system is now."""

    queues: list[QueueView]
    workers: list[WorkerView]
    halts: list[HaltView]
    due_tasks: list[DueTaskView]
    unknown_tasks: list[DueTaskView] = Field(description="due jobs whose task no live worker of their queue knows")
    stalled: int = Field(description="jobs that run longer than their timeout and grace")
    stuck: int = Field(description="slots of live workers whose job was told to stop and still runs")
    estimated: bool = Field(description="the numbers of jobs are estimates")
    measures: dict[str, float] = Field(description="what the store counts in this process")


class CompletionsView(View):
    values: list[str]
