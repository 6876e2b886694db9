"""`GET /metrics` and `GET /metrics/cluster`, for Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.metrics import CONTENT_TYPE, Metrics
from mainspring.metrics.catalog import FEED_LAG, SSE_CLIENTS
from mainspring.service.live import Live
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, needs
from mainspring.service.tokens import Scope

EXAMPLE = """# HELP mainspring_jobs_finished_total Jobs that ended.
# TYPE mainspring_jobs_finished_total counter
mainspring_jobs_finished_total{queue="mail",task="welcome",outcome="completed"} 118.0
"""
OF_CLUSTER = """# HELP mainspring_queue_jobs Jobs by queue and status.
# TYPE mainspring_queue_jobs gauge
mainspring_queue_jobs{queue="mail",status="pending"} 12.0
"""
router = Router(prefix="/metrics", tags=["metrics"], default_response_class=PlainTextResponse)


def begin(api: FastAPI, app: Mainspring, live: Live) -> Metrics:
    """Count what the application and this service do from now on."""
    metrics: Metrics = Metrics.of(app)
    metrics.process.watch(SSE_CLIENTS, lambda: live.number)
    metrics.process.watch(FEED_LAG, lambda: live.hub.lag)
    api.state.metrics = metrics
    return metrics


def metrics_of(request: Request) -> Metrics:
    metrics: Metrics | None = getattr(request.app.state, "metrics", None)
    if metrics is None:
        raise Problem("not_found", "this service keeps no metrics; set metrics = true")
    return metrics


def text_answer(example: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": example}}}}


@router.get(
    "",
    summary="Read the metrics of this process",
    responses=text_answer(EXAMPLE),
    **needs(Scope.READ, may=("not_found",)),
)
async def of_process(request: Request) -> Response:
    """Return what this process did, in the text format of Prometheus. Other processes have their own numbers."""
    return Response(await metrics_of(request).of_process(), media_type=CONTENT_TYPE)


@router.get(
    "/cluster",
    summary="Read the metrics of all processes",
    responses=text_answer(OF_CLUSTER),
    **needs(Scope.READ, may=("not_found",)),
)
async def of_cluster(request: Request) -> Response:
    """Return what the store knows, in the text format of Prometheus: the same on every process."""
    return Response(await metrics_of(request).of_cluster(), media_type=CONTENT_TYPE)
