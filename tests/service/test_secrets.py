"""Secrets that sign requests, and the tokens of deliveries, on several processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError
from mainspring.service.secrets import DEFAULT, OVERLAP, DeliveryTokens, Secrets
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.webhooks import new_secret
from tests.service.pushing import Served, serving


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Mainspring("memory://") as app, serving(app) as served:
        yield served


async def test_a_replaced_secret_signs_for_another_day(store: MemoryStore, clock: ManualClock) -> None:
    secrets, first, second = Secrets(store), new_secret(), new_secret()
    await secrets.create("s", actor="ana", text=first)
    assert await secrets.texts("s") == [first]
    await secrets.rotate("s", actor="ana", text=second)
    assert await secrets.texts("s") == [second, first]
    clock.advance(OVERLAP / 1000 - 1)
    assert await secrets.texts("s") == [second, first]
    clock.advance(2)
    assert await secrets.texts("s") == [second]


async def test_other_processes_hear_of_a_change_soon(store: MemoryStore, clock: ManualClock) -> None:
    here, there = Secrets(store), Secrets(store)
    await here.create("s", actor="ana")
    before = await there.texts("s")
    await here.rotate("s", actor="ana")
    assert await there.texts("s") == before
    clock.advance(6)
    assert len(await there.texts("s")) == 2


async def test_the_default_secret_is_made_once(store: MemoryStore) -> None:
    here, there = Secrets(store), Secrets(store)
    assert await here.texts(DEFAULT) == await there.texts(DEFAULT)
    assert await here.texts("other") == []


async def test_what_is_not_a_secret_is_refused(store: MemoryStore) -> None:
    secrets = Secrets(store)
    with pytest.raises(ConfigurationError, match="Base64"):
        await secrets.create("s", actor="ana", text="password")
    assert await secrets.get("s") is None
    assert await secrets.rotate("s", actor="ana") is None
    assert not await secrets.delete("s", actor="ana")


async def test_all_processes_know_the_tokens_of_deliveries(store: MemoryStore) -> None:
    here, there = DeliveryTokens(store), DeliveryTokens(store)
    token = await here.make("job", 3)
    assert await there.number_of(token, "job") == 3
    assert await there.number_of(token, "other") is None
    for wrong in ("", "msd_", token.replace("_3_", "_4_"), token.upper(), token + "0", "msd_3_" + "0" * 64):
        assert await there.number_of(wrong, "job") is None


async def test_secrets_are_managed_by_the_api(served: Served) -> None:
    status, made = await served.post("/v1/secrets", {"name": "s"})
    assert status == 201
    assert made["texts"][0].startswith("whsec_")
    assert (await served.post("/v1/secrets", {"name": "s"}))[1]["code"] == "duplicate"
    status, rotated = await served.post("/v1/secrets/s:rotate")
    assert (status, rotated["texts"][1:]) == (200, made["texts"])
    _, listed = await served.call("GET", "/v1/secrets")
    assert [secret["name"] for secret in listed["secrets"]] == ["s"]
    assert "whsec" not in str(listed)
    assert (await served.call("GET", "/v1/secrets/s"))[1] == rotated
    assert (await served.call("DELETE", "/v1/secrets/s"))[0] == 204
    for method, path in (("GET", "/v1/secrets/s"), ("POST", "/v1/secrets/s:rotate"), ("DELETE", "/v1/secrets/s")):
        status, answer = await served.call(method, path)
        assert (status, answer["code"]) == (404, "not_found")
    status, answer = await served.post("/v1/secrets", {"name": "t", "secret": "password"})
    assert (status, answer["code"]) == (422, "invalid_request")


async def test_only_admins_see_secrets(served: Served) -> None:
    scopes = ["read", "enqueue", "lease", "operate", "automate"]
    _, made = await served.post("/v1/tokens", {"name": "almost", "scopes": scopes})
    for method, path in (("GET", "/v1/secrets"), ("GET", "/v1/secrets/default"), ("POST", "/v1/secrets")):
        status, answer = await served.call(
            method, path, {"name": "x"} if method == "POST" else None, token=made["text"]
        )
        assert (status, answer["code"]) == (403, "forbidden")


async def test_changes_of_secrets_are_audited_without_their_texts(served: Served) -> None:
    _, made = await served.post("/v1/secrets", {"name": "s"})
    await served.post("/v1/secrets/s:rotate")
    entries = [entry for entry in await served.app.audit() if entry.action.startswith("secret.")]
    assert [entry.action for entry in entries] == ["secret.rotate", "secret.create"]
    assert made["texts"][0] not in str(entries)
