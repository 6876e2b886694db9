"""What routes about dead letters answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.views import AnyJobPage, JobPage, JobPartPage, Moment, View


class AnyDeadPage(AnyJobPage):
    oldest: Moment | None = Field(description="when the oldest dead letter that matches failed for the last time")
    oldest_age: float | None = Field(description="how many seconds ago that was")
    oldest_known: bool = Field(
        description="false: the search for the oldest one ended early, because few of very many dead letters match"
    )


class DeadPage(AnyDeadPage, JobPage):
    pass


class DeadPartPage(AnyDeadPage, JobPartPage):
    """A page of dead letters with the fields that `fields` names."""


class ChangedView(View):
    """What a change of many jobs did, or would do in a dry run."""

    changed: int
    requested: int = Field(description="running jobs that were asked to stop")
    conflicts: dict[str, str] = Field(
        description="jobs that were not retried, with the live job that holds their dedupe key"
    )
    operation: str = Field(description="its id in the audit log; GET /v1/jobs?operation=… lists the changed jobs")
