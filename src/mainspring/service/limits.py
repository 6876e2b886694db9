"""Routes about what is in use: limits and rates, and durable subscribers of the change feed."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import SubscriberNotFound
from mainspring.json_data import plain
from mainspring.service.requests import Router, answer, app_of, needs
from mainspring.service.tokens import Scope
from mainspring.service.views import View

router = Router(prefix="/v1")


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


class SubscriberView(View):
    """A durable subscriber of the change feed."""

    name: str
    cursor: str = Field(description="the last change that it has handled, or passed over")
    owner: str | None = Field(description="the worker that serves it; null: none does")
    failures: int = Field(description="in a row, for the next change")
    error: str


class SubscriberList(View):
    subscribers: list[SubscriberView]


@router.get("/limits", response_model=LimitList, summary="List limits in use", tags=["limits"], **needs(Scope.READ))
async def list_limits(
    request: Request,
    name: Annotated[str | None, Query(max_length=200, description="a task, `queue mail`, or its own name")] = None,
    waiting: Annotated[bool, Query(description="only those that keep jobs waiting")] = False,  # noqa: FBT002 - a parameter of the URL
) -> Response:
    """Return which jobs hold limits, how full rates are, and which of them keep jobs waiting."""
    found = [state for state in await app_of(request).limits.list(name) if state.waiting or not waiting]
    return answer({"limits": [{**plain(state), "used": state.used} for state in found]})


@router.get(
    "/subscribers", response_model=SubscriberList, summary="List durable subscribers", tags=["subscribers"],
    **needs(Scope.READ),
)  # fmt: skip
async def list_subscribers(request: Request) -> Response:
    """Return the durable subscribers of the change feed, and how far they are."""
    return answer({"subscribers": plain(await app_of(request).subscribers.states())})


@router.delete(
    "/subscribers/{name:path}", status_code=204, summary="Forget a subscriber", tags=["subscribers"],
    **needs(Scope.OPERATE),
)  # fmt: skip
async def remove_subscriber(request: Request, name: Annotated[str, Path(max_length=200)]) -> Response:
    """Forget a subscriber and its place. A worker whose application still has it makes it anew, from now on."""
    if not await app_of(request).subscribers.remove(name):
        raise SubscriberNotFound(name)
    return Response(status_code=204)
