"""The OpenAPI document has all routes, and each of them obeys its scope."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from mainspring import Mainspring
from mainspring.service import ServiceSettings, Tokens
from mainspring.service.resources import ROUTERS
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore
from tests.service.resources.client import Client, serving
from tests.service.serving import api_of

PAGE = Path(__file__).parents[3] / "docs" / "service-resources.md"
ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
OPERATIONS = sorted((method, route.path_format) for route in ROUTES for method in route.methods or ())


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture(scope="module")
def document() -> Any:
    app = Mainspring(MemoryStore())
    return api_of(app).openapi()


@pytest.fixture
async def client(app: Mainspring) -> AsyncIterator[Client]:
    settings = ServiceSettings(tokens="required", rate_limit=0.0)
    async with serving(app, settings) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_each_route_is_described(document: Any, method: str, path: str) -> None:
    operation = document["paths"][path][method.lower()]
    assert operation["summary"]
    assert operation["x-scope"] in {"read", "enqueue", "operate"}
    assert (operation["x-scope"] == "read") == (method == "GET" or path.endswith(("preview", "simulate", "diff")))
    assert operation["description"]
    assert {"401", "403", "422", "429", "500", "503"} <= set(operation["responses"])


def test_operations_have_different_ids(document: Any) -> None:
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


async def test_each_route_needs_its_scope(app: Mainspring, client: Client) -> None:
    _, lease = await Tokens(app.store).create("remote", ["lease"], actor="test")
    for method, path in OPERATIONS:
        real = re.sub(r"\{\w+\}", "task", path)
        assert await client.problem(method, real) == (401, "unauthorized")
        refused = await client.problem(method, real, {}, Authorization=f"Bearer {lease}")
        assert refused == (403, "forbidden"), f"{method} {path}"


@pytest.mark.parametrize("path", sorted({path for _, path in OPERATIONS}))
def test_each_path_is_on_the_page(path: str) -> None:
    base, colon, action = path.partition(":") if ":" in path else (path, "", "")
    named = re.sub(r"\{(\w+_)?id\}", "{id}", base)
    text = PAGE.read_text("utf-8")
    assert named in text
    assert f"{colon}{action}" in text
