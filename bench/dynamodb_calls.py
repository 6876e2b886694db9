"""One client's calls, for dynamodb_clients.py: run by the client's own Python."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

TABLE = "bench-clients"
DEFINITION: dict[str, Any] = {
    "TableName": TABLE,
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
    "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
}
KEY = {"PK": {"S": "job#001"}, "SK": {"S": "0193a3c2-7b1e-7d7e-9d3e-0123456789ab"}}
ITEM: dict[str, Any] = {
    **KEY, "job_type": {"S": "greet"}, "queue": {"S": "default"}, "status": {"S": "pending"}, "priority": {"N": "2"},
    "payload": {"S": '{"guest": "Ada"}'}, "scheduled_for": {"S": "2026-01-01T00:00:00.000Z"}, "attempts": {"N": "0"},
}  # fmt: skip
PLAIN = {name: int(value["N"]) if "N" in value else value["S"] for name, value in ITEM.items()}
Call = Callable[[], Awaitable[Any]]


async def many(call: Call, calls: int, at_once: int) -> float:
    """Milliseconds of CPU per call."""

    async def some() -> None:
        for _ in range(calls // at_once):
            await call()

    await some()
    began = time.process_time()
    await asyncio.gather(*(some() for _ in range(at_once)))
    return (time.process_time() - began) * 1000 / (calls // at_once * at_once)


async def ours(endpoint: str, calls: int, at_once: int) -> dict[str, float]:
    from mainspring.stores.dynamodb.client import Client

    client = Client("eu-central-1", endpoint)
    try:
        await client.call("CreateTable", DEFINITION)
    except Exception as error:
        print(error, file=sys.stderr)
    get = await many(lambda: client.call("GetItem", {"TableName": TABLE, "Key": KEY}), calls, at_once)
    put = await many(lambda: client.call("PutItem", {"TableName": TABLE, "Item": ITEM}), calls, at_once)
    await client.close()
    return {"get": get, "put": put}


async def aiobotocore(endpoint: str, calls: int, at_once: int) -> dict[str, float]:
    from aiobotocore.session import get_session  # type: ignore[import-not-found]

    session = get_session()
    async with session.create_client("dynamodb", region_name="eu-central-1", endpoint_url=endpoint) as client:
        get = await many(lambda: client.get_item(TableName=TABLE, Key=KEY), calls, at_once)
        put = await many(lambda: client.put_item(TableName=TABLE, Item=ITEM), calls, at_once)
    return {"get": get, "put": put}


async def aiodynamo(endpoint: str, calls: int, at_once: int) -> dict[str, float]:
    from aiodynamo.client import Client  # type: ignore[import-not-found]
    from aiodynamo.credentials import Credentials  # type: ignore[import-not-found]
    from aiodynamo.http.aiohttp import AIOHTTP  # type: ignore[import-not-found]
    from aiohttp import ClientSession
    from yarl import URL

    async with ClientSession() as session:
        client = Client(AIOHTTP(session), Credentials.auto(), "eu-central-1", endpoint=URL(endpoint))
        table = client.table(TABLE)
        key = {name: PLAIN[name] for name in KEY}
        put = await many(lambda: table.put_item(PLAIN), calls, at_once)
        get = await many(lambda: table.get_item(key), calls, at_once)
    return {"get": get, "put": put}


async def boto3(endpoint: str, calls: int, at_once: int) -> dict[str, float]:
    """Blocking, in one thread: for comparison."""
    import boto3 as library  # type: ignore[import-not-found]

    client = library.client("dynamodb", region_name="eu-central-1", endpoint_url=endpoint)

    async def get() -> None:
        client.get_item(TableName=TABLE, Key=KEY)

    async def put() -> None:
        client.put_item(TableName=TABLE, Item=ITEM)

    del at_once
    return {"get": await many(get, calls, 1), "put": await many(put, calls, 1)}


CLIENTS = {"ours": ours, "aiobotocore": aiobotocore, "aiodynamo": aiodynamo, "boto3": boto3}

if __name__ == "__main__":
    name, endpoint, calls, at_once = sys.argv[1:]
    print(json.dumps(asyncio.run(CLIENTS[name](endpoint, int(calls), int(at_once)))))
