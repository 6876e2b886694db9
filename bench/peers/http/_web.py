"""What the web applications have in common."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.peer import TEXT, Peer


class Web(Peer):
    """An application that is called by HTTP only."""

    async def open(self) -> None:
        """Nothing: the server's process opens what it needs."""

    async def enqueue(self, number: int) -> None:
        self.cannot("calls but those by HTTP here")

    async def fill(self, jobs: int) -> None:
        self.cannot("calls but those by HTTP here")

    async def settled(self) -> bool:
        return True

    def worker(self) -> list[str]:
        self.cannot("worker that is measured here")

    def job(self, number: int) -> bytes:
        """The body that enqueues one job."""
        return json.dumps({"task": "noop", "payload": {"n": number, "s": TEXT}}).encode()


def serve(api: Any) -> None:
    """Serve with the settings that `mainspring serve` has, on the port that is the process's first argument."""
    import uvicorn

    uvicorn.run(
        api,
        port=int(sys.argv[1]),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
    )
