"""Limits in use, and durable subscribers, over HTTP."""

from __future__ import annotations

from typing import Any

from mainspring import Limit, Mainspring, Rate
from tests.service.resources.client import Client


async def test_limits_in_use_are_listed(app: Mainspring, client: Client) -> None:
    seen: list[Any] = []

    @app.task(limits=[Limit(1), Rate(10, per=60)])
    async def send(number: int) -> None:
        seen.append(await client.get("/v1/limits"))

    await send.enqueue(number=1)
    await app.worker().drain()
    (found,) = seen
    limits = {limit["kind"]: limit for limit in found["limits"]}
    assert (limits["limit"]["name"], limits["limit"]["size"], limits["limit"]["used"]) == ("send", 1, 1)
    assert limits["rate"]["size"] == 10
    assert (await client.get("/v1/limits?name=other"))["limits"] == []
    assert (await client.get("/v1/limits?waiting=true"))["limits"] == []


async def test_subscribers_are_listed_and_forgotten(app: Mainspring, client: Client) -> None:
    assert (await client.get("/v1/subscribers"))["subscribers"] == []

    @app.subscriber("mirror")
    async def mirror(change: object) -> None: ...

    async with app.worker():
        while not (found := (await client.get("/v1/subscribers"))["subscribers"]):
            pass
    assert (found[0]["name"], found[0]["failures"], found[0]["error"]) == ("mirror", 0, "")
    assert (await client.send("DELETE", "/v1/subscribers/mirror")).status == 204
    assert await client.problem("DELETE", "/v1/subscribers/mirror") == (404, "not_found")
