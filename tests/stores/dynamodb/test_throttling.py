"""Throttling can be seen: in numbers, in the log, as events and in the health, each time once and not per call."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.events import StoreThrottled, ThrottlingOver
from mainspring.health import State
from mainspring.job import Move, Status
from mainspring.stores.dynamodb.throttling import QUIET_PERIOD, Throttling
from mainspring.stores.protocol import Measured
from tests.conformance.scenario import claim, end, join, new_job, outcome, put_many, running
from tests.dynamodb import FreshStore
from tests.stores.dynamodb.conftest import client_of
from tests.stores.dynamodb.faults import Fault, once
from tests.worker.working import eventually, fields_of, record, working


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_its_beginning_and_its_end_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    seconds = Seconds()
    throttling = Throttling(seconds)
    throttling.passed()
    assert not throttling.now
    for _ in range(50):
        throttling.met("PutItem", "slow down")
        seconds.now += 1
        throttling.passed()
        assert throttling.now
    assert len(fields_of(caplog, "dynamodb_throttled")) == 1
    seconds.now += QUIET_PERIOD - 1
    throttling.passed()
    throttling.passed()
    assert not throttling.now
    (over,) = fields_of(caplog, "dynamodb_throttling_over")
    assert (over["lasted"], over["refused"]) == (49.0, 50)
    throttling.met("PutItem", "slow down")
    assert len(fields_of(caplog, "dynamodb_throttled")) == 2


@pytest.mark.slow
async def test_what_was_met_with_is_counted(store: FreshStore) -> None:
    assert isinstance(store, Measured)
    await join(store, "w1")
    held = await running(store)
    before = store.measures()
    assert (before["throttled"], before["conflicts"], before["waited_seconds"]) == (0, 0, 0)
    client_of(store).plan = once(Fault.THROTTLED, "PutItem", 3)
    await store.insert([new_job()])
    client_of(store).plan = once(Fault.CONFLICT, "TransactWriteItems", 2)
    assert await end(store, held, Move.RETRY) is Status.RETRYING
    client_of(store).plan = once(Fault.BROKEN, "GetItem")
    await store.halts()
    after = (await store.stats()).measures
    assert {name: after[name] - before[name] for name in ("throttled", "conflicts", "server_errors")} == {
        "throttled": 3, "conflicts": 2, "server_errors": 1,
    }  # fmt: skip
    assert after["calls"] - before["calls"] > 6
    assert after["waited_seconds"] > 0
    assert after["throttling"] == 1


@pytest.mark.slow
async def test_throttled_statements_of_a_batch_request_are_counted(store: FreshStore) -> None:
    await join(store, "w1")
    await put_many(store, 4)
    held = await claim(store)
    whole = client_of(store).call

    async def in_part(operation: str, request: Any) -> dict[str, Any]:
        if operation != "BatchExecuteStatement":
            return await whole(operation, request)
        answer = await whole(operation, {"Statements": request["Statements"][2:]})
        return {"Responses": [{"Error": {"Code": "ThrottlingError", "Message": "…"}}] * 2 + answer["Responses"]}

    store.client.call = in_part  # type: ignore[method-assign]
    assert await store.ack([outcome(one, Move.DONE) for one in held]) == [Status.COMPLETED] * 4
    assert store.measures()["unprocessed"] == 2
    assert store.measures()["throttling"] == 1


@pytest.mark.slow
async def test_a_worker_that_is_throttled_says_so_and_when_it_is_over(
    store: FreshStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    seconds = Seconds()
    client_of(store).throttling = Throttling(seconds)
    app = Mainspring(store)
    events = record(app, StoreThrottled, ThrottlingOver)

    @app.task()
    async def greet() -> None:
        pass

    async with working(app):
        assert (await app.health()).problems == ()
        client_of(store).plan = once(Fault.THROTTLED, "PutItem", 2)
        await greet.enqueue()
        await eventually(lambda: events)
        health = await app.health()
        assert health.state is State.DEGRADED
        assert "throttles this process: 2 of" in health.problems[0]
        assert health.measures["throttled"] == 2
        seconds.now += QUIET_PERIOD
        await eventually(lambda: len(events) == 2)
        assert (await app.health()).state is State.OK
    assert [type(event) for event in events] == [StoreThrottled, ThrottlingOver]
    assert events[-1].measures["throttled"] == 2
    assert len(fields_of(caplog, "dynamodb_throttled")) == len(fields_of(caplog, "dynamodb_throttling_over")) == 1
