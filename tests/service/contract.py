"""What the OpenAPI document says about an answer: every test that sends a request checks its answer by this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.routing import Match, Route

from mainspring import Mainspring
from mainspring.service import ServiceSettings, Tokens
from mainspring.service.application import make_api
from mainspring.service.live import Live

TOLD = {"etag", "location", "link", "idempotent-replayed", "retry-after", "ratelimit", "x-order"}
"""Headers that an answer has only if the document says so."""


def api_of(app: Mainspring) -> FastAPI:
    """The API without its guard."""
    tokens = Tokens(app.store)
    return make_api(app, tokens, ServiceSettings(), Live(app, tokens))


@cache
def api() -> FastAPI:
    return api_of(Mainspring("memory://"))


@cache
def document() -> Any:
    """The document, which is the same for every application."""
    return api().openapi()


def operation_of(method: str, path: str) -> Any:
    """Return what the document says about the operation of a request; None if it is not one."""
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    for route in api().routes:
        if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
            return document()["paths"].get(route.path_format, {}).get(method.lower())
    return None


def resolved(part: Any) -> Any:
    if "$ref" not in part:
        return part
    found = document()
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], text: str) -> None:
    """Fail if the document does not say that the operation may answer this."""
    operation = operation_of(method, path)
    if operation is None:
        return
    about = f"{method} {path} answers {status}: {text[:300]}"
    assert str(status) in operation["responses"], f"{about}; declare it by `may` of `needs`"
    response = resolved(operation["responses"][str(status)])
    named = {name.lower(): value for name, value in headers.items()}
    if named.get("content-type") == "application/problem+json":
        code = json.loads(text)["code"]
        assert code in operation["x-problems"], f"{about}; declare {code} by `may` of `needs`"
        assert code in response["content"]["application/problem+json"]["examples"]
    elif text and "content-type" in named:
        assert named["content-type"].partition(";")[0] in response["content"], about
    told = {name.lower() for name in response.get("headers", ())}
    assert TOLD & named.keys() <= told, f"{about}; it has headers that the document does not name: declare `tells`"
