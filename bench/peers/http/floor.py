# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "FastAPI, empty route"
# durability = "none: nothing is stored"
# worker = "none"
# drain_jobs = 1
# ///
"""The floor: what FastAPI and uvicorn take for a request whose route does nothing."""

from __future__ import annotations

import sys

from bench.peers.http._web import Web, serve


class Floor(Web):
    def server(self, port: int, *, worker: bool) -> list[str]:
        return [sys.executable, "-m", __name__, str(port)]


peer = Floor

if __name__ == "__main__":
    from fastapi import FastAPI

    api = FastAPI()

    @api.post("/v1/jobs", status_code=201)
    async def enqueue() -> dict[str, str]:
        return {}

    serve(api)
