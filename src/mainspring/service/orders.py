"""Orders to workers in other languages: take no more jobs (quiet), or also end when those in hand are done (terminate).

A worker gets its order with the answer to its next call, from whichever process it asks. A claim that waits is answered
at once. The order ends when the worker leaves: another process may have the same name later.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.leases.api import checked_id
from mainspring.service.answers.orders import Order, OrderView
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, needs
from mainspring.service.separation import worker_for
from mainspring.service.tokens import Scope
from mainspring.stores.documents import Bundle, By, Key, Note, Write

COLLECTION = "worker_orders"
RETENTION = 24 * 3_600_000  # milliseconds; a worker that has not asked by then is gone
router = Router(prefix="/v1", tags=["workers"])


def key_of(worker: str) -> Key:
    return Key(COLLECTION, "", checked_id(worker))


async def order_for(app: Mainspring, worker: str) -> Order | None:
    documents = await app.store.documents([key_of(worker)])
    order: Order | None = json.loads(documents[0].data)["order"] if documents else None
    return order


async def forget_order(app: Mainspring, worker: str) -> None:
    await app.store.write([Bundle((Write(key_of(worker), None),))])


async def give_order(request: Request, worker: str, order: Order | None, reason: str) -> Response:
    app, caller = app_of(request), caller_of(request)
    worker = worker_for(caller, worker)
    note = Note(By(caller.actor, reason), f"worker.{order or 'continue'}", {"worker": worker})
    data = None if order is None else json.dumps({"order": order})
    write = Write(key_of(worker), data, expires_at=None if data is None else app.store.clock.now() + RETENTION)
    await app.store.write([Bundle((write,), note=note, spread=True)])
    return answer({"worker": worker, "order": order})


AboutWorker: dict[str, Any] = {"response_model": OrderView, **needs(Scope.OPERATE, projects=True)}


@router.post("/workers/{worker}:quiet", summary="Let a pull worker take no more jobs", **AboutWorker)
async def quiet(request: Request, worker: str, body: Reason) -> Response:
    """Let a worker that uses leases finish what it has, and take no more."""
    return await give_order(request, worker, "quiet", body.reason)


@router.post("/workers/{worker}:terminate", summary="Let a pull worker end", **AboutWorker)
async def terminate(request: Request, worker: str, body: Reason) -> Response:
    """Let a worker that uses leases finish what it has, and end."""
    return await give_order(request, worker, "terminate", body.reason)


@router.post("/workers/{worker}:continue", summary="Let a pull worker go on", **AboutWorker)
async def go_on(request: Request, worker: str, body: Reason) -> Response:
    """Take the order back."""
    return await give_order(request, worker, None, body.reason)
