"""A client of the real service. It checks that each answer has the shape that the OpenAPI document promises."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import aiohttp
from pydantic import TypeAdapter
from starlette.routing import BaseRoute, Match

from mainspring import Mainspring
from mainspring.service import ServiceSettings, make_service
from mainspring.stores.sqlite import MemoryStore
from tests.service.contract import check_answer
from tests.service.serving import api_of, listening


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # case does not matter
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class Client:
    """Sends requests to one service."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        text = None if body is None else json.dumps(body)
        return await self.send_text(method, path, text, **headers)

    async def send_text(self, method: str, path: str, text: str | None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {} if text is None else {"Content-Type": "application/json"}
        async with self._session.request(method, path, data=text, headers=named) as response:
            found = Answer(response.status, response.headers, await response.text())
        self._check(method, path, found)
        return found

    async def get(self, path: str, **headers: str) -> Any:
        found = await self.send("GET", path, **headers)
        assert found.status == 200, found.text
        return found.data

    async def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        found = await self.send("POST", path, body)
        assert found.status == status, found.text
        return found.data

    async def problem(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Return the status and the code of an error."""
        found = await self.send(method, path, body, **headers)
        assert found.headers["Content-Type"] == "application/problem+json", found.text
        assert found.data["status"] == found.status
        return found.status, found.data["code"]

    def _check(self, method: str, asked: str, found: Answer) -> None:
        path, _, query = asked.partition("?")
        check_answer(method, path, found.status, found.headers, found.text)
        model = self._model(method, path, found.status)
        if model is None or found.headers.get("Content-Type") != "application/json":
            return
        read = TypeAdapter(model).validate_json(found.text)
        told = TypeAdapter(model).dump_python(read, mode="json", exclude_unset="fields=" in query)
        assert shape(found.data) == shape(told), f"{method} {path} answers other fields than its model"

    def _model(self, method: str, path: str, status: int) -> Any:
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        route: Any = next((each for each in routes() if each.matches(scope)[0] is Match.FULL), None)
        if status >= 400 and not path.startswith("/health"):
            return None
        special = getattr(route, "responses", {}).get(status, {}).get("model")
        return special or getattr(route, "response_model", None)


@cache
def routes() -> list[BaseRoute]:
    """Return the routes of the API. To make them takes long."""
    app = Mainspring(MemoryStore())
    return api_of(app).routes


def shape(data: Any) -> Any:
    """Return the names of the fields in JSON data."""
    if isinstance(data, dict):
        return {name: shape(value) for name, value in data.items()}
    if isinstance(data, list):
        return [shape(value) for value in data]
    return None


@asynccontextmanager
async def serving(app: Mainspring, settings: ServiceSettings | None = None) -> AsyncIterator[Client]:
    """Serve an application on a free port of this machine."""
    async with (
        listening(make_service(app, settings or ServiceSettings(tokens="optional"))) as url,
        aiohttp.ClientSession(url) as session,
    ):
        yield Client(session)
