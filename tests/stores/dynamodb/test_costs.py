"""What a job costs, as docs/dynamodb.md says it.

Write units are what the server reports. In transactions the two servers differ, and neither is right. Amazon's own,
DynamoDB Local, counts twice what is written to an index, too, and it is believed; but of items that cost the same it
counts one (seen with 3.3.0). Every item of a transaction costs at least two units, so it can be told what is missing.
Read units follow from the requests by the service's rules: half a unit for a page of an index, a unit for an item that
is read consistently; local servers report other things.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mainspring.job import UNTIL_WOKEN, Claim, Move, Save, Status, Step, end_of
from tests.conformance.scenario import claim, claim_one, end, join, new_job, put, running
from tests.dynamodb import FreshStore

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "dynamodb.md").read_text("utf-8")
SOURCE = ROOT / "src" / "mainspring" / "stores" / "dynamodb"
ROW = re.compile(r"^\| (?P<step>[a-z ]+) \| (?P<writes>\d+) \| (?P<reads>[\d.]+)(?P<per>[^|]*) \|$", re.MULTILINE)
DOCUMENTED = {found["step"]: found for found in ROW.finditer(PAGE)}
SHARDS = 4
AMAZONS = "MAINSPRING_TEST_DYNAMODB" in os.environ


class Meter:
    """Adds up the units of what a store asks for."""

    def __init__(self, store: FreshStore) -> None:
        self._store = store
        self._call = store.client.call
        self.units: Counter[str] = Counter()

    async def of(self, work: Awaitable[T]) -> T:
        self.units.clear()
        self._store.client.call = self._metered  # type: ignore[method-assign]
        self._store.table.counts._flushed_at = float("inf")  # counts are written once a second, whatever is done
        self._store.table.recording_read_at = float("inf")  # so is whether changes are recorded read once a second
        try:
            return await work
        finally:
            self._store.client.call = self._call  # type: ignore[method-assign]

    async def _metered(self, operation: str, request: Any) -> dict[str, Any]:
        answer = await self._call(operation, {**request, "ReturnConsumedCapacity": "INDEXES"})
        if operation in {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}:
            given = answer["ConsumedCapacity"]
            for consumed in given if isinstance(given, list) else [given]:
                self.units["write"] += consumed["CapacityUnits"]
                if operation == "TransactWriteItems":
                    self.units["write"] += left_out(consumed, len(request["TransactItems"]))
        elif operation == "GetItem":
            self.units["read"] += 1 if request["ConsistentRead"] else 0.5  # type: ignore[assignment]
        elif operation == "BatchGetItem":
            self.units["read"] += sum(len(wanted["Keys"]) for wanted in request["RequestItems"].values())
        else:
            assert operation == "Query"
            self.units["read"] += 0.5 if "IndexName" in request else 1  # type: ignore[assignment]
        return answer

    def shows(self, step: str) -> None:
        row = DOCUMENTED[step]
        per = float(row["per"].removeprefix(" + ").partition(" ")[0]) * SHARDS if "shard" in row["per"] else 0.0
        assert self.units["read"] == float(row["reads"]) + per, step
        assert self.units["write"] == float(row["writes"]), step


def left_out(reported: dict[str, Any], items: int) -> int:
    """Units of a transaction of small items that the server does not tell of."""
    if not AMAZONS:
        return sum(int(index["CapacityUnits"]) for index in reported.get("GlobalSecondaryIndexes", {}).values())
    counted = int(reported["Table"]["CapacityUnits"]) // 2
    assert counted in {1, items}, "some cost the same, and others do not"
    return int(reported["CapacityUnits"]) * (items // counted - 1)


@pytest.fixture
async def store() -> Any:
    store = FreshStore(shards=SHARDS)
    await store.open()
    await join(store, "w1")
    await end(store, await running(store), Move.DONE)  # what is written down once is written down
    yield store
    await store.close()


@pytest.mark.slow
async def test_a_plain_job_costs_what_the_page_says(store: FreshStore) -> None:
    meter = Meter(store)
    await meter.of(put(store))
    meter.shows("enqueue")
    held = await meter.of(claim_one(store))
    meter.shows("claim")
    await meter.of(end(store, held, Move.DONE))
    meter.shows("done")
    assert sum(int(DOCUMENTED[step]["writes"]) for step in ("enqueue", "claim", "done")) == 7
    assert "**7 write units**" in PAGE


@pytest.mark.slow
async def test_other_steps_cost_what_the_page_says(store: FreshStore) -> None:
    meter = Meter(store)
    await meter.of(claim(store))
    meter.shows("look that finds nothing")
    await meter.of(put(store, target=("guest", "7")))
    meter.shows("enqueue with a target")
    await end(store, await claim_one(store), Move.DONE)
    await meter.of(put(store, dedupe_key="k"))
    meter.shows("enqueue with a dedupe key")
    held = await claim_one(store)
    await meter.of(end(store, held, Move.DONE))
    meter.shows("done with a dedupe key")
    held = await running(store)
    await meter.of(end(store, held, Move.RETRY))
    meter.shows("a failed attempt")
    held = await claim_one(store)
    await meter.of(store.heartbeat("w1", {held.id: held.token}))
    assert meter.units == {"write": 1, "read": 1}
    store.table.lease = 60  # less than half of it is left
    await meter.of(store.heartbeat("w1", {held.id: held.token}))
    assert meter.units == {"write": 2, "read": 1}


@pytest.mark.slow
async def test_durable_functions_cost_what_the_page_says(store: FreshStore) -> None:
    meter = Meter(store)

    async def suspend(held: Claim, step: str, **fields: Any) -> None:
        assert await meter.of(end(store, held, Move.SUSPEND, **fields)) is Status.SUSPENDED
        meter.shows(step)

    held = await running(store)
    await meter.of(store.save([Save(held.id, held.token, (Step("fetch", 1, output="7"),), ref=held.ref)]))
    meter.shows("save a step")
    await suspend(held, "sleep", delay=0)
    held = await meter.of(claim_one(store))
    meter.shows("claim")
    await suspend(held, "sleep with a step", delay=0, steps=(Step("nap", 2, "sleep"),))
    held = await claim_one(store)
    await meter.of(store.steps(held.id))
    meter.shows("read the steps")
    await suspend(held, "wait for a key", waits_for="bell", delay=UNTIL_WOKEN)
    assert await meter.of(store.wake({"bell": 1})) == {"bell": 1}
    meter.shows("wake")
    await suspend(await claim_one(store), "wait for a key or a time", waits_for="bell", delay=60_000)
    await store.wake({"bell": 1})
    await meter.of(end(store, await claim_one(store), Move.DONE))
    meter.shows("done with steps")
    child = await put(store)
    await suspend(await claim_one(store), "sleep", delay=0)
    parent = await running(store, priority=0)
    await suspend(parent, "wait for the end of a job", waits_for=end_of(child), delay=UNTIL_WOKEN)
    await meter.of(end(store, await claim_one(store), Move.DONE))
    meter.shows("done with another that waits for it")
    await meter.of(put(store, waits_for="bell"))
    meter.shows("enqueue that waits for a key")


@pytest.mark.slow
async def test_a_batch_request_costs_what_its_jobs_cost(store: FreshStore) -> None:
    """In a batch request each statement is a write of its own; what it saves is calls."""
    before = store.client.tally["calls"]
    await store.insert([new_job() for _ in range(50)])
    held = await claim(store, 50)
    assert len(held) == 50
    assert store.client.tally["calls"] - before < 30


# -- the other figures on the page ------------------------------------------------------------------------


def test_the_policy_names_what_is_called_and_nothing_else() -> None:
    code = "".join(path.read_text("utf-8") for path in sorted(SOURCE.glob("*.py")))
    operations = r'"(GetItem|BatchGetItem|Query|Scan|PutItem|UpdateItem|DeleteItem|BatchWriteItem|DescribeTimeToLive)",'
    called = set(re.findall(operations, code))
    if '"BatchExecuteStatement"' in code:
        called |= {"PartiQLInsert", "PartiQLUpdate"}
    assert set(re.findall(r'"dynamodb:(\w+)"', PAGE)) == called


def test_the_plan_for_fifty_thousand_adds_up() -> None:
    rate, shards = 50_000, 256
    assert f"7 × 50,000 = {7 * rate:,}/s" in PAGE
    assert f"3 × 50,000 / {shards} = {3 * rate / shards:.0f} units/s" in PAGE
    assert f"{2 * rate / shards:.0f} in each of the index's" in PAGE
    assert 3 * rate / shards < 1000
    assert round(7 * 0.625, 1) == 4.4
    assert f"about {round(7 * rate * 86_400 * 0.625e-6, -3):,.0f} USD a day" in PAGE


@pytest.mark.parametrize("poll", [1, 2, 5, 10, 30, 60])
def test_the_cost_of_an_idle_worker_adds_up(poll: int) -> None:
    (row,) = re.findall(
        rf"^\| {poll}(?: \(default\))? \| [^|]+ \| ([\d.]+) million \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    reads = (1 + 16 * 0.5) * 86_400 * 30 / poll
    assert row == (f"{reads / 1e6:.1f}", f"{reads * 0.125e-6:.2f}")
