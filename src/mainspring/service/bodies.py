"""What requests carry: the models that check them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
)

from mainspring.errors import LONGEST_CODE
from mainspring.job import Status
from mainspring.json_text import conditions, key_and_value
from mainspring.options import EnqueueOptions
from mainspring.retry import Retry
from mainspring.service.request_fields import Callback, Url
from mainspring.service.tokens import Scope
from mainspring.service.views import JOB_FIELDS
from mainspring.stores.protocol import Filter

MOST_IN_BULK = 1_000  # jobs of one bulk enqueue
MOST_FIELDS = 100  # names of fields of jobs that a request gives
MOST_LISTED = 500  # jobs of one page
LONGEST = 366 * 1000 * 86_400  # seconds
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Text = Annotated[str, StringConstraints(max_length=2_000)]


def printable(code: str) -> str:
    if not code.isprintable():
        msg = "give printable characters only"
        raise ValueError(msg)
    return code


ErrorCode = Annotated[
    str,
    StringConstraints(min_length=1, max_length=LONGEST_CODE),
    AfterValidator(printable),
    Field(description="what programs tell errors apart by"),
]
Seconds = Annotated[float, Field(strict=True, ge=0, le=LONGEST, allow_inf_nan=False)]


def in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        msg = "the time is not between the years 1 and 9999 in UTC"
        raise ValueError(msg) from None


def refuse_numbers(value: Any) -> Any:
    """Refuse what Pydantic would take for seconds since 1970: `20270101` is meant as a date more often than not."""
    if isinstance(value, str) and not is_number(value):
        return value
    msg = "give a time as ISO 8601 with an offset, such as 2027-03-01T09:00:00+01:00"
    raise ValueError(msg)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Instant = Annotated[AwareDatetime, BeforeValidator(refuse_numbers), AfterValidator(in_utc)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Target(Body):
    type: Name
    id: Annotated[str, StringConstraints(min_length=1, max_length=1_000)]


class RetryPolicy(Body):
    """When a failed job runs again: after `delays`, or exponentially from `base` to `max_delay`.

    It does not change how many attempts there are: `max_attempts` does.
    """

    delays: list[Seconds] | None = Field(
        default=None, min_length=1, max_length=50, description="seconds, used in order; the last one is repeated"
    )
    base: Seconds = 60.0
    max_delay: Seconds = 3600.0
    factor: float = Field(default=2.0, strict=True, ge=1, le=100, allow_inf_nan=False)
    jitter_share: float | None = Field(
        default=None, strict=True, ge=0, le=100, allow_inf_nan=False,
        description="each delay is lengthened by up to this share of itself; default: 0.2, or 0 with `delays`",
    )  # fmt: skip

    def to_retry(self) -> Retry:
        retry = Retry(
            max_attempts=None, base=self.base, max_delay=self.max_delay, factor=self.factor,
            explicit=tuple(self.delays or ()), jitter_share=0.2 if self.delays is None else 0.0,
        )  # fmt: skip
        return retry if self.jitter_share is None else replace(retry, jitter_share=self.jitter_share)


NOT_OPTIONS = frozenset({"task", "payload", "allow_unknown"})  # of a new job


class NewJobBody(Body):
    """A job to enqueue."""

    task: Name = Field(description="the name of the task")
    payload: Any = Field(default=None, description="its arguments, as the task's schema describes them")
    queue: Name | None = None
    priority: Literal["urgent", "high", "normal", "low"] | None = None
    run_at: Instant | None = Field(default=None, description="when it is due, with an offset from UTC")
    delay: Seconds | None = Field(default=None, description="seconds from now until it is due; instead of `run_at`")
    timeout: Seconds | None = Field(default=None, gt=0, description="seconds that a run may take")
    max_attempts: StrictInt | None = Field(default=None, ge=1, le=1_000)
    retry: RetryPolicy | None = None
    dedupe_key: Annotated[str, StringConstraints(min_length=1, max_length=1_000)] | None = None
    dedupe_for: Literal["active", "forever"] | Seconds | None = Field(
        default=None, description="how long the key is held: while the job is live, for ever, or for so many seconds"
    )
    target: Target | None = Field(default=None, description="the thing that the job is about")
    tags: list[Name] | None = Field(default=None, max_length=50)
    steps: list[Name] | None = Field(
        default=None, min_length=1, max_length=200, description="the job's plan: its steps"
    )
    headers: dict[Name, Text] | None = Field(default=None, max_length=50)
    start_by: Instant | None = Field(default=None, description="the job is dropped if it has not started by then")
    callback: Url | Callback | None = Field(
        default=None, description="a URL that gets a signed POST when the job has ended, in whatever way"
    )
    failure_callback: Url | Callback | None = Field(
        default=None, description="gets it instead of `callback` if the job has not completed"
    )
    allow_unknown: StrictBool = Field(
        default=False, description="enqueue without a check, even if no worker has published the task"
    )

    @property
    def is_plain(self) -> bool:
        """Whether it has no options."""
        return self.model_fields_set <= NOT_OPTIONS

    def options(self) -> EnqueueOptions:
        """Return the options as `app.enqueue` takes them."""
        if self.is_plain:
            return {}
        target = None if self.target is None else (self.target.type, self.target.id)
        retry = None if self.retry is None else self.retry.to_retry()
        return {
            "queue": self.queue,
            "priority": self.priority,
            "run_at": self.run_at,
            "delay": self.delay,
            "timeout": self.timeout,
            "max_attempts": self.max_attempts,
            "retry": retry,
            "dedupe_key": self.dedupe_key,
            "dedupe_for": self.dedupe_for,
            "target": target,
            "tags": self.tags,
            "steps": self.steps,
            "headers": self.headers,
            "expires": self.start_by,
        }


class BulkBody(Body):
    """Jobs to enqueue together. Jobs that are wrong are reported; the others are enqueued."""

    jobs: list[NewJobBody] = Field(min_length=1, max_length=MOST_IN_BULK)


class Reasoned(Body):
    """Why a change is made; for the audit log."""

    reason: Text = ""


class RetryBody(Reasoned):
    from_step: Name | None = Field(default=None, description="a durable function runs again from this step on")


class ReplayBody(Reasoned):
    from_step: Name | None = Field(
        default=None, description="a durable function begins here, and keeps the records before; default: at its start"
    )
    payload: Any = Field(default=None, description="other arguments than those of the finished job")


class RescheduleBody(Reasoned):
    run_at: Instant | None = None
    delay: Seconds | None = Field(default=None, description="seconds from now; without either, it is due now")


class EditBody(Reasoned):
    payload: Any = None
    priority: Literal["urgent", "high", "normal", "low"] | None = None
    queue: Name | None = None
    max_attempts: StrictInt | None = Field(default=None, ge=1, le=1_000)


class HaltBody(Reasoned):
    until: Instant | None = Field(default=None, description="when it ends by itself")
    wait: Seconds = Field(default=3.0, le=30, description="seconds to wait until workers have confirmed")


class SystemHaltBody(HaltBody):
    reject_new: StrictBool = Field(default=False, description="reject new jobs, instead of accepting them for later")


class TokenBody(Body):
    name: Name
    scopes: list[Scope] = Field(min_length=1)
    expires_at: Instant | None = None
    project: Name | None = Field(default=None, description="it sees and changes what belongs to this project only")
    queues: list[Name] = Field(
        default=[], max_length=100, description="it sees and changes these queues only; `mail/*` are all that begin so"
    )


class JobConditions(Body):
    """Conditions on jobs, except for their status. Every one that is given must match."""

    id: list[Name] = Field(default=[], max_length=MOST_LISTED)
    queue: list[Name] = []
    task: list[Name] = []
    tag: list[Name] = Field(default=[], description="all of them")
    target_type: Name | None = None
    target_id: str | None = None
    dedupe_key: str | None = None
    worker: str | None = None
    error_type: str | None = None
    fingerprint: str | None = Field(default=None, description="of a failure group")
    operation: str | None = Field(default=None, description="jobs that this bulk action changed; not on DynamoDB")
    created_after: Instant | None = None
    created_before: Instant | None = None
    due_after: Instant | None = None
    due_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    changed_after: Instant | None = None
    changed_before: Instant | None = None
    payload: list[str] = Field(
        default=[], description="`path=value`, each path once; the value as JSON or as text: `guest.id=7`"
    )

    def filter(self) -> Filter:
        return Filter(
            ids=tuple(self.id),
            queues=tuple(self.queue),
            tasks=tuple(self.task),
            tags=tuple(self.tag),
            target_type=self.target_type,
            target_id=self.target_id,
            dedupe_key=self.dedupe_key,
            worker=self.worker,
            error_type=self.error_type,
            fingerprint=self.fingerprint,
            operation=self.operation,
            payload=conditions(map(key_and_value, self.payload)),
            created_after=self.created_after,
            created_before=self.created_before,
            due_after=self.due_after,
            due_before=self.due_before,
            finished_after=self.finished_after,
            finished_before=self.finished_before,
            changed_after=self.changed_after,
            changed_before=self.changed_before,
        )


class JobFilter(JobConditions):
    """Which jobs are meant. Every condition that is given must match."""

    status: list[Status] = []

    def filter(self) -> Filter:
        return replace(super().filter(), statuses=tuple(self.status))


def field_names(texts: list[str]) -> list[str]:
    """Return the names of fields of jobs, given one by one or separated by commas."""
    names = [name for text in texts for name in text.split(",")]
    if unknown := [name for name in names if name not in JOB_FIELDS]:
        msg = f"{unknown[0]!r} is not a field of a job; choose from {', '.join(JOB_FIELDS)}"
        raise ValueError(msg)
    return list(dict.fromkeys(names))


Fields = Annotated[
    list[Annotated[str, Field(json_schema_extra={"enum": list(JOB_FIELDS)})]],
    AfterValidator(field_names),
    Field(
        max_length=MOST_FIELDS,
        description="only these fields of each job, separated by commas: `id,status,queue`; default: all",
    ),
]


class PageQuery(Body):
    """Which page of a list is shown."""

    limit: int = Field(default=100, ge=1, le=500)
    cursor: Text | None = None


class Paged(Body):
    """How a list of jobs is sorted, and which page of it is shown."""

    sort: Literal["created", "due", "finished", "duration", "attempts"] = "created"
    descending: bool = True
    limit: int = Field(default=50, ge=1, le=MOST_LISTED)
    cursor: str | None = None
    count: bool = Field(default=False, description="count all jobs that match, up to 10,000")
    fields: Fields = []


class JobQuery(JobFilter, Paged):
    """Which jobs a list shows. Every parameter that is given must match."""
