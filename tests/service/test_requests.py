"""What every route does with a request: which bodies it reads, and how it says what is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mainspring.service.application import PLAIN_ROUTES
from tests.service.serving import Client
from tests.service.test_limits import send

ADA = {"task": "welcome", "payload": {"guest": "Ada"}}


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain"])
async def test_a_body_that_is_not_marked_as_json_is_refused_with_the_remedy(client: Client, content_type: str) -> None:
    paths = ["/v1/signals", "/v1/queues/mail:pause", *PLAIN_ROUTES]
    for method, path in (("PUT", "/v1/people/ana"), *(("POST", path) for path in paths)):
        answer = await client.send(method, path, {"key": "a"}, content_type=content_type)
        assert answer.code == "invalid_request"
        assert f"the body is marked as {content_type!r}" in answer.data["detail"]
        assert "curl --json" in answer.data["detail"]
        assert ("application/x-ndjson" in answer.data["detail"]) == (path == "/v1/jobs:bulk")


@pytest.mark.parametrize(
    "header", ["content-type: application/vnd.shop+json; charset=utf-8\r\n", "", "content-type: Application/JSON\r\n"]
)
async def test_a_body_that_is_json_or_not_marked_at_all_is_read(client: Client, header: str) -> None:
    for path, body in ("/v1/jobs", ADA), ("/v1/signals", {"key": "a"}):
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}"
        assert (await send(client.url, f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)).startswith(
            b"HTTP/1.1 20"
        )


POINTERS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/v1/jobs", ADA | {"callback": "ftp://x"}, {"/callback"}),
    ("/v1/jobs", ADA | {"dedupe_for": 1e30}, {"/dedupe_for"}),
    ("/v1/jobs", ADA | {"tags": ["a", 3]}, {"/tags/1"}),
    ("/v1/jobs", ADA | {"a/b~c": 1}, {"/a~1b~0c"}),
    ("/v1/jobs", {"payload": {}}, {"/task"}),
    ("/v1/jobs", ADA | {"callback": {}}, {"/callback", "/callback/url"}),
    ("/v1/jobs:bulk", {"jobs": [ADA, {"queue": 3}]}, {"/jobs/1/task", "/jobs/1/queue"}),
    ("/v1/signals", {}, {"/key"}),
    ("/v1/signals", {"key": "a", "x/y": 1}, {"/x~1y"}),
]


@pytest.mark.parametrize(("path", "body", "pointers"), POINTERS)
async def test_an_error_in_the_body_has_a_json_pointer(
    client: Client, path: str, body: dict[str, Any], pointers: set[str]
) -> None:
    answer = await client.post(path, body)
    assert answer.code == "invalid_request"
    assert {error.get("pointer") for error in answer.data["errors"]} == pointers
    assert not any("parameter" in error for error in answer.data["errors"])


@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", b"[]"), ("/v1/signals", b"[]"), ("/v1/jobs", b"3")])
async def test_the_pointer_to_a_whole_body_is_empty(client: Client, path: str, body: bytes) -> None:
    answer = await client.post(path, body)
    assert [error["pointer"] for error in answer.data["errors"]] == [""]
    assert answer.data["detail"].startswith("body: ")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/jobs?limit=100000", "limit"),
        ("/v1/events?kind=nonsense", "kind"),
        ("/v1/jobs?status=a&status=b", "status"),
    ],
)
async def test_an_error_elsewhere_names_the_parameter(client: Client, path: str, name: str) -> None:
    answer = await client.get(path)
    assert {error["parameter"] for error in answer.data["errors"]} == {name}
    assert not any("pointer" in error for error in answer.data["errors"])
    assert answer.data["detail"].startswith(f"{name}: ")


@pytest.mark.parametrize("path", ["/v1/jobs/", "/v1/dead/", "/health/live/"])
async def test_a_slash_too_many_is_not_found_and_named(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert answer.code == "not_found"
    assert f"the path is {path[:-1]}, without a slash at its end" in answer.data["detail"]
    assert "without a slash" not in (await client.get("/nowhere/")).data["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/v1/jobs", ADA | {"run_at": "9999-12-31T00:00:00Z"}, "run_at is 9999-12-31T00:00:00+00:00; give"),
        ("GET", "/v1/jobs?cursor=W10", None, "or none for the first page"),
        ("POST", "/v1/jobs", b'{"task": "any", "payload": {"a": NaN}, "allow_unknown": true}', "give null"),
    ],
)
async def test_an_error_is_worded_for_callers_of_any_language(
    client: Client, method: str, path: str, body: Any, said: str
) -> None:
    detail = (await client.send(method, path, body)).data["detail"]
    assert said in detail
    assert "datetime." not in detail


async def test_every_operation_refuses_query_parameters_that_it_does_not_have(client: Client) -> None:
    document = (await client.get("/v1/openapi.json")).data
    reads = [path for path, operations in document["paths"].items() if "get" in operations and path.startswith("/v1/")]
    assert len(reads) > 30
    for path in reads:
        answer = await client.get(f"{re.sub('{[^}]+}', 'x', path)}?stauts=completed")
        assert answer.code == "invalid_request", path
        assert answer.data["errors"][0]["parameter"] == "stauts", path


async def test_an_unknown_query_parameter_is_answered_with_the_known_ones(client: Client) -> None:
    answer = await client.get("/v1/schedules/nightly/preview?count=5")
    assert "there is no such query parameter; use" in answer.data["detail"]
    assert "limit" in answer.data["detail"]
