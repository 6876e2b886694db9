"""How the rate grows with the shards: `python -m bench.dynamodb_shards`.

DynamoDB gives each partition 1,000 write and 3,000 read units per second, and refuses what is more. A proxy does the
same here, in front of a local server: every partition key of the table, and every one of the index, is a partition of
its own. Four programs enqueue, claim and end jobs of under 1 KB as fast as they are let, in the names of twelve workers
each.

Time is that of a loop whose clock stands still while the server or this machine works (standing.py), so that neither
is the limit. What takes time is what would take it there: each call a few milliseconds, and what is refused its pause.
The limits are scaled down, the same for all, only so that a run ends soon: at 1/50, 6 jobs/s stand for 300.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import aiohttp
from aiohttp import web

from bench.standing import here, run
from mainspring.errors import StoreUnavailable
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Outcome
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.dynamodb.client import Client
from mainspring.stores.protocol import Want, WorkerInfo

WRITES, READS = 1000.0, 3000.0  # units per partition and second
PROGRAMS, WORKERS = 4, 12  # workers in each
DISTANCE = 0.005  # seconds that a call takes there
IDLE = 0.25  # seconds between looks in vain: long, as limits that are scaled down make all longer
BURST = 1.0  # seconds' worth; the service keeps up to 300, which would only take longer to use up
WARM_UP = 3.0  # seconds
SHARDS = (1, 4, 16, 64)
Charge = tuple[str, str, float]  # write or read, the partition, units


def now() -> float:
    return asyncio.get_running_loop().time()


class Bucket:
    """Units that come in at a steady rate. Some of what is not used is kept for a burst, as the service does it."""

    def __init__(self, rate: float) -> None:
        self._rate, self._units, self._at = rate, rate, now()

    def has(self, units: float) -> bool:
        saved = self._units + (now() - self._at) * self._rate
        self._units, self._at = min(BURST * self._rate, saved), now()
        return self._units >= units

    def take(self, units: float) -> None:
        self._units -= units


class Proxy:
    def __init__(self, server: str, scale: float) -> None:
        self._server = server
        self._buckets: defaultdict[tuple[str, str], Bucket] = defaultdict(lambda: Bucket(0))
        self._rates = {"write": WRITES * scale, "read": READS * scale}
        self._session: aiohttp.ClientSession | None = None
        self.refused: Counter[str] = Counter()

    async def start(self) -> str:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200))
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        assert self._session is not None
        await self._session.close()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        asked = json.loads(body)
        operation = request.headers["x-amz-target"].rpartition(".")[2]
        if operation == "BatchExecuteStatement":
            return await self._answer_batch(request, asked)
        if not self._allow(list(charges(operation, asked))):
            problem = {"__type": "x#ProvisionedThroughputExceededException", "message": "scaled down"}
            return web.json_response(problem, status=400)
        return await self._forward(request, body)

    async def _answer_batch(self, request: web.Request, asked: dict[str, Any]) -> web.Response:
        """Each statement for itself, as the service does it."""
        allowed = [self._allow(list(charges_of(statement))) for statement in asked["Statements"]]
        passed = [statement for statement, good in zip(asked["Statements"], allowed, strict=True) if good]
        answers: list[Any] = []
        if passed:
            response = await self._forward(request, json.dumps({**asked, "Statements": passed}).encode())
            if response.status != 200 or response.body is None:
                return response
            assert isinstance(response.body, bytes)
            answers = json.loads(response.body)["Responses"]
        refused = {"Error": {"Code": "ProvisionedThroughputExceeded", "Message": "scaled down"}}
        both = iter(answers)
        return web.json_response({"Responses": [next(both) if good else refused for good in allowed]})

    def _allow(self, wanted: list[Charge]) -> bool:
        total: Counter[tuple[str, str]] = Counter()
        for kind, partition, units in wanted:
            total[kind, partition] += units  # type: ignore[assignment]
        for (kind, partition), units in total.items():
            if (kind, partition) not in self._buckets:
                self._buckets[kind, partition] = Bucket(self._rates[kind])
            if not self._buckets[kind, partition].has(min(units, self._rates[kind])):
                self.refused[f"{kind} {partition.partition('#')[0]}"] += 1
                return False
        for place, units in total.items():
            self._buckets[place].take(units)
        return True

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        names = ("content-type", "x-amz-target", "x-amz-date", "authorization")
        headers = {name: request.headers[name] for name in names}
        assert self._session is not None
        async with self._session.post(self._server, data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")


def charges(operation: str, asked: dict[str, Any]) -> Iterator[Charge]:
    """Items here have under 1 KB: a unit each, and one per entry of the index that is written."""
    if operation in {"PutItem", "UpdateItem", "DeleteItem"}:
        item = asked.get("Item") or asked["Key"]
        yield "write", item["PK"]["S"], 1.0
        values = [*item.values(), *asked.get("ExpressionAttributeValues", {}).values()]
        for place in places(values):
            yield "write", place, 1.0
    elif operation == "Query":
        partition = asked["ExpressionAttributeValues"][":v0"]["S"]
        yield "read", partition, 0.5 if "IndexName" in asked else 1.0
    elif operation == "GetItem":
        yield "read", asked["Key"]["PK"]["S"], 1.0
    elif operation == "BatchGetItem":
        for keys in asked["RequestItems"].values():
            yield from (("read", key["PK"]["S"], 1.0) for key in keys["Keys"])
    elif operation == "TransactWriteItems":
        for action in asked["TransactItems"]:
            ((kind, request),) = action.items()
            yield from ((name, place, 2 * units) for name, place, units in charges(f"{kind}Item", request))


def charges_of(statement: dict[str, Any]) -> Iterator[Charge]:
    values = statement["Parameters"]
    yield from (("write", value["S"], 1.0) for value in values if value.get("S", "").startswith("job#"))
    yield from (("write", place, 1.0) for place in places(values))


def places(values: Any) -> Iterator[str]:
    for value in values:
        text = value.get("S", "")
        if text.startswith(("wait#", "run#")):
            yield text


# -- the load -------------------------------------------------------------------------------------------


class DistantClient(Client):
    """As far away as the service is; all that this machine needs to answer takes no time."""

    async def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        await asyncio.sleep(DISTANCE)
        with here().standing():
            return await super()._send(operation, body)


class Load:
    def __init__(self, table: str, endpoint: str, shards: int) -> None:
        self._batch, self._claim, self._most = min(10, shards), min(10, 4 * shards), max(8, 8 * shards)
        self._loops, self._producers = min(WORKERS, max(1, shards // 2)), max(1, shards // 8)
        self._stores = [
            DynamoStore(table, client=DistantClient("eu-central-1", endpoint, budget=3600.0)) for _ in range(PROGRAMS)
        ]
        self._waiting = 0
        self.done = 0

    async def run(self, seconds: float) -> float:
        """Jobs per second that went all the way."""
        for number, store in enumerate(self._stores):
            for worker in range(WORKERS):
                await store.join(WorkerInfo(f"w{number}-{worker}", "here", 1, ("*",)), lambda _: None)
        for store in self._stores:
            await store.reap()  # they learn of each other
            store.table.counts._flushed_at = float("inf")  # a write per second and process, which is not scaled
            store.table.local_workers.close()
        tasks = [asyncio.create_task(self._enqueue(store)) for store in self._stores * self._producers]
        tasks += [
            asyncio.create_task(self._work(store, number, first))
            for number, store in enumerate(self._stores)
            for first in range(self._loops)
        ]
        await asyncio.sleep(WARM_UP)
        before, began = self.done, here().time()
        await asyncio.sleep(seconds)
        rate = (self.done - before) / (here().time() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return rate

    async def close(self) -> None:
        for store in self._stores:
            store.table.counts.take()
            await store.close()

    async def _enqueue(self, store: DynamoStore) -> None:
        while True:
            if self._waiting >= self._most:
                await asyncio.sleep(IDLE)
                continue
            self._waiting += self._batch
            await store.insert([NewJob(new_id(), "greet", "{}") for _ in range(self._batch)])

    async def _work(self, store: DynamoStore, number: int, first: int) -> None:
        for turn in count(first, self._loops):
            try:
                claims = (await store.claim(f"w{number}-{turn % WORKERS}", [Want("default", self._claim)])).jobs
            except StoreUnavailable:
                continue
            self._waiting -= len(claims)
            if not claims:
                await asyncio.sleep(IDLE)
                continue
            await store.ack([Outcome(claim.id, claim.token, Move.DONE, ref=claim.ref) for claim in claims])
            self.done += len(claims)


async def measure(server: str, shards: int, scale: float, seconds: float) -> tuple[float, Counter[str]]:
    name = f"bench-shards-{shards}-{new_id()[-6:]}"
    maker = DynamoStore(name, client=DistantClient("eu-central-1", server), shards=shards, prune=True)
    await maker.migrate()
    proxy = Proxy(server, scale)
    load = Load(name, await proxy.start(), shards)
    try:
        rate = await load.run(seconds)
    finally:
        await load.close()
        await proxy.stop()
        await maker.client.call("DeleteTable", {"TableName": name})
        await maker.client.close()
    return rate, proxy.refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.02, help="of the service's limits")
    parser.add_argument("--seconds", type=float, default=4.0, help="by the clock that stands still meanwhile")
    parser.add_argument("--shards", type=int, nargs="*", default=SHARDS)
    args = parser.parse_args()
    from tests.dynamodb import endpoint

    server = endpoint()
    print(f"limits at {args.scale:g} of the service's: {WRITES * args.scale:g} writes, {READS * args.scale:g} reads")
    print(f"{'shards':>6} {'jobs/s':>8} {'at full scale':>14}  refused")
    for shards in args.shards:
        rate, refused = run(measure(server, shards, args.scale, args.seconds))
        told = ", ".join(f"{number:,} × {what}" for what, number in refused.most_common(3))
        print(f"{shards:6} {rate:8.1f} {rate / args.scale:14,.0f}  {told}", flush=True)


if __name__ == "__main__":
    main()
