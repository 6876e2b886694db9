"""A service that is killed while it carries out its first request with an idempotency key: `… STORE POINT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from mainspring import Mainspring
from mainspring.pipeline import Pipeline
from mainspring.service import ServiceSettings, leases, make_service, requests
from mainspring.service.replay import KeyedRequest
from tests.service.conftest import define
from tests.service.serving import listening

WAIT = 100  # milliseconds that another process waits for the answer


async def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


POINTS = {
    "after the effect": (KeyedRequest, "_kept"),
    "before the effect": (KeyedRequest, "_handled"),
    "before the jobs": (Pipeline, "insert"),
}


async def serve(store: str, point: str) -> None:
    for module in (requests, leases):
        setattr(module, "ANSWER_WITHIN", WAIT)  # noqa: B010 - it is not theirs
    setattr(*POINTS[point], die)
    app = Mainspring(store)
    define(app)
    async with app, listening(make_service(app, ServiceSettings(tokens="optional"))) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
