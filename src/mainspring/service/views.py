"""What the API answers: the models that the OpenAPI document describes.

Times are ISO 8601 in UTC, with milliseconds. Lengths of time are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mainspring.job import Job, Status
from mainspring.json_data import plain, plain_job
from mainspring.redaction import DEFAULT, REDACTED_OF_JOBS, Redaction
from mainspring.service.problems import KINDS

Moment = Annotated[datetime, Field(examples=["2027-03-01T08:00:00.000Z"])]


class View(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class HealthView(View):
    status: Literal["ok", "unavailable"]


class FieldError(View):
    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    pointer: str | None = Field(
        default=None,
        description="of an error in the body: where it is, as a JSON pointer (RFC 6901); empty: the body as a whole",
    )
    parameter: str | None = Field(
        default=None, description="of an error elsewhere: the name of the parameter in the query, path or headers"
    )
    code: str
    detail: str


class ProblemView(View):
    """An error, as RFC 9457 describes it."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    type: str = Field(description="identifies the code; the path of its page")
    title: str
    status: int
    code: str = Field(description="one of a fixed list", json_schema_extra={"enum": list(KINDS)})
    detail: str = Field(description="what was wrong with this request")
    request_id: str = Field(description="finds the request in the service's log")
    errors: list[FieldError] = []
    nearest: list[str] = Field(default=[], description="of `unknown_task`: tasks with similar names")
    see: str | None = Field(default=None, description="of `already_done`: GET this path to see what the request did")
    effect: dict[str, Any] = Field(
        default={},
        description="of `already_done`: what is known of the effect, such as its `operation` in the audit log",
    )


class TargetView(View):
    type: str
    id: str


class ProgressView(View):
    fraction: float
    note: str


class FailureView(View):
    type: str
    message: str
    traceback: str
    fingerprint: str
    place: str
    code: str | None = Field(description="what programs tell errors apart by, if the error has one")


class JobView(View):
    """A job."""

    id: str
    task: str
    queue: str
    status: Status
    priority: str
    payload: Any
    run_at: Moment = Field(description="when it is due")
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    updated_at: Moment
    expires_at: Moment | None = Field(description="when retention removes it")
    start_by: Moment | None = Field(description="it is dropped if it has not started by then")
    timeout_at: Moment | None = Field(description="when the running job reaches its timeout")
    attempts: int
    max_attempts: int
    crashes: int
    worker: str | None
    timeout: float | None
    dedupe_key: str | None
    target: TargetView | None
    tags: list[str]
    headers: dict[str, str]
    planned_steps: list[str]
    replay_of: str | None = Field(description="the finished job that this one replays")
    progress: ProgressView | None
    result: Any
    failure: FailureView | None
    fingerprint: str | None = Field(description="of its failure group")
    reason: str
    cancel_requested: bool
    waits_for: str | None
    version: str = Field(description="of the code of the worker that ran it last")
    revision: str = Field(description="changes whenever the job changes; the ETag has it too")

    @property
    def etag(self) -> str:
        """The ETag of this job: give it as `if_match` to change only what you have read."""
        return f'"{self.revision}"'


def without_defaults(schema: dict[str, Any]) -> None:
    for part in schema["properties"].values():
        part.pop("default", None)  # a field that is left out does not mean null


