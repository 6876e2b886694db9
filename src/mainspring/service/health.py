"""Routes for probes: is the process alive, can it serve, do jobs run on time?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mainspring.service.requests import answer, app_of
from mainspring.service.views import HealthView

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", response_model=HealthView, summary="Is the process alive?")
async def live() -> dict[str, str]:
    """Answer 200 as long as the process can answer at all."""
    return {"status": "ok"}


@router.get(
    "/ready",
    response_model=HealthView,
    summary="Can it serve requests?",
    responses={503: {"model": HealthView, "description": "the store does not answer"}},
)
async def ready(request: Request) -> Response:
    """Answer 200 if the store answers, otherwise 503."""
    health = await app_of(request).health()
    return answer({"status": "ok" if health.reachable else "unavailable"}, 200 if health.reachable else 503)
