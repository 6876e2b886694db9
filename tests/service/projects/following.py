"""Reads streams of events."""

from __future__ import annotations

import asyncio

from tests.service.serving import Client


async def frames(client: Client, query: str, until: str, path: str = "/v1/events") -> str:
    """Return what a stream sends until it names this job."""
    found = ""
    headers = {"authorization": f"Bearer {client.token}"}
    async with asyncio.timeout(30), client.session.get(f"{client.url}{path}{query}", headers=headers) as response:
        assert response.status == 200
        async for line in response.content:
            found += line.decode()
            if until in found:
                return found
    raise AssertionError(found)


async def first_place(client: Client) -> str:
    headers = {"authorization": f"Bearer {client.token}"}
    async with asyncio.timeout(30), client.session.get(f"{client.url}/v1/events", headers=headers) as response:
        async for line in response.content:
            if line.startswith(b"id: "):
                return line.decode().removeprefix("id: ").strip()
    raise AssertionError
