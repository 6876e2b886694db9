"""What methods take, where a plain argument is not enough. A test compares the keys with the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Required

from typing_extensions import TypedDict

from mainspring.client.request import json_of, seconds

Length = float | timedelta
"""A length of time: seconds, or a timedelta."""

OneOrMore = str | Sequence[str]
Priority = Literal["urgent", "high", "normal", "low"]
Sort = Literal["created", "due", "finished", "duration", "attempts"]
LENGTHS = ("delay", "timeout", "dedupe_for")
LISTS = ("id", "queue", "task", "tag", "status")


class TargetOf(TypedDict):
    """The thing that a job is about."""

    type: str
    id: str


class RetryPolicy(TypedDict, total=False):
    """When a failed job runs again: after `delays`, or exponentially from `base` to `max_delay`. All are seconds."""

    delays: Sequence[float]
    base: float
    max_delay: float
    factor: float
    jitter_share: float


class Callback(TypedDict, total=False):
    """A request that tells of a job's end."""

    url: Required[str]
    headers: Mapping[str, str] | None
    secret: str
    timeout: float


class ScheduledJob(TypedDict, total=False):
    """The job that a schedule runs."""

    task: Required[str]
    payload: Any
    queue: str | None
    priority: Priority | None
    timeout: Length | None
    max_attempts: int | None
    retry: RetryPolicy | None
    target: TargetOf | None
    tags: Sequence[str] | None
    allow_unknown: bool


class JobOptions(TypedDict, total=False):
    """How a job is enqueued."""

    queue: str | None
    priority: Priority | None
    run_at: datetime | None
    delay: Length | None
    timeout: Length | None
    max_attempts: int | None
    retry: RetryPolicy | None
    dedupe_key: str | None
    dedupe_for: Literal["active", "forever"] | Length | None
    target: TargetOf | None
    tags: Sequence[str] | None
    steps: Sequence[str] | None
    headers: Mapping[str, str] | None
    start_by: datetime | None
    callback: str | Callback | None
    failure_callback: str | Callback | None
    allow_unknown: bool


class NewJob(JobOptions, total=False):
    """A job to enqueue."""

    task: Required[str]
    payload: Any


class JobConditions(TypedDict, total=False):
    """Conditions on jobs, except for their status. Every one that is given must match."""

    id: OneOrMore
    queue: OneOrMore
    task: OneOrMore
    tag: OneOrMore
    target_type: str | None
    target_id: str | None
    dedupe_key: str | None
    worker: str | None
    error_type: str | None
    fingerprint: str | None
    operation: str | None
    created_after: datetime | None
    created_before: datetime | None
    due_after: datetime | None
    due_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None
    changed_after: datetime | None
    changed_before: datetime | None
    payload: Mapping[str, Any]


class JobFilter(JobConditions, total=False):
    """Which jobs are meant. Every condition that is given must match."""

    status: OneOrMore


class JobEdit(TypedDict, total=False):
    """What to change of a waiting job. What is left out stays as it is."""

    payload: Any
    priority: Priority
    queue: str
    max_attempts: int


class Misfire(TypedDict, total=False):
    """What a schedule does with times that were missed."""

    mode: Literal["latest", "all", "skip"]
    grace: str | None
    max_fires: int


class RuleOptions(TypedDict, total=False):
    """When a schedule fires, besides its rule. What is left out gets its default."""

    tz: str | None
    gap: str
    fold: str
    misfire: Misfire
    overlap: Literal["allow", "skip", "cancel_old"]
    jitter: str
    start: str | None
    end: str | None


class OccasionOptions(TypedDict, total=False):
    """How an occasion is celebrated."""

    at: str
    feb29: Literal["feb28", "mar1", "skip"]
    late: Literal["send", "skip"]
    grace: str
    template: str | None
    channel: str | None


class Occasion(OccasionOptions, total=False):
    """An occasion that recurs each year."""

    kind: Required[str]
    date: Required[str]


class PersonFields(TypedDict, total=False):
    """What is known about a person, besides the id and the time zone."""

    first_name: str
    last_name: str
    email: str | None
    addresses: Mapping[str, str]
    locale: str | None
    quiet: str | None
    attributes: Mapping[str, Any]
    occasions: Sequence[Occasion]


class PersonChanges(PersonFields, total=False):
    """What to change of a person. What is left out stays as it is."""

    tz: str


class UserFields(TypedDict, total=False):
    """What to change of a user. What is left out stays as it is."""

    firstName: str
    lastName: str
    birthday: str | None
    timezone: str
    email: str | None


class Rate(TypedDict, total=False):
    """At most `count` jobs start in `per` seconds and, after a pause, up to `burst` at once."""

    count: Required[int]
    per: float
    burst: int | None


class SettingChanges(TypedDict, total=False):
    """Settings to change. Those that are left out stay as they are."""

    limit: int
    rate: Rate
    retry: RetryPolicy
    timeout: Length
    max_attempts: int
    paused: bool


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that were given, with lengths of time as seconds. A payload may be None."""
    plain = {name: seconds(value) if name in LENGTHS else value for name, value in fields.items()}
    return {name: value for name, value in plain.items() if value is not None or name == "payload"}


def job_body(job: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if job is None else given(job)


def filter_query(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return conditions on jobs as the parameters of a query."""
    plain = dict(where)
    if "payload" in plain:
        plain["payload"] = payload_conditions(plain["payload"])
    return plain


def filter_body(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return conditions on jobs as a body has them: with lists, even of one value."""
    plain = {name: value for name, value in filter_query(where).items() if value is not None}
    return {name: [value] if name in LISTS and isinstance(value, str) else value for name, value in plain.items()}


def payload_conditions(wanted: Mapping[str, Any]) -> list[str]:
    """Return `{"guest.id": 7}` as the API takes it: `guest.id=7`. Texts are quoted, so that "7" is not 7."""
    return [f"{path}={json_of(value).decode()}" for path, value in wanted.items()]
