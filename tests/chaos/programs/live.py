"""Programs of live events: a service process, and clients that come back to whichever process answers."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from mainspring import Mainspring
from mainspring.service import ServiceSettings, make_service

SOME_KINDS = ("created", "completed", "dead_lettered")  # for clients with a filter
LAST = "last"  # the queue of the job after which a client has seen everything
PAUSE = 0.05  # seconds before a client tries another process
GONE = (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError, TimeoutError)


def serve(folder: str, who: str, port: int) -> None:
    """Serve the API without a worker, until it is killed."""
    del folder, who
    asyncio.run(_serve(port))


async def _serve(port: int) -> None:
    async with Mainspring(os.environ["CHAOS_DATABASE"]) as app:
        service = make_service(app, ServiceSettings(port=port, tokens="optional"))
        config = uvicorn.Config(service, port=port, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        print("serving", flush=True)
        await server.serve()


def follow(folder: str, who: str, ports: list[int], after: str, *, number: int, seed: int) -> None:
    """Run so many clients until each has seen the last job; write down what they have seen."""
    seen = asyncio.run(_follow(ports, after, number, random.Random(seed)))
    (Path(folder) / f"{who}.json").write_text(json.dumps(seen))


async def _follow(ports: list[int], after: str, number: int, rng: random.Random) -> list[list[list[str]]]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        clients = [made(place)(http, ports, after, random.Random(rng.random())) for place in range(number)]
        runs = [asyncio.create_task(client.run()) for client in clients]
        await asyncio.gather(*[client.is_connected.wait() for client in clients])
        print("following", flush=True)
        await asyncio.gather(*runs)
        print(f"{sum(client.visits for client in clients)} connections", flush=True)
    return [client.seen for client in clients]


class Client:
    """Follows events, as a browser does: it comes back with the last id that it has seen."""

    kinds: Sequence[str] = ()  # empty: all events

    def __init__(self, http: aiohttp.ClientSession, ports: list[int], after: str, rng: random.Random) -> None:
        self.http, self.ports, self.place, self.rng = http, ports, after, rng
        self.seen: list[list[str]] = []  # id, kind and job of each change
        self.visits = 0
        self.is_connected = asyncio.Event()  # for the first time
        self.is_done = False

    async def run(self) -> None:
        while not self.is_done:
            try:
                await self.visit(self.rng.choice(self.ports))
            except GONE:
                await asyncio.sleep(self.rng.uniform(0, PAUSE))

    async def visit(self, port: int) -> None:
        headers, query = {"last-event-id": self.place}, [("kind", kind) for kind in self.kinds]
        async with self.http.get(f"http://127.0.0.1:{port}/v1/events", headers=headers, params=query) as response:
            response.raise_for_status()
            self.connected()
            while not self.is_done:
                self.take(await next_frame(response.content))

    def connected(self) -> None:
        self.visits += 1
        self.is_connected.set()

    def take(self, frame: dict[str, Any]) -> None:
        """Note a frame. A frame counts as soon as it is complete."""
        if frame.get("event") not in {None, "hello", "end", "keep_alive"}:
            data = frame["data"]
            self.seen.append([data.get("id", ""), frame["event"], str(data.get("job_id"))])
            self.is_done = data.get("queue") == LAST
        self.place = frame.get("id") or self.place


class Choosy(Client):
    """Follows the events of some kinds."""

    kinds = SOME_KINDS


class SocketClient(Client):
    """Follows events over a WebSocket."""

    async def visit(self, port: int) -> None:
        asked = {"subscribe": "events", "since": self.place, "filter": {"kind": list(self.kinds)}}
        async with self.http.ws_connect(f"http://127.0.0.1:{port}/v1/events/ws") as socket:
            await socket.send_json(asked)
            while not self.is_done:
                message = await socket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:  # closed, or cut off
                    raise ConnectionError
                frame = json.loads(message.data)
                if frame["event"] == "error":  # such as that the service stops
                    raise ConnectionError
                if frame["event"] == "hello":
                    self.connected()
                self.take(frame)


class ChoosySocketClient(SocketClient):
    kinds = SOME_KINDS


def made(place: int) -> type[Client]:
    """Return how the client at this place follows the events."""
    return (Client, Choosy, SocketClient, ChoosySocketClient)[place % 4]


async def next_frame(content: aiohttp.StreamReader) -> dict[str, Any]:
    frame: dict[str, Any] = {}
    while (line := await content.readline()) != b"\n":
        if not line.endswith(b"\n"):  # the process was killed while it sent this
            raise ConnectionError
        name, _, value = line.decode().rstrip().partition(": ")
        frame[name] = json.loads(value) if name == "data" else value
    return frame
