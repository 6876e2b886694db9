"""Idempotency keys of every POST that the OpenAPI document has: one effect, equal answers, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.ids import new_id
from mainspring.service.replay import KeyKind
from tests.service.conftest import define
from tests.service.keyed_requests import NO_EFFECT, REQUESTS, Keyed, effects, send
from tests.service.serving import Answer, Client, api_of, serving
from tests.service.test_idempotency import STORES

AT_ONCE = 10


def operations() -> dict[str, Any]:
    paths = api_of(Mainspring("memory://")).openapi()["paths"]
    return {path: methods["post"] for path, methods in paths.items() if "post" in methods}


def test_every_post_of_the_document_is_tried_and_has_the_header() -> None:
    posts = operations()
    assert sorted(REQUESTS) == sorted(posts)
    for path, operation in posts.items():
        names = [parameter["name"] for parameter in operation.get("parameters", [])]
        assert names.count("Idempotency-Key") == 1, path


@pytest.fixture(scope="module")
def kinds() -> dict[str, KeyKind]:
    return {path: KeyKind(operation.get("x-idempotency", "answer")) for path, operation in operations().items()}


async def effect_of_one(app: Mainspring, client: Client, path: str) -> Counter[str]:
    """What the request does if it is sent once, without a key."""
    keyed = await REQUESTS[path](app)
    before = await effects(app)
    answer = await send(client, keyed)
    assert answer.status < 300, answer
    after = await effects(app)
    await undo(keyed)
    return difference(after, before)


def difference(after: Counter[str], before: Counter[str]) -> Counter[str]:
    after.subtract(before)
    return Counter({name: number for name, number in after.items() if number})


async def undo(keyed: Keyed) -> None:
    if keyed.undo is not None:
        await keyed.undo()


def check(answers: list[Answer], path: str, kind: KeyKind) -> None:
    """One request was carried out, and the others got its answer."""
    first = [answer for answer in answers if answer.status < 300 and "idempotent-replayed" not in answer.headers]
    rest = [answer for answer in answers if answer not in first]
    if path in NO_EFFECT and kind is KeyKind.ANSWER:
        assert len({answer.text for answer in answers}) == 1  # some may have run at the same time
        return
    assert len(first) == 1, answers
    if kind is KeyKind.SECRET:
        assert {answer.code for answer in rest} == {"already_done"}
        assert all("secret" in answer.data["detail"] and answer.data["see"] for answer in rest)
        return
    assert {answer.status for answer in answers} == {first[0].status}
    assert all(answer.headers["idempotent-replayed"] == "true" for answer in rest)
    shown = "jobs" if kind is KeyKind.CLAIM else None
    assert all(
        answer.data == first[0].data if shown is None else answer.data[shown] == first[0].data[shown] for answer in rest
    )
    for name in ("location", "etag", "content-type"):
        assert len({answer.headers.get(name) for answer in answers}) == 1, name


async def try_keys(app: Mainspring, client: Client, path: str, kind: KeyKind) -> None:
    expected = await effect_of_one(app, client, path)
    assert bool(expected) == (path not in NO_EFFECT), expected
    for at_once in (1, AT_ONCE):
        keyed, key = await REQUESTS[path](app), f'"{new_id()}"'
        before = await effects(app)
        answers = list(await asyncio.gather(*(send(client, keyed, key) for _ in range(at_once))))
        answers.append(await send(client, keyed, key))
        other = await send(client, keyed, key, keyed.other)
        assert (other.status, other.code) == (422, "idempotency_key_reused"), path
        assert difference(await effects(app), before) == expected, path
        check(answers, path, kind)
        await undo(keyed)


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_repeated_request_has_one_effect(
    app: Mainspring, client: Client, path: str, kinds: dict[str, KeyKind]
) -> None:
    await try_keys(app, client, path, kinds[path])


@pytest.fixture(params=[name for name in STORES if name != "memory"])
async def durable_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring(STORES[request.param](tmp_path))
    define(app)
    async with app:
        yield app


@pytest.mark.slow
async def test_repeated_requests_have_one_effect_on_each_store(
    durable_app: Mainspring, kinds: dict[str, KeyKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.service.orders.LEASES_KEPT", 1000)  # none ends while the test runs
    async with serving(durable_app) as client:
        for path in REQUESTS:
            await try_keys(durable_app, client, path, kinds[path])
