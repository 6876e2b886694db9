"""A DynamoDB server for the tests: started when first asked for, ended with the process that started it."""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

from examples.dynamodb_server import REGION, set_keys, start
from mainspring.errors import StoreError
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.dynamodb.client import Client
from mainspring.stores.dynamodb.schema import definition
from tests.dynamodb_rules import StrictClient

numbers = itertools.count()

set_keys()


@cache
def endpoint() -> str:
    """Of the server that MAINSPRING_TEST_DYNAMODB names, or of one that is ours."""
    named = os.environ.get("MAINSPRING_TEST_DYNAMODB")
    return named or start()


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
            await self._create()
        await super().open()

    async def _create(self) -> None:
        """Create the table. The client repeats a call whose answer is late, and then the table exists: it is ours."""
        try:
            await self.client.call("CreateTable", definition(self.table.name, self.table_settings, self.table.layout))
        except StoreError as error:
            if "ResourceInUseException" not in str(error):
                raise

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
