"""Signals over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Context, Mainspring
from mainspring.features.durable.signals import COLLECTION
from mainspring.stores.documents import Listing
from mainspring.testing.clock import ManualClock
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
    first, second = [await client.send("POST", "/v1/signals", body, Idempotency_Key="k1") for _ in range(2)]
    assert (first.status, first.data) == (second.status, second.data)
    assert [each.headers.get("Idempotent-Replayed") for each in (first, second)] == [None, "true"]
    by_id = [await client.post("/v1/signals", {**body, "id": "x"}, status=201) for _ in range(2)]
    assert by_id[0] == by_id[1] != first.data


@pytest.mark.parametrize("change", [{"key": "left"}, {"payload": 8}, {"payload": 7.0}, {"keep": 60}])
async def test_a_key_that_was_used_with_another_signal_is_refused(
    app: Mainspring, client: Client, change: dict[str, Any]
) -> None:
    body = {"key": "arrived", "payload": 7}
    await client.send("POST", "/v1/signals", body, Idempotency_Key="k1")
    other = await client.problem("POST", "/v1/signals", body | change, Idempotency_Key="k1")
    assert other == (422, "idempotency_key_reused")
    both = await client.problem("POST", "/v1/signals", {**body, "id": "x"}, Idempotency_Key="k2")
    assert both == (422, "invalid_request")
    sent = await app.store.browse(Listing(COLLECTION, None))
    assert len(sent) == 1


async def test_a_repeated_signal_is_sent_once_although_it_is_kept_shortly(
    app: Mainspring, client: Client, clock: ManualClock
) -> None:
    body = {"key": "arrived", "keep": 1}
    first = await client.send("POST", "/v1/signals", body, Idempotency_Key="k1")
    clock.advance(3600)
    assert (await client.send("POST", "/v1/signals", body, Idempotency_Key="k1")).data == first.data


@pytest.mark.parametrize("payload", ["1e999", '"\\ud800"'])
async def test_a_payload_that_cannot_be_stored_is_refused(client: Client, payload: str) -> None:
    for headers in ({}, {"Idempotency-Key": "k1"}):
        answer = await client.send_text("POST", "/v1/signals", f'{{"key": "a", "payload": {payload}}}', **headers)
        assert (answer.status, answer.data["code"]) == (422, "invalid_payload")
    assert (await client.send("POST", "/v1/signals", {"key": "a"}, Idempotency_Key="k1")).status == 201


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": "a\nb"}, {"key": "a", "keep": 0}, {"key": "a" * 181}, {"key": "a", "id": "\t"}]
)
async def test_a_wrong_signal_is_refused(client: Client, body: Any) -> None:
    assert await client.problem("POST", "/v1/signals", body) == (422, "invalid_request")
