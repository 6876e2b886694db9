"""What routes about pull workers answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mainspring.service.answers.orders import Order
from mainspring.service.views import HaltView, Moment, TargetView, View


class LeaseStepView(View):
    """A step that an earlier attempt recorded."""

    name: str
    state: Literal["done", "failed", "begun"] = Field(
        description="`failed`: its error was caught, and the function went on; `begun`: only `saved` is known of it"
    )
    kind: str = Field(description="`step`; sleep, wait, spawn and gather are of durable functions in Python")
    output: Any = Field(description="what was reported with it")
    saved: Any = Field(description="what a durable function in Python has saved of it")
    finished_at: Moment | None


class PlannedStepView(View):
    """A step that the job is to run."""

    name: str
    timeout: float | None = Field(description="seconds that it may take; the worker sees to it")


class LeaseView(View):
    """A job that the worker has now."""

    id: str
    token: int = Field(description="goes with every report about the job")
    task: str
    queue: str
    payload: Any
    attempt: int
    max_attempts: int
    deadline: Moment | None = Field(description="when its timeout ends the run")
    target: TargetView | None
    tags: list[str]
    suspect: bool = Field(description="a worker died with it before: run it alone")
    trace: dict[str, str] = Field(description="its trace context, such as `traceparent`: headers for your tracer")
    headers: dict[str, str] = Field(description="headers that its enqueue gave it, such as a tenant")
    plan: list[PlannedStepView] = Field(
        description="the steps that its enqueue asked for, in order; without such a plan, those that its task declares"
    )
    steps: list[LeaseStepView] = Field(description="steps that earlier attempts recorded: skip what is done")


class PulseView(View):
    """What the worker should know now."""

    halted: bool = Field(description="the whole system is halted: nothing new is given out")
    halts: list[HaltView]
    cancelled: dict[str, str] = Field(
        description="jobs that it holds and that were cancelled, with the reason: stop them"
    )
    lost: list[str] = Field(description="jobs that it named and does not hold any more: stop them")
    order: Order | None = Field(
        description="an operator's wish: take no more jobs, or also end as soon as those in hand are done"
    )
    known: bool = Field(description="false: it was silent for longer than the lease, and has lost all that it held")
    lease: float = Field(description="seconds without a sign of life after which its jobs go to others")


class ClaimView(View):
    jobs: list[LeaseView]
    pulse: PulseView


class ReplyView(View):
    id: str
    token: int
    reply: Literal["ok", "cancelled", "stale", "invalid"]
    status: str | None = Field(description="of the job after this")
    message: str


class ReportView(View):
    replies: list[ReplyView] = Field(description="one for each item, in the same order")
    pulse: PulseView


class LeftView(View):
    left: bool