class JobPart(JobView):
    """Some fields of a job: those that `fields` names."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False, json_schema_extra=without_defaults)


for field in JobPart.model_fields.values():
    field.default = None
JobPart.model_rebuild(force=True)

JOB_FIELDS = tuple(JobView.model_fields)
NOT_SHOWN = frozenset({"options", "token", "after"})


def job_data(job: Job, redaction: Redaction | None = DEFAULT, fields: Sequence[str] = ()) -> dict[str, Any]:
    """Return a job as JSON data, in the shape of `JobView`, without its secrets. None: with them.

    With `fields`, it has just these. If none of them can have a secret in it, none is searched for: to look through a
    large payload takes longer than everything else.
    """
    if fields and REDACTED_OF_JOBS.isdisjoint(fields):
        job, redaction = replace(job, payload=None, result=None), None
    data = {name: value for name, value in plain_job(job).items() if name not in NOT_SHOWN}
    extra = {"headers": job.headers, "planned_steps": job.planned_steps}
    data |= {name: plain(value) for name, value in extra.items()}
    shown = data if redaction is None else redaction.job(data)
    return {name: shown[name] for name in fields} if fields else shown


class CountView(View):
    value: int
    exact: bool = Field(description="false: there are at least so many; the count ended early")


class AnyJobPage(View):
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
    partial: bool = Field(description="the page ended early, because few of many jobs match; go on by the cursor")
    count: CountView | None = Field(description="of all jobs that match, if `count` was asked for")


class JobPage(AnyJobPage):
    jobs: list[JobView]


class JobPartPage(AnyJobPage):
    """A page of jobs with the fields that `fields` names."""

    jobs: list[JobPart]


class EnqueuedView(View):
    id: str
    created: bool = Field(description="false: a job with the same dedupe key was there, and this is its id")


class BulkResult(View):
    """The fate of one job of a bulk enqueue: `id` and `created`, or `error`."""

    id: str | None = None
    created: bool = False
    error: FieldError | None = None


class BulkEnqueued(View):
    results: list[BulkResult] = Field(description="one for each job, in their order")
    created: int
    failed: int


class AttemptView(View):
    number: int
    worker: str
    started_at: Moment
    finished_at: Moment
    move: str = Field(description="how it ended")
    failure: FailureView | None
    version: str


class StepView(View):
    name: str
    state: str
    kind: str
    output: Any
    started_at: Moment | None
    finished_at: Moment | None
    saved: Any
    timeout: float | None


class TimelineView(View):
    at: Moment
    what: str
    detail: str
    actor: str


class ReasonView(View):
    cause: str
    text: str
    since: Moment | None
    until: Moment | None
    detail: dict[str, Any]


class WhyView(View):
    """Why a job does not run, the decisive reason first."""

    at: Moment
    reasons: list[ReasonView]


class JobDetail(View):
    """A job with everything that is known about it."""

    job: JobView
    attempts: list[AttemptView]
    steps: list[StepView]
    timeline: list[TimelineView]
    why: WhyView


class CancelledView(View):
    cancelled: bool = Field(description="false: it runs, and was asked to stop")
    job: JobView


class LevelView(View):
    source: str
    value: Any


class EffectiveView(View):
    """An option of jobs: which value counts, and where it comes from."""

    option: str = Field(description="limit, rate, timeout (seconds), max_attempts, retry or, of a task, paused")
    value: Any = Field(description="the one that counts, unless an enqueue gives its own; null: none")
    source: str = Field(
        description="`set for the task` or `set for the queue`: at run time; `task`, `queue` or `application`: in the"
        " code; `default`: built in"
    )
    levels: list[LevelView] = Field(description="all that give a value, the one that counts first")


class TaskView(View):
    """A task as its workers have published it."""

    name: str
    queue: str
    summary: str
    payload_schema: Any = Field(description="the JSON Schema of its payload; null: see `problem`")
    problem: str
    steps: list[str]
    worker: str
    published_at: Moment | None


class TaskDetail(TaskView):
    """A task, and which settings count for its jobs in its queue."""

    settings: list[EffectiveView]


class TaskList(View):
    tasks: list[TaskView]


class HaltView(View):
    actor: str
    reason: str
    since: Moment
    until: Moment | None
    queue: str | None = Field(description="null: the whole system")
    accept: bool = Field(description="false: new jobs are rejected")


class HaltList(View):
    halts: list[HaltView]


class HaltedView(View):
    halt: HaltView
    confirmed: bool = Field(description="every live worker has confirmed that it starts no more jobs")
    unconfirmed: list[str] = Field(description="workers that have not confirmed yet")


class ResumedView(View):
    resumed: bool = Field(description="false: there was no halt")


class QueueView(View):
    queue: str
    pending: int
    retrying: int
    suspended: int
    running: int
    completed: int
    dead_letter: int
    cancelled: int
    due: int = Field(description="jobs that could start now; counted up to 10,000")
    oldest_due: Moment | None
    oldest_dead: Moment | None
    paused: HaltView | None


class QueueDetail(QueueView):
    """A queue, and which settings count for its jobs if their task leaves them unset."""

    settings: list[EffectiveView]


class QueueList(View):
    queues: list[QueueView]


class WorkerView(View):
    id: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    tasks: list[str]
    version: str
    started_at: Moment | None
    seen_at: Moment | None
    alive: bool
    polling: bool
    heartbeat: float
    stuck: int
    remote: bool


class WorkerList(View):
    workers: list[WorkerView]


class TokenView(View):
    id: str
    name: str
    scopes: list[str]
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    project: str | None = Field(description="it sees and changes what belongs to this project only")
    queues: list[str] = Field(description="it sees and changes these queues only; empty: all")
    last_used: Moment | None = Field(
        description="to the minute; sessions and public tokens that it opened count; null: not in the last 400 days"
    )


class TokenList(View):
    tokens: list[TokenView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class NewTokenView(View):
    token: TokenView
    text: str = Field(description="the token itself; it is shown only now", repr=False)
