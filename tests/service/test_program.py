"""`mainspring serve` as a program: it starts, serves, runs jobs and stops. Three on one PostgreSQL, under kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.service.program import listen
from tests.service.serving import Client

PATIENCE = 60.0  # seconds; only a failing test waits this long
APP = """
import os
from mainspring import Mainspring

app = Mainspring(os.environ["SHOP_STORE"])

@app.task
async def welcome(guest: str) -> str:
    return f"welcome, {guest}"
"""
ADA = {"task": "welcome", "payload": {"guest": "Ada"}}


@dataclass
class Program:
    process: asyncio.subprocess.Process
    client: Client

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def program(folder: Path, store: str, *options: str) -> AsyncIterator[Program]:
    """A service of its own process; it is ended whatever happens."""
    (folder / "shop.py").write_text(APP)
    env = {**os.environ, "SHOP_STORE": store, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainspring", "serve", "shop:app", "--port", "0", "--log-format", "json", *options,
        cwd=folder, env=env, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            yield Program(process, Client(session, await url_of(process)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def url_of(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = ""
    async with asyncio.timeout(PATIENCE):
        while line := (await process.stderr.readline()).decode():
            said += line
            if "service_started" in line:
                asyncio.ensure_future(process.stderr.read())  # noqa: RUF006 - so that its pipe never fills
                return str(json.loads(line)["url"])
    pytest.fail(f"the service did not start: {said}")


async def completed(client: Client, job_id: str) -> dict[str, object]:
    async with asyncio.timeout(PATIENCE):
        while True:
            job: dict[str, object] = (await client.get(f"/v1/jobs/{job_id}")).data
            if job["status"] == "completed":
                return job
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_service_runs_jobs_and_stops_in_order(tmp_path: Path) -> None:
    async with program(tmp_path, f"sqlite:///{tmp_path}/jobs.db") as service:
        job_id = (await service.client.post("/v1/jobs", ADA)).data["id"]
        assert (await completed(service.client, job_id))["result"] == "welcome, Ada"
        assert await service.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_a_service_without_a_worker_runs_nothing(tmp_path: Path) -> None:
    async with program(tmp_path, f"sqlite:///{tmp_path}/jobs.db", "--no-worker") as service:
        job_id = (await service.client.post("/v1/jobs", ADA)).data["id"]
        assert (await service.client.get("/v1/workers")).data == {"workers": []}
        assert (await service.client.get(f"/v1/jobs/{job_id}")).data["status"] == "pending"
        assert await service.end(signal.SIGINT) == 0


async def test_answers_are_sent_without_delay() -> None:
    delays = asyncio.get_running_loop().create_future()

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        delays.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(accepted, sock=listen("127.0.0.1", 0)) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await delays
        writer.close()


@pytest.mark.slow
async def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    async with program(tmp_path, f"sqlite:///{tmp_path}/jobs.db") as service:
        port = service.client.url.rpartition(":")[2]
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mainspring", "serve", "--store", "memory://", "--port", port,
            cwd=tmp_path, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await other.communicate()
    assert other.returncode == 2
    assert re.fullmatch(
        rf"mainspring.*: cannot listen on 127.0.0.1:{port}: Address already in use; .*\n", said.decode()
    )


@pytest.mark.slow
@pytest.mark.chaos
async def test_one_key_creates_one_job_whatever_dies(tmp_path: Path) -> None:
    """50 POSTs with one key to three services on one PostgreSQL, two of which are killed in the middle."""
    from tests.postgres import dsn, fresh_schema

    server = dsn()
    store = f"{server}{'&' if '?' in server else '?'}schema={fresh_schema()}"
    rng = random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        services = [await stack.enter_async_context(program(tmp_path, store, "--no-worker")) for _ in range(3)]
        alive = list(services)

        async def insist(number: int) -> str:
            """Send until there is an answer, as a client with a key may."""
            async with asyncio.timeout(PATIENCE):
                while True:
                    service = alive[number % len(alive)]
                    try:
                        answer = await service.client.post("/v1/jobs", ADA, idempotency_key="one")
                    except aiohttp.ClientError:
                        number += 1
                        continue
                    assert answer.status == 201, answer
                    return answer.text

        async def kill_two() -> None:
            for victim in rng.sample(services, 2):
                await asyncio.sleep(rng.uniform(0, 0.1))
                alive.remove(victim)
                await victim.end(signal.SIGKILL)

        killing = asyncio.create_task(kill_two())
        texts = await asyncio.gather(*(insist(number) for number in range(50)))
        await killing
        texts.append(await insist(0))
    assert len(set(texts)) == 1
    async with Mainspring(store) as app:
        assert await app.jobs.count() == 1
