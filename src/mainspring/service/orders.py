"""Orders to workers in other languages: take no more jobs (quiet), or also end when those in hand are done (terminate).

A worker gets its order with the answer to its next call, from whichever process it asks. A claim that waits is answered
at once. The order ends when the worker leaves, or is silent for so long that it must be dead: another process may have
the same name later.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.clock import Millis
from mainspring.leases.api import checked_id
from mainspring.service.answers.orders import Order, OrderView
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, needs
from mainspring.service.separation import worker_for
from mainspring.service.tokens import Scope
from mainspring.stores.documents import Bundle, By, Document, Key, Note, Write

COLLECTION = "worker_orders"
LEASES_KEPT = 3  # leases for which an order outlives the last call of its worker
router = Router(prefix="/v1", tags=["workers"])


def key_of(worker: str) -> Key:
    return Key(COLLECTION, "", checked_id(worker))


async def order_for(app: Mainspring, worker: str) -> Order | None:
    """Return the order for a worker that calls, and keep it for longer."""
    documents = await app.store.documents([key_of(worker)])
    if not documents:
        return None
    await keep(app, documents[0])
    order: Order = json.loads(documents[0].data)["order"]
    return order


async def keep(app: Mainspring, document: Document) -> None:
    """Keep an order for longer, unless it was changed meanwhile or is kept for long enough."""
    until = kept_until(app)
    if until - (document.expires_at or until) > app.store.lease * 1000:
        write = Write(document.key, document.data, expected=document.version, expires_at=until)
        await app.store.write([Bundle((write,))])


def kept_until(app: Mainspring) -> Millis:
    return app.store.clock.now() + int(LEASES_KEPT * app.store.lease * 1000)


async def forget_order(app: Mainspring, worker: str) -> None:
    await app.store.write([Bundle((Write(key_of(worker), None),))])


async def give_order(request: Request, worker: str, order: Order | None, reason: str) -> Response:
    app, caller = app_of(request), caller_of(request)
    worker = worker_for(caller, worker)
    note = Note(By(caller.actor, reason), f"worker.{order or 'continue'}", {"worker": worker})
    data = None if order is None else json.dumps({"order": order})
    write = Write(key_of(worker), data, expires_at=None if data is None else kept_until(app))
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
