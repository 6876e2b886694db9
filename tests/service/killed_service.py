"""Services that are killed while they carry out their first request with an idempotency key.

For each line of standard input, `["STORE", "POINT"]`, this program forks a service. It prints the service's process id
and URL, and then how it ended. A fork has all imports already, which take most of the time of a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import mainspring.stores.dynamodb
import mainspring.stores.postgres  # noqa: F401 - forks have it, too
from examples.dynamodb_server import set_keys
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
        print(os.getpid(), url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    set_keys()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(serve(*json.loads(line)))
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
