"""What an attacker would try, besides what the tests of each part try."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from tests.service.serving import serving
from tests.service.test_security import ADA, token_of
from tests.service.test_sessions import OURS, logged_in, post_form


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "api_key"])
async def test_a_token_in_the_url_opens_nothing(app: Mainspring, name: str) -> None:
    """Proxies and browsers store URLs, so a token in a URL would leak."""
    text = await token_of(app, "admin")
    async with serving(app, tokens="required") as client:
        assert (await client.get(f"/v1/jobs?{name}={text}")).code == "unauthorized"


@pytest.mark.parametrize("query", ["?next=https://evil.example", "?next=//evil.example", "?return_to=/\\evil.example"])
async def test_a_login_leads_nowhere_else(app: Mainspring, query: str) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        answer = await post_form(client, f"/login{query}", text, **OURS)
        assert (answer.status, answer.headers["location"]) == (303, "/login")


async def test_a_cookie_that_was_planted_before_a_login_is_not_the_session(app: Mainspring) -> None:
    text = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        planted = await logged_in(client, text)  # the attacker's own session, or any text of its form
        answer = await post_form(client, "/login", text, cookie=planted, **OURS)
        given = answer.headers["set-cookie"].partition(";")[0]
        assert given != planted
        assert (await client.get("/v1/jobs", cookie=planted)).code == "unauthorized"
        assert (await client.get("/v1/jobs", cookie=given)).status == 200


async def test_an_idempotency_key_of_another_token_gives_nothing_away(app: Mainspring) -> None:
    first, second = await token_of(app, "enqueue"), await token_of(app, "enqueue")
    async with serving(app, tokens="required") as client:
        one = await client.using(first).post("/v1/jobs", ADA, idempotency_key="k1")
        two = await client.using(second).post("/v1/jobs", ADA, idempotency_key="k1")
        assert (one.status, two.status) == (201, 201)
        assert one.data["id"] != two.data["id"]
