"""Circuit breakers over HTTP."""

from __future__ import annotations

from mainspring import Mainspring
from tests.service.resources.client import Client


async def test_a_breaker_is_opened_and_closed(app: Mainspring, client: Client) -> None:
    assert (await client.get("/v1/breakers"))["breakers"] == []
    opened = await client.post("/v1/breakers/mail:open", {"reason": "storm", "open_for": 60})
    assert (opened["phase"], opened["reason"]) == ("open", "storm")
    assert opened["until"] is not None
    assert (await client.get("/v1/breakers"))["breakers"] == [opened]
    assert await client.get("/v1/breakers/mail") == opened
    closed = await client.post("/v1/breakers/mail:close", {"reason": "over"})
    assert (closed["phase"], closed["reason"]) == ("closed", "over")
    noted = [(entry["action"], entry["reason"], entry["actor"]) for entry in (await client.get("/v1/audit"))["entries"]]
    assert noted == [("breaker.close", "over", "local"), ("breaker.open", "storm", "local")]


async def test_an_unknown_breaker_is_not_found(client: Client) -> None:
    assert await client.problem("POST", "/v1/breakers/mial:close") == (404, "not_found")
    assert await client.problem("GET", "/v1/breakers/mial") == (404, "not_found")


async def test_a_wrong_breaker_is_refused(client: Client) -> None:
    assert await client.problem("POST", "/v1/breakers/mail:open", {"open_for": 0}) == (422, "invalid_request")
    assert await client.problem("POST", "/v1/breakers/a%00b:open") == (422, "invalid_request")
