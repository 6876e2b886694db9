"""DynamoDB at its worst, as one process sees it: slow, forgetful, and with transactions that appear item by item.

The tests' server runs one request after the other. The real service promises less: a write may be held up on its way,
an answer may get lost, and a read that is not a transaction may see some items of a transaction before the others.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from mainspring.errors import StoreUnavailable
from mainspring.stores.dynamodb import changes
from mainspring.stores.dynamodb.client import Client, Setback
from mainspring.stores.dynamodb.journal import JOURNAL
from mainspring.stores.dynamodb.table import Action
from mainspring.stores.postgres import changes as postgres

LATE, LOST, TORN = 0.1, 0.03, 0.1  # shares of: writes that are held up, answers that get lost, items that are not seen
PAUSED = 0.3  # share of writes before which a process that dawdles is paused
Answer = dict[str, Any]


def make_unreliable(rng: random.Random, hold: float, late: float = LATE) -> None:
    """Trouble all calls of this process. Some transactions (`late`) are held up, for up to `hold` seconds."""
    send = Client._send

    async def troubled(client: Client, operation: str, body: bytes) -> tuple[int, bytes]:
        is_transaction = operation == "TransactWriteItems"
        if is_transaction and rng.random() < late:
            await asyncio.sleep(rng.uniform(0, hold))
        status, text = await send(client, operation, body)
        if is_transaction and rng.random() < LOST:
            raise Setback("network", StoreUnavailable("the answer got lost"))
        tear = TEARS.get(operation)
        if tear is None or status != 200 or not FEED.search(body):
            return status, text
        return status, json.dumps(tear(json.loads(text), body, rng)).encode()

    Client._send = troubled  # type: ignore[method-assign, assignment]


def make_late(rng: random.Random, hold: float) -> None:
    """Hold up some writes of this process that record nothing, for up to `hold` seconds."""
    send = Client._send

    async def late(client: Client, operation: str, body: bytes) -> tuple[int, bytes]:
        if operation in PLAIN_WRITES and b'"job#' in body and rng.random() < PAUSED:
            await asyncio.sleep(rng.uniform(0, hold))
        return await send(client, operation, body)

    Client._send = late  # type: ignore[method-assign, assignment]


PLAIN_WRITES = {"PutItem", "UpdateItem", "BatchExecuteStatement"}


def without_last_changes(answer: Answer, _: bytes, rng: random.Random) -> Answer:
    """Show some jobs as they were before their last recorded change; a new job is not seen at all."""
    tables = answer["Responses"]
    for table, items in tables.items():
        tables[table] = [shown for item in items if (shown := maybe_older(item, rng)) is not None]
    return answer


def maybe_older(item: Mapping[str, Any], rng: random.Random) -> Mapping[str, Any] | None:
    lines = item[JOURNAL]["L"] if JOURNAL in item else []
    if not lines or rng.random() > TORN:
        return item
    _, _, kind, *_ = json.loads(lines[-1]["S"])
    return None if kind == "created" else {**item, JOURNAL: {"L": lines[:-1]}}


def without_some_items(answer: Answer, body: bytes, rng: random.Random) -> Answer:
    """Leave out some hints, or items of the log. What the query names as its bound, the reader has seen before."""
    answer["Items"] = [
        item for item in answer["Items"] if rng.random() > TORN or item["SK"]["S"].encode() in body
    ]  # fmt: skip
    return answer


TEARS = {"BatchGetItem": without_last_changes, "Query": without_some_items}
FEED = re.compile(rb'"journal"|"hints#|{"S":"feed"}')  # journals, hints and the log


# -- guards of the feed, to be removed ----------------------------------------------------------------------


def forget_conditions(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes one or more writes, without their conditions."""

    def unconditional(action: Action) -> Action:
        kind, request = action
        values = request.get("ExpressionAttributeValues", {})
        used = {name: value for name, value in values.items() if name in request.get("UpdateExpression", "")}
        kept = {name: value for name, value in request.items() if name not in CONDITIONS}
        return kind, {**kept, **({"ExpressionAttributeValues": used} if used else {})}

    def made(*given: Any) -> Any:
        actions = write(*given)
        return [unconditional(action) for action in actions] if isinstance(actions, list) else unconditional(actions)

    return made


CONDITIONS = {"ConditionExpression", "ReturnValuesOnConditionCheckFailure", "ExpressionAttributeValues"}


OPEN_BEFORE = "txid = ANY(%(late)s::xid8[])"


def remove_guard(name: str) -> None:
    """Take out one of the guards that keep the feed whole."""
    match name:
        case "journal":  # a journal is taken only if it has not grown since it was read
            changes.taken = forget_conditions(changes.taken)
        case "number":  # a number of the log is given once
            changes.log_items = forget_conditions(changes.log_items)
        case "hint":  # a hint whose change is not seen yet stays
            changes.HINT_PATIENCE = -3_600_000
        case "snapshot":  # of PostgreSQL: transactions that were open at the last read are looked for
            postgres.SINCE = postgres.SINCE.replace(OPEN_BEFORE, f"{OPEN_BEFORE} AND false")
