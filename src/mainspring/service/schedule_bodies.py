"""What the routes of schedules take."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from mainspring.features.schedules.rules import Schedule
from mainspring.features.schedules.rules.policies import MAX_CAUGHT_UP
from mainspring.service.bodies import Body, Instant, Name, NewJobBody, Reasoned, RetryPolicy, Seconds, Target

Length = Annotated[str, StringConstraints(min_length=1, max_length=50)]


class MisfireBody(Body):
    """What to do with times that were missed."""

    mode: Literal["latest", "all", "skip"] = "latest"
    grace: Length | None = Field(default=None, description="how late a time may still be fired: 15m, 2h, 1d")
    max_fires: int = Field(strict=True, default=100, ge=1, le=MAX_CAUGHT_UP, description="of the mode `all`")


class RuleBody(Body):
    """When a schedule fires."""

    rule: Annotated[str, StringConstraints(min_length=1, max_length=5_000)] | dict[str, Any] = Field(
        description="text such as `30 2 * * *`, `every 90s` or `daily 09:00`, or the object that GET shows",
        examples=["30 2 * * *"],
    )
    tz: Annotated[str, StringConstraints(max_length=100)] | None = Field(
        default=None, description="an IANA time zone; default: UTC"
    )
    gap: Annotated[str, StringConstraints(max_length=50)] = Field(
        default="shift", description="what to do with a local time that the clocks skip"
    )
    fold: Annotated[str, StringConstraints(max_length=50)] = Field(
        default="first", description="which to use of a local time that comes twice"
    )
    misfire: MisfireBody = Field(default_factory=MisfireBody)
    overlap: Literal["allow", "skip", "cancel_old"] = Field(
        default="allow", description="what to do while the last run has not ended"
    )
    jitter: Length = Field(default="0s", description="each run starts up to this much later: 30s, 5m")
    start: Annotated[str, StringConstraints(max_length=50)] | None = Field(
        default=None, description="fire from this time on; a local time without an offset"
    )
    end: Annotated[str, StringConstraints(max_length=50)] | None = Field(
        default=None, description="fire only before this time"
    )

    def schedule(self) -> Schedule:
        """Return the schedule. Raise InvalidSchedule if a rule, time zone or policy is invalid."""
        data = self.model_dump(include=set(RuleBody.model_fields), exclude_none=True)
        return Schedule.from_data(data)


class ScheduledJobBody(Body):
    """The job that a schedule runs."""

    task: Name
    payload: Any = None
    queue: Name | None = None
    priority: Literal["urgent", "high", "normal", "low"] | None = None
    timeout: Seconds | None = Field(default=None, gt=0, description="seconds that a run may take")
    max_attempts: StrictInt | None = Field(default=None, ge=1, le=1_000)
    retry: RetryPolicy | None = None
    target: Target | None = None
    tags: list[Name] | None = Field(default=None, max_length=50)
    allow_unknown: StrictBool = False

    def new_job(self) -> NewJobBody:
        return NewJobBody.model_validate(self.model_dump(exclude_unset=True))


class ScheduleBody(RuleBody, Reasoned):
    """A whole schedule. What is left out gets its default."""

    job: ScheduledJobBody


class PauseBody(Reasoned):
    until: Instant | None = Field(default=None, description="when it fires again; default: when it is resumed")


class DiffBody(RuleBody):
    """A proposed change of when a schedule fires."""

    days: int = Field(strict=True, default=90, ge=1, le=3_660, description="how many days are compared")
    limit: int = Field(strict=True, default=100, ge=1, le=1_000, description="how many changes are listed")


class SimulateBody(Body):
    ids: list[Name] = Field(default=[], max_length=500, description="only these schedules; default: all")
    days: int = Field(strict=True, default=30, ge=1, le=3_660)
    since: Instant | None = Field(default=None, description="where the simulation begins; default: now")


class PreviewBody(RuleBody):
    """A rule that is tried out. Nothing is saved."""

    limit: int = Field(strict=True, default=10, ge=1, le=500)
    since: Instant | None = Field(default=None, description="show times after this; default: now")
    reader: Annotated[str, StringConstraints(max_length=100)] = Field(
        default="UTC", description="also show the times in this time zone"
    )
