"""A DynamoDB server for the tests: started when first asked for, ended with the process that started it."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import subprocess
import sys
import time
from functools import cache
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.dynamodb.client import Client
from mainspring.stores.dynamodb.schema import definition
from tests.dynamodb_rules import StrictClient

START_WITHIN = 60.0  # seconds
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}  # a local server believes any
WATCHDOG = """
import os, signal, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "ministack"], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: sys.stdin.close())
try:
    sys.stdin.read()  # until the process that started us ends, in whichever way
except (OSError, ValueError):
    pass
server.terminate()
server.wait()
"""
numbers = itertools.count()

for name, value in KEYS.items():
    os.environ.setdefault(name, value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def endpoint() -> str:
    """Of the server that MAINSPRING_TEST_DYNAMODB names, or of one that is ours."""
    named = os.environ.get("MAINSPRING_TEST_DYNAMODB")
    return named or start()


def start() -> str:
    port = free_port()
    settings = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "dynamodb", "LOG_LEVEL": "ERROR"}
    watchdog = subprocess.Popen(
        [sys.executable, "-c", WATCHDOG],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(stop, watchdog)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + START_WITHIN
    while True:
        try:
            urlopen(f"{url}/_ministack/health", timeout=2).close()  # noqa: S310 - ours
        except (URLError, OSError):
            if watchdog.poll() is not None or time.monotonic() > end:
                raise RuntimeError("ministack did not start") from None
            time.sleep(0.05)
        else:
            return url


def stop(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait()


def fresh_name() -> str:
    """A table that no other test uses."""
    return f"test-{os.getpid()}-{next(numbers)}"


@cache
def client() -> Client:
    """To look for credentials costs more than most tests do."""
    return StrictClient(REGION, endpoint())


class FreshStore(DynamoStore):
    """In a table of its own, which goes with it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(fresh_name(), **{"client": client(), "shards": 2, "prune": True, **settings})
        self.table.recording_age = 0.0  # other stores of the test must not be waited for

    async def open(self) -> None:
        if not self._is_open:
            await self.client.call("CreateTable", definition(self.table.name, self.table_settings, self.table.layout))
        await super().open()

    async def close(self) -> None:
        await self.table.finish()
        await self.client.call("DeleteTable", {"TableName": self.table.name})
        self.table.counts.take()
        await super().close()


FOREIGN_ITEMS: list[dict[str, Any]] = [
    {"pk": {"S": "USER#7"}, "sk": {"S": "PROFILE"}, "name": {"S": "Zoë"}, "status": {"S": "pending"}},
    # what Mainspring itself would write without a prefix
    {
        "pk": {"S": "job#000"}, "sk": {"S": "019b77a4-0000-7000-8000-000000000000"}, "status": {"S": "pending"},
        "queue": {"S": "default"}, "job_type": {"S": "t"}, "place": {"S": "wait#default#000"},
        "rank": {"S": "0#2020-01-01T00:00:00.000Z#x"}, "ttl": {"N": "1"},
        "expires_at": {"S": "2020-01-01T00:00:00.000Z"},
    },
    {"pk": {"S": "system"}, "sk": {"S": "table"}, "version": {"N": "99"}, "shards": {"N": "7"}},
    {"pk": {"S": "queues"}, "sk": {"S": "theirs"}},
    {"pk": {"S": "audit"}, "sk": {"S": "2020-01-01T00:00:00.000Z#x#halt"}, "at": {"S": "2020"}},
    {"pk": {"S": "halts#00"}, "sk": {"S": "halts"}, "halt": {"M": {"actor": {"S": "them"}}}},
    {"pk": {"S": "collections"}, "sk": {"S": "theirs"}, "score": {"N": "1.5"}, "blob": {"B": "AAEC"}},
    # with names that Mainspring's own indexes would have, in other types
    {"pk": {"S": "GAME#1"}, "sk": {"S": "SCORE"}, "rank": {"N": "3"}, "place": {"N": "1"},
     "target": {"SS": ["a", "b"]}},
    # another application's, whose prefix begins like ours
    {"pk": {"S": "mainspring-2/job#000"}, "sk": {"S": "x"}, "mainspring_place": {"S": "mainspring-2/wait#default#000"},
     "mainspring_rank": {"S": "0#2020-01-01T00:00:00.000Z#x"}},
]  # fmt: skip


class SharedStore(FreshStore):
    """In a table of somebody else's design, with items that Mainspring must not touch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"prefix": "mainspring/", "keys": "pk,sk", **settings})

    async def open(self) -> None:
        is_new = not self._is_open
        await super().open()
        if is_new:
            requests = [{"PutRequest": {"Item": item}} for item in FOREIGN_ITEMS]
            await self.client.call("BatchWriteItem", {"RequestItems": {self.table.name: requests}})

    async def foreign_items(self) -> list[dict[str, Any]]:
        """Return all items of the table that are not ours."""
        found = (await self.client.call("Scan", {"TableName": self.table.name, "ConsistentRead": True}))["Items"]
        return [item for item in found if not item["pk"]["S"].startswith("mainspring/")]
