"""The route that sends signals to waiting jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.features.durable.signals import MAX_KEY_LENGTH, SIGNAL_RETENTION
from mainspring.json_data import plain
from mainspring.service.bodies import Body, Seconds
from mainspring.service.idempotency import IdempotencyKey
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, answer, app_of, caller_of, needs
from mainspring.service.tokens import Scope
from mainspring.service.views import Moment, View

router = Router(prefix="/v1", tags=["signals"])
Line = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY_LENGTH)]


class SignalBody(Body):
    """An event that jobs wait for."""

    key: Line = Field(description="what jobs wait for: `ctx.wait_for(key)`", examples=["checked_in:r1"])
    payload: Any = None
    keep: Seconds = Field(
        default=SIGNAL_RETENTION.total_seconds(), gt=0, description="seconds; jobs that wait later also get it"
    )
    id: Line | None = Field(default=None, description="signals of one key with the same id are one; the first counts")


class SignalView(View):
    id: str
    key: str
    payload: Any
    sent_at: Moment


@router.post("/signals", response_model=SignalView, status_code=201, summary="Send a signal", **needs(Scope.ENQUEUE))
async def send_signal(
    request: Request,
    body: SignalBody,
    idempotency_key: Annotated[
        str | None, Header(max_length=300, description="makes the request safe to repeat")
    ] = None,
) -> Response:
    """Wake all jobs that wait for this key, now or later while the signal is kept."""
    key = IdempotencyKey.of(
        idempotency_key, caller=caller_of(request).id, route=request.url.path, body=await request.body()
    )
    name = body.id if key is None else key.name
    signal = await app_of(request).signal(body.key, body.payload, keep=body.keep, id=name)
    if key is not None and signal.payload != body.payload:
        raise Problem("idempotency_key_reused", "this Idempotency-Key was used with another body; make a new one")
    return answer(plain(signal), 201)
