"""Signals over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Context, Mainspring
from tests.service.resources.client import Client


async def test_a_signal_wakes_the_job_that_waits_for_it(app: Mainspring, client: Client) -> None:
    @app.task
    async def check_in(ctx: Context, guest: str) -> Any:
        signal = await ctx.wait_for(f"arrived:{guest}")
        return None if signal is None else signal.payload

    handle = await check_in.enqueue(guest="Ada")
    await app.worker().drain()
    assert (await app.jobs.get(handle.id)).status == "suspended"
    sent = await client.post("/v1/signals", {"key": "arrived:Ada", "payload": {"room": 7}}, status=201)
    assert (sent["key"], sent["payload"]) == ("arrived:Ada", {"room": 7})
    await app.worker().drain()
    assert (await app.jobs.get(handle.id)).result == {"room": 7}


async def test_a_repeated_signal_is_sent_once(client: Client) -> None:
    body = {"key": "arrived", "payload": 7}
    first, second = [(await client.send("POST", "/v1/signals", body, Idempotency_Key="k1")).data for _ in range(2)]
    assert first == second
    other = {"key": "arrived", "payload": 8}
    repeated = await client.problem("POST", "/v1/signals", other, Idempotency_Key="k1")
    assert repeated == (422, "idempotency_key_reused")
    by_id = [await client.post("/v1/signals", {**body, "id": "x"}, status=201) for _ in range(2)]
    assert by_id[0] == by_id[1] != first


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": "a\nb"}, {"key": "a", "keep": 0}, {"key": "a" * 181}, {"key": "a", "id": "\t"}]
)
async def test_a_wrong_signal_is_refused(client: Client, body: Any) -> None:
    assert await client.problem("POST", "/v1/signals", body) == (422, "invalid_request")
