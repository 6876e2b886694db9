"""A service whose jobs may send requests to this machine, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from mainspring import Mainspring
from mainspring.job import Job
from mainspring.service import ServiceSettings, make_service
from mainspring.worker import Worker
from tests.service.serving import listening

LOOPBACK = ("127.0.0.0/8",)


@dataclass
class Served:
    """A service that runs, and a client of it."""

    app: Mainspring
    url: str
    session: aiohttp.ClientSession

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        given = {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
        async with self.session.request(method, f"{self.url}{path}", json=body, headers=given) as response:
            text = await response.text()
            return response.status, (await response.json(content_type=None) if text else None)

    async def post(self, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        return await self.call("POST", path, body, **more)

    async def enqueue(self, task: str, payload: Any = None, **more: Any) -> str:
        status, answer = await self.post("/v1/jobs", {"task": task, "payload": payload, **more})
        assert status == 201, answer
        job_id: str = answer["id"]
        return job_id

    async def run(self) -> None:
        """Run all jobs that are due."""
        await Worker(self.app).drain()

    async def job(self, job_id: str) -> Job:
        return await self.app.jobs.get(job_id)


@asynccontextmanager
async def serving(app: Mainspring, **settings: Any) -> AsyncIterator[Served]:
    service = make_service(
        app, ServiceSettings(**{"outgoing_allow": LOOPBACK, "tokens": "optional", "rate_limit": 0.0, **settings})
    )
    async with listening(service) as url, aiohttp.ClientSession() as session:
        yield Served(app, url, session)
