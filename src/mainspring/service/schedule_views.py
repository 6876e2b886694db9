"""What the routes of schedules answer."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from mainspring.features.schedules.firing import Became
from mainspring.json_schedules import ScheduleState
from mainspring.service.views import Moment, TargetView, View

LocalMoment = Annotated[str, Field(examples=["2027-03-01T09:00:00+01:00"], description="with the offset of its zone")]


class OccurrenceView(View):
    nominal: str = Field(description="the local time that the rule names")
    local: LocalMoment
    utc: Moment
    key: str


class SchedulePauseView(View):
    since: Moment
    until: Moment | None


class RetryView(View):
    """When a failed job runs again, as requests give it."""

    delays: list[float] | None
    base: float
    max_delay: float
    factor: float
    jitter_share: float | None


class ScheduledJobView(View):
    """The job that a schedule runs, as PUT takes it. What is null is decided by its task, its queue or settings."""

    task: str
    payload: Any
    queue: str
    priority: Literal["urgent", "high", "normal", "low"]
    timeout: float | None
    max_attempts: int | None
    retry: RetryView | None
    target: TargetView | None
    tags: list[str]


class ScheduleView(View):
    """A schedule."""

    id: str
    words: str = Field(description="when it fires, in words")
    schedule: dict[str, Any] = Field(description="its rule, time zone and policies, as PUT takes them")
    job: ScheduledJobView
    owner: str | None = Field(description="the package whose code declares it; null: made by hand")
    disabled: str | None
    paused: SchedulePauseView | None
    since: Moment
    next: OccurrenceView | None
    decided: OccurrenceView | None = Field(description="the newest time that was fired or dropped")
    fires: int
    last_job: str | None
    last_status: str | None = Field(description="of that job; null: there is none, or retention has removed it")
    tzdata: str
    state: ScheduleState
    why: str | None = Field(description="why it does not fire")
    revision: str = Field(description="changes with each change by people or code; the ETag has it too")


class ScheduleList(View):
    schedules: list[ScheduleView]
    unreadable: dict[str, str] = Field(description="schedules that only a newer version can read, and why")
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class TimeView(View):
    """A coming time. `local`, `utc` and `reader` are the same instant."""

    local: LocalMoment
    utc: Moment
    reader: str
    nominal: str
    notes: list[str] = Field(description="clocks that change that day, a time that was moved or comes twice")


class PreviewView(View):
    words: str
    tz: str
    coming: list[TimeView]


class EntryView(View):
    """What became of one time, or of several in a row with the same outcome."""

    became: Became
    at: Moment
    nominal: str
    utc: Moment
    key: str
    reason: str
    why: str
    job_id: str | None
    lateness: float
    late: bool
    coalesced: int
    count: int
    last: Moment | None
    exact: bool
    halted: bool


class LedgerView(View):
    entries: list[EntryView]
    before: Moment | None = Field(description="pass it as `before` to get older entries; null: these were the last")


class ChangeView(View):
    kind: Literal["added", "removed", "moved"]
    before: OccurrenceView | None
    after: OccurrenceView | None


class DiffView(View):
    words: str = Field(description="when it would fire, in words")
    days: int
    added: int
    removed: int
    moved: int
    changes: list[ChangeView] = Field(description="the first of them")


class RemarkView(View):
    day: date
    remark: str


class CourseView(View):
    """What one schedule does in the simulated time."""

    id: str
    words: str
    tz: str
    state: ScheduleState
    why: str | None
    fires: int
    first: Moment | None
    last: Moment | None
    skipped: dict[str, int] = Field(description="times that do not fire, by the reason")
    remarks: list[RemarkView] = Field(description="days on which clocks change")
    days: dict[str, int] = Field(description="fires per local day")


class SimulationView(View):
    start: datetime
    end: datetime
    schedules: list[CourseView]
    days: dict[str, int] = Field(description="fires of all schedules per local day")


class TriggeredView(View):
    job_id: str
    created: bool = Field(description="false: a live job with the same dedupe key was there, and this is its id")
