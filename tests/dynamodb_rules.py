"""What the service refuses and the tests' server may let pass: one item twice in one call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mainspring.stores.dynamodb.client import Client

Request = Mapping[str, Any]
Named = tuple[str, str, str]  # table, PK, SK
KEYS = (("PK", "SK"), ("pk", "sk"))  # the names of the keys in the tests' tables


class StrictClient(Client):
    """For all tests, so that such a bug is found without the service."""

    async def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        if operation in NAMED:
            times = Counter(NAMED[operation](json.loads(body)))
            if twice := [item for item, number in times.items() if number > 1]:
                message = f"{operation} names an item more than once: {twice[0]}"
                return 400, json.dumps({"__type": "x#ValidationException", "message": message}).encode()
        return await super()._send(operation, body)


def _of_batch_write(request: Request) -> Iterator[Named]:
    for table, requests in request["RequestItems"].items():
        for write in requests:
            yield _named(table, write["PutRequest"]["Item"] if "PutRequest" in write else write["DeleteRequest"]["Key"])


def _of_batch_get(request: Request) -> Iterator[Named]:
    for table, wanted in request["RequestItems"].items():
        for key in wanted["Keys"]:
            yield _named(table, key)


def _of_transaction(request: Request) -> Iterator[Named]:
    for action in request["TransactItems"]:
        ((kind, write),) = action.items()
        yield _named(write["TableName"], write["Item"] if kind == "Put" else write["Key"])


def _of_statements(request: Request) -> Iterator[Named]:
    for statement in request["Statements"]:
        text = statement["Statement"]
        table = text.split('"')[1]
        place = "'{}': ?" if text.startswith("INSERT") else '"{}" = ?'
        names = next(names for names in KEYS if place.format(names[0]) in text)
        before = [text[: text.index(place.format(name))].count("?") for name in names]
        first, second = (statement["Parameters"][number]["S"] for number in before)
        yield table, first, second


def _named(table: str, item: Mapping[str, Any]) -> Named:
    partition, sort = next(names for names in KEYS if names[0] in item)
    return table, item[partition]["S"], item[sort]["S"]


NAMED: Mapping[str, Callable[[Request], Iterator[Named]]] = {
    "BatchWriteItem": _of_batch_write,
    "BatchGetItem": _of_batch_get,
    "TransactWriteItems": _of_transaction,
    "BatchExecuteStatement": _of_statements,
}
