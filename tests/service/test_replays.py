"""Replays of finished jobs over HTTP, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring import Context, Mainspring
from tests.service.serving import Client
from tests.service.test_idempotency import SLOW, STORES


@pytest.fixture
def done() -> list[str]:
    """What the steps of the task `film` did."""
    return []


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in STORES])
async def app(request: pytest.FixtureRequest, tmp_path: Path, done: list[str]) -> AsyncIterator[Mainspring]:
    app = Mainspring(STORES[request.param](tmp_path))

    async def work(what: str) -> str:
        done.append(what)
        return what

    @app.task
    async def film(ctx: Context, name: str, password: str = "") -> list[str]:
        return [await ctx.step(step, work, f"{step} {name}{password}") for step in ("prepare", "render", "upload")]

    async with app:
        yield app


async def finished(app: Mainspring) -> str:
    """Run a job to its end; return its path."""
    handle = await app.enqueue("film", {"name": "Alien", "password": "xyz"})
    await app.worker().drain()
    return f"/v1/jobs/{handle.id}"


async def test_a_finished_job_is_replayed_from_a_step(app: Mainspring, client: Client, done: list[str]) -> None:
    path = await finished(app)
    done.clear()
    answer = await client.post(f"{path}:replay", {"from_step": "render", "reason": "bad frames"})
    assert (answer.status, answer.data["created"]) == (201, True)
    assert answer.headers["location"] == f"/v1/jobs/{answer.data['id']}"
    await app.worker().drain()
    new = (await client.get(answer.headers["location"])).data
    assert (new["status"], new["replay_of"]) == ("completed", path.rpartition("/")[2])
    assert done == ["render Alienxyz", "upload Alienxyz"]
    assert (await client.get(path)).data["replay_of"] is None


async def test_redacted_values_are_those_of_the_finished_job(app: Mainspring, client: Client, done: list[str]) -> None:
    path = await finished(app)
    payload = {"name": "Aliens", "password": "[redacted]"}
    answer = await client.post(f"{path}:replay", {"from_step": "upload", "payload": payload})
    await app.worker().drain()
    assert (done[-1], answer.status) == ("upload Aliensxyz", 201)


async def test_what_cannot_be_replayed_is_refused(app: Mainspring, client: Client) -> None:
    path = await finished(app)
    assert (await client.post(f"{path}:replay", {"from_step": "dub"})).code == "not_found"
    assert (await client.post(f"{path}:replay", {"payload": {"title": 1}})).code == "invalid_payload"
    waiting = await app.enqueue("film", {"name": "Alien"}, delay=60)
    assert (await client.post(f"/v1/jobs/{waiting.id}:replay")).code == "illegal_move"


async def test_requests_with_one_key_make_one_job(app: Mainspring, client: Client) -> None:
    path = await finished(app)
    body = {"from_step": "render"}
    answers = await asyncio.gather(*(client.post(f"{path}:replay", body, idempotency_key="k1") for _ in range(5)))
    assert {answer.text for answer in answers} == {answers[0].text}
    assert len((await client.get("/v1/jobs")).data["jobs"]) == 2
    names = [step.name for step in await app.store.steps(answers[0].data["id"])]
    assert names == ["prepare"]
