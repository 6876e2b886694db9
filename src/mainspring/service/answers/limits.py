"""What routes about limits and subscribers answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mainspring.service.views import View


class LimitView(View):
    """A limit, a rate or a fair task that is in use, or one key of it."""

    kind: Literal["limit", "rate", "fair"]
    name: str
    key: str = Field(description="empty if it has no keys")
    waits_for: str = Field(description="the `waits_for` of jobs that it blocks")
    waiting: bool = Field(description="jobs may wait for it")
    size: int = Field(description="the slots of a limit; the burst of a rate")
    used: int
    jobs: list[str] = Field(description="the jobs that hold its slots")
    tokens: float | None = Field(description="of a rate")
    per_second: float | None = Field(description="of a rate")
    ready: int = Field(description="of a fair key: how many more jobs are ready or running")


class LimitList(View):
    limits: list[LimitView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class SubscriberView(View):
    """A durable subscriber of the change feed."""

    name: str
    cursor: str = Field(description="the last change that it has handled, or passed over")
    owner: str | None = Field(description="the worker that serves it; null: none does")
    failures: int = Field(description="in a row, for the next change")
    error: str


class SubscriberList(View):
    subscribers: list[SubscriberView]
