"""The route that sends signals to waiting jobs."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.clock import to_millis
from mainspring.features.durable.signals import MAX_KEY_LENGTH, SIGNAL_RETENTION, Signal, send_with
from mainspring.json_data import plain
from mainspring.service.answers.signals import SignalView
from mainspring.service.bodies import Body, Seconds
from mainspring.service.idempotency import COLLECTION, RETENTION, IdempotencyKey, refuse_other
from mainspring.service.problems import Problem
from mainspring.service.redacted import redaction_of
from mainspring.service.replay import KeyKind
from mainspring.service.requests import Router, answer, app_of, caller_of, key_of, needs, replay_header
from mainspring.service.separation import signal_key_for
from mainspring.service.tokens import Scope
from mainspring.stores.documents import ABSENT, Key, Write
from mainspring.stores.protocol import Store

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


@router.post(
    "/signals",
    response_model=SignalView,
    status_code=201,
    summary="Send a signal",
    **needs(Scope.ENQUEUE, KeyKind.OWN, projects=True, may=("invalid_payload",)),
)
async def send_signal(request: Request, body: SignalBody) -> Response:
    """Wake all jobs that wait for this key, now or later while the signal is kept."""
    body = body.model_copy(update={"key": signal_key_for(caller_of(request), body.key)})
    key = key_of(request, await request.body())
    if key is None:
        return answer(
            shown(request, await app_of(request).signal(body.key, body.payload, keep=body.keep, id=body.id)), 201
        )
    if body.id is not None:
        raise Problem("invalid_request", "give an Idempotency-Key or an id, not both: each makes the signal one")
    signal, replayed = await send_once(app_of(request).store, key, body)
    return answer(shown(request, signal), 201, replay_header(replayed))


def shown(request: Request, signal: Signal) -> dict[str, Any]:
    return {**plain(signal), "payload": redaction_of(request).value(plain(signal.payload))}


async def send_once(store: Store, key: IdempotencyKey, body: SignalBody) -> tuple[Signal, bool]:
    """Send a signal unless the key was used before; return it, and whether it was sent before."""
    place = Key(COLLECTION, key.name, "signal")

    def notes(signal: Signal) -> list[Write]:
        sent_at = to_millis(signal.sent_at)
        data = json.dumps({"fingerprint": key.fingerprint, "id": signal.id, "sent_at": sent_at})
        return [Write(place, data, expected=ABSENT, expires_at=sent_at + RETENTION)]

    while True:
        if (signal := await send_with(store, body.key, body.payload, body.keep, notes)) is not None:
            return signal, False
        if found := await store.documents([place]):
            return first_signal(json.loads(found[0].data), key, body), True


def first_signal(data: dict[str, Any], key: IdempotencyKey, body: SignalBody) -> Signal:
    refuse_other(key, data)
    return Signal.from_data(body.key, {**data, "payload": body.payload})
