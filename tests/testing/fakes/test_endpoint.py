"""The fake of a worker that takes jobs by HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from mainspring.testing.fakes import Answer, FakeEndpoint
from mainspring.webhooks import new_secret, signed


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers or {}, method="POST")  # noqa: S310 - of a fake
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - of a fake
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def test_it_answers_as_it_is_told_to() -> None:
    with FakeEndpoint() as endpoint:
        assert post(endpoint.url, 1) == (200, {"ok": True})
        endpoint.reply(Answer(500, "oops"), Answer(202, None))
        assert [post(endpoint.url, number) for number in (2, 3, 4)] == [(500, "oops"), (202, None), (202, None)]
        assert endpoint.bodies == [1, 2, 3, 4]


@pytest.mark.parametrize(("known", "status"), [(True, 200), (False, 401)])
def test_it_verifies_signatures(*, known: bool, status: int) -> None:
    secret = new_secret()
    with FakeEndpoint(secrets=[secret if known else new_secret()]) as endpoint:
        headers = signed(json.dumps(1).encode(), [secret], "m", int(time.time()))
        assert post(endpoint.url, 1, headers)[0] == status
        assert endpoint.bodies == ([1] if known else [])
