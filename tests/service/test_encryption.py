"""The service over an encrypted store."""

from __future__ import annotations

import pytest

from mainspring import Keys, Mainspring
from mainspring.stores.encrypted import bare
from mainspring.stores.records import Kind
from mainspring.testing.fakes import FakeEndpoint
from mainspring.webhooks import verify
from tests.service.conftest import define
from tests.service.pushing import LOOPBACK
from tests.service.serving import serving

pytest.importorskip("cryptography")

GUEST = "Ada Byron"  # with a space, which sealed values never have: three letters may occur in them by chance


async def test_the_api_shows_what_is_encrypted_and_refuses_to_search_it() -> None:
    app = Mainspring("memory://", encryption=Keys({"k1": bytes(32)}))
    define(app)
    async with app, serving(app) as client:
        body = {"task": "welcome", "payload": {"guest": GUEST}}
        made = await client.post("/v1/jobs", body, idempotency_key="one")
        again = await client.post("/v1/jobs", body, idempotency_key="one")
        assert made.data["id"] == again.data["id"]
        await app.worker().drain()
        shown = (await client.get(f"/v1/jobs/{made.data['id']}")).data
        assert (shown["payload"], shown["result"]) == ({"guest": GUEST}, f"welcome, {GUEST}")
        assert GUEST not in str((await bare(app.store).dump(Kind.HISTORY)).records)
        for path in (
            "/v1/jobs?payload=guest%3DAda+Byron",
            "/v1/dead?payload=guest%3DAda+Byron",
            "/v1/complete/payload_key",
        ):
            refused = await client.get(path)
            assert refused.code == "invalid_request"
            assert "payloads are encrypted" in refused.data["detail"]
        lease = await client.post("/v1/jobs", {**body, "payload": {"guest": "Bob"}})
        (given,) = (await client.post("/v1/leases", {"worker": "w1"})).data["jobs"]
        assert (given["id"], given["payload"]) == (lease.data["id"], {"guest": "Bob"})
        item = {"id": given["id"], "token": given["token"], "done": {"result": "hi Bob"}}
        assert (await client.post("/v1/leases:report", {"worker": "w1", "items": [item]})).status == 200
        assert (await app.jobs.get(given["id"])).result == "hi Bob"


async def test_callbacks_secrets_and_kept_answers_are_encrypted_too() -> None:
    app = Mainspring("memory://", encryption=Keys({"k1": bytes(32)}))
    define(app)
    async with app, FakeEndpoint() as endpoint, serving(app, outgoing_allow=LOOPBACK) as client:
        callback = {"url": endpoint.url, "headers": {"x-guest": GUEST}}
        made = await client.post("/v1/jobs", {"task": "welcome", "payload": {"guest": GUEST}, "callback": callback})
        later = await client.post("/v1/jobs", {"task": "welcome", "payload": {"guest": GUEST}, "delay": 900})
        moves = [
            await client.post(f"/v1/jobs/{later.data['id']}:reschedule", {"delay": 60}, idempotency_key="k1")
            for _ in range(2)
        ]
        assert moves[0].text == moves[1].text
        assert moves[1].headers["idempotent-replayed"] == "true"
        await app.worker().drain()
        (request,) = endpoint.received
        (secret,) = (await client.get("/v1/secrets/default")).data["texts"]
        verify(request.body, request.headers, [secret])
        stored = str([(await bare(app.store).dump(kind)).records for kind in Kind])
    assert request.headers["x-guest"] == GUEST
    assert request.json()["result"] == f"welcome, {GUEST}"
    assert request.json()["job"]["id"] == made.data["id"]
    assert GUEST not in stored
    assert secret not in stored
