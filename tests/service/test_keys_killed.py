"""A service process is killed after the effect of a request, before its answer: another process is asked again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.stores.protocol import Store
from tests.service.conftest import define
from tests.service.keyed_requests import REQUESTS, effects, send
from tests.service.serving import Answer, Client, serving
from tests.service.test_idempotency import STORES
from tests.service.test_keys import difference, effect_of_one, undo

pytestmark = pytest.mark.slow

PATIENCE = 60.0  # seconds; only a failing test waits this long
ROOT = Path(__file__).parents[2]
TOLD = [  # another process says what to read
    "/v1/jobs/{job_id}:cancel",
    "/v1/dead:purge",
    "/v1/halt",
    "/v1/tokens",
]
ANSWERED = [
    "/v1/bulk",
    "/v1/schedules/{schedule_id}:trigger",
    "/v1/jobs/{job_id}:replay",
    "/v1/jobs/{job_id}:complete",
    "/user",
    "/v1/batches",
    "/v1/leases",
    "/v1/leases:report",
]


@pytest.fixture(params=[name for name in STORES if name != "memory"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring(STORES[request.param](tmp_path))
    define(app)
    async with app:
        yield app


def url_of(store: Store) -> str:
    """By which another process opens the store."""
    if not store.url.startswith("dynamodb:"):
        return store.url
    from tests.dynamodb import endpoint

    return f"{store.url}&endpoint={endpoint()}"


@pytest.fixture(scope="module")
def services() -> Iterator[subprocess.Popen[str]]:
    """The program that forks the services which die."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.service.killed_service"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=env, **pipes) as program:
        yield program


@contextlib.asynccontextmanager
async def killed_service(services: subprocess.Popen[str], store: Store, point: str) -> AsyncIterator[Client]:
    """A service that dies at this point of its first request with a key. It is ended whatever happens."""
    assert services.stdin is not None
    assert services.stdout is not None
    services.stdin.write(json.dumps([url_of(store), point]) + "\n")
    services.stdin.flush()
    process_id, url = (await asyncio.to_thread(services.stdout.readline)).split()
    ended = asyncio.create_task(asyncio.to_thread(services.stdout.readline))
    try:
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            yield Client(session, url)
            assert int(await asyncio.shield(ended)) == -signal.SIGKILL
    finally:
        if not ended.done():
            os.kill(int(process_id), signal.SIGKILL)
        await ended


async def killed_and_repeated(
    app: Mainspring, client: Client, services: subprocess.Popen[str], path: str, point: str
) -> tuple[Answer, Counter[str]]:
    """Send a request to a process that dies of it, then to another; return its answer, and the effect of both."""
    keyed = await REQUESTS[path](app)
    before = await effects(app)
    async with killed_service(services, app.store, point) as dying:
        with pytest.raises(aiohttp.ClientError):
            await send(dying, keyed, "k1")
    answer = await send(client, keyed, "k1")
    effect = difference(await effects(app), before)
    await undo(keyed)
    return answer, effect


@pytest.mark.parametrize("path", [*TOLD, *ANSWERED])
async def test_a_request_has_one_effect_although_its_process_is_killed(
    app: Mainspring, services: subprocess.Popen[str], path: str
) -> None:
    async with serving(app) as client:
        expected = await effect_of_one(app, client, path)
        answer, effect = await killed_and_repeated(app, client, services, path, "after the effect")
        assert effect == expected
        if path in ANSWERED:
            assert answer.status < 300, answer
        else:
            assert answer.code == "already_done"
            assert (await client.get(answer.data["see"])).status == 200


@pytest.mark.parametrize(
    ("path", "point"),
    [("/v1/jobs/{job_id}:cancel", "before the effect"), ("/v1/batches", "before the jobs")],
)
async def test_a_request_is_carried_out_by_another_process(
    app: Mainspring, services: subprocess.Popen[str], path: str, point: str
) -> None:
    async with serving(app) as client:
        expected = await effect_of_one(app, client, path)
        answer, effect = await killed_and_repeated(app, client, services, path, point)
        assert answer.status in {200, 201}, answer
        assert effect == expected
