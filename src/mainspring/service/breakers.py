"""Routes about circuit breakers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import BreakerNotFound
from mainspring.json_data import plain
from mainspring.service.answers.breakers import BreakerList, BreakerView
from mainspring.service.bodies import Reasoned, Seconds
from mainspring.service.redacted import texts
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, needs
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["breakers"])
BreakerName = Annotated[str, Path(max_length=200)]


class OpenBody(Reasoned):
    open_for: Seconds | None = Field(
        default=None, gt=0, description="seconds after which probes are let through; default: until it is closed"
    )


@router.get("/breakers", response_model=BreakerList, summary="List breakers", **needs(Scope.READ))
async def list_breakers(request: Request) -> Response:
    """Return all breakers that ever had errors or were set, and those that this service's tasks declare."""
    return answer({"breakers": texts(request, plain(await app_of(request).breakers.list()))})


@router.post("/breakers/{name:path}:open", response_model=BreakerView, summary="Open a breaker", **needs(Scope.OPERATE))
async def open_breaker(
    request: Request, name: BreakerName, body: Annotated[OpenBody, Body(default_factory=OpenBody)]
) -> Response:
    """Let no call through. Running jobs may finish; jobs that need the breaker wait without using an attempt."""
    breakers = app_of(request).breakers
    await breakers.open(name, reason=body.reason, open_for=body.open_for, actor=caller_of(request).actor)
    return answer(texts(request, plain(await breakers.get(name))))


@router.post(
    "/breakers/{name:path}:close", response_model=BreakerView, summary="Close a breaker", **needs(Scope.OPERATE)
)
async def close_breaker(request: Request, name: BreakerName, body: Reason) -> Response:
    """Let all calls through, and wake the jobs that wait for it."""
    breakers = app_of(request).breakers
    await refuse_unknown(request, name)
    await breakers.close(name, reason=body.reason, actor=caller_of(request).actor)
    return answer(texts(request, plain(await breakers.get(name))))


@router.get("/breakers/{name:path}", response_model=BreakerView, summary="Show a breaker", **needs(Scope.READ))
async def show_breaker(request: Request, name: BreakerName) -> Response:
    """Return a breaker."""
    await refuse_unknown(request, name)
    return answer(texts(request, plain(await app_of(request).breakers.get(name))))


async def refuse_unknown(request: Request, name: str) -> None:
    """Raise BreakerNotFound for a mistyped name: it would look like success, while the real breaker stays open."""
    if name not in {status.name for status in await app_of(request).breakers.list()}:
        msg = f"there is no circuit breaker {name!r}; GET /v1/breakers lists those that were ever used"
        raise BreakerNotFound(msg)
