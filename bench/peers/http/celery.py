# /// script
# requires-python = ">=3.11"
# dependencies = ["celery[redis]==5.6.3", "fastapi==0.162.7", "uvicorn==0.54.0"]
#
# [tool.bench]
# title = "FastAPI + Celery, Redis"
# durability = "Redis with appendonly, fsync each second"
# worker = "none"
# drain_jobs = 1
# ///
"""A FastAPI application that enqueues with Celery on a Redis server of its own; `redis-server` must be on PATH.

`delay` blocks, so its route is a plain function, which FastAPI calls in a thread, as its documentation says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.peer import here
from bench.peers.http._web import Web, serve

SOCKET = here()[0] / "redis.sock"
START_SECONDS = 10.0


class Celery(Web):
    async def open(self) -> None:
        if shutil.which("redis-server") is None:
            self.cannot("redis-server on PATH")
        options = {"port": "0", "unixsocket": str(SOCKET), "dir": str(self.place), "appendonly": "yes"}
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.redis = subprocess.Popen(["redis-server", *given], stdout=subprocess.DEVNULL)
        wait_for(SOCKET)

    async def close(self) -> None:
        with suppress(AttributeError):  # it was not started
            self.redis.terminate()
            self.redis.wait()

    def server(self, port: int, *, worker: bool) -> list[str]:
        return [sys.executable, "-m", __name__, str(port)]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("redis-server does not start")
        time.sleep(0.01)


peer = Celery

if __name__ == "__main__":
    import celery
    from fastapi import FastAPI
    from pydantic import BaseModel

    tasks = celery.Celery(broker=f"redis+socket://{SOCKET}")

    @tasks.task(name="noop", ignore_result=True)
    def noop(n: int, s: str) -> None: ...

    class Payload(BaseModel):
        n: int
        s: str

    class NewJob(BaseModel):
        task: str
        payload: Payload

    api = FastAPI()

    @api.post("/v1/jobs", status_code=201)
    def enqueue(job: NewJob) -> dict[str, str]:
        return {"id": noop.delay(job.payload.n, job.payload.s).id}

    serve(api)
