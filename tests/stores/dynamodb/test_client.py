"""Signing, credentials, answers and connections."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials as BotocoreCredentials  # type: ignore[import-untyped]

from examples.dynamodb_server import REGION
from mainspring import Mainspring
from mainspring.errors import ConfigurationError, StoreBusy, StoreError, StoreReadOnly, StoreUnavailable
from mainspring.events import StoreThrottled, ThrottlingOver
from mainspring.health import State
from mainspring.job import Move, Status
from mainspring.stores.dynamodb.client import (
    QUIET_PERIOD,
    Cancelled,
    Client,
    ConditionFailed,
    Setback,
    TableMissing,
    Throttling,
    explain,
)
from mainspring.stores.dynamodb.credentials import Credentials, Keys, Signer
from mainspring.stores.dynamodb.values import attribute, pack, plain, size, unpack
from mainspring.stores.protocol import Measured
from tests.conformance.scenario import claim, end, join, new_job, outcome, put_many, running
from tests.dynamodb import FreshStore, endpoint, fresh_name
from tests.stores.dynamodb.conftest import client_of
from tests.stores.dynamodb.faults import Fault, once
from tests.worker.working import eventually, fields_of, record, working

NOW = datetime(2026, 11, 15, 13, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("session", [None, "a/session+token=="])
@pytest.mark.parametrize("body", [b"{}", '{"name":"Zoë"}'.encode()])
def test_requests_are_signed_as_botocore_signs_them(
    session: str | None, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session)
    host, target = "dynamodb.eu-central-1.amazonaws.com", "DynamoDB_20120810.GetItem"
    ours = Signer("eu-central-1", host).headers(keys, target, body, NOW)
    sent = {"content-type": ours["content-type"], "x-amz-target": target}
    request = AWSRequest("POST", f"https://{host}/", headers=sent, data=body)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))
    SigV4Auth(BotocoreCredentials(keys.access, keys.secret, keys.session), "dynamodb", "eu-central-1").add_auth(request)
    assert ours["authorization"] == request.headers["Authorization"]


def test_a_key_is_derived_anew_with_the_day_and_the_secret() -> None:
    signer = Signer("eu-central-1", "host")
    first = signer.headers(Keys("a", "s"), "t", b"", NOW)["authorization"]
    assert signer.headers(Keys("a", "other"), "t", b"", NOW)["authorization"] != first
    assert signer.headers(Keys("a", "s"), "t", b"", NOW.replace(day=16))["authorization"] != first
    assert signer.headers(Keys("a", "s"), "t", b"", NOW)["authorization"] == first


# -- credentials ------------------------------------------------------------------------------------------


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


async def test_keys_come_from_the_environment(without_keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "T")
    assert await Credentials().keys() == Keys("A", "S", "T")


async def test_keys_come_from_a_profile(without_keys: Path) -> None:
    (without_keys / "credentials").write_text("[shop]\naws_access_key_id = A\naws_secret_access_key = S\n")
    (without_keys / "config").write_text("[profile shop]\nregion = eu-west-3\n")
    found = Credentials("shop")
    assert await found.keys() == Keys("A", "S")
    assert found.region() == "eu-west-3"


async def test_missing_keys_raise_an_error_that_says_what_to_do(without_keys: Path) -> None:
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
        await Credentials().keys()


def test_a_profile_that_is_not_there_is_named(without_keys: Path) -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        Credentials("nobody").region()


async def test_keys_that_end_soon_are_renewed_beside_the_work(without_keys: Path) -> None:
    """The call that notices goes on with the old ones."""
    found = Credentials()
    renewed = threading.Event()

    class Ending:
        count = 0

        def get_frozen_credentials(self) -> Any:
            self.count += 1
            if self.count > 1:
                assert threading.current_thread() is not threading.main_thread()
                renewed.set()
            return BotocoreCredentials(f"A{self.count}", "S")

    found._found = Ending()
    assert (await found.keys()).access == "A1"
    found._look_at = 0.0
    assert (await found.keys()).access == "A1"
    assert await asyncio.to_thread(renewed.wait, 5)
    await asyncio.to_thread(found._renewing.acquire)  # until it has put them in place
    assert (await found.keys()).access == "A2"


# -- what the service says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ProvisionedThroughputExceededException", "throttled"),
        (400, "ThrottlingException", "throttled"),
        (400, "TransactionConflictException", "conflict"),
        (400, "TransactionInProgressException", "conflict"),
        (500, "InternalServerError", "server"),
        (503, "", "server"),
    ],
)
def test_temporary_errors_are_retried(status: int, code: str, kind: str) -> None:
    setback = explain(status, code, {"message": "…"})
    assert isinstance(setback, Setback)
    assert setback.kind == kind
    assert isinstance(setback.final_error, StoreUnavailable)


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("ResourceNotFoundException", TableMissing, "mainspring migrate"),
        ("AccessDeniedException", StoreReadOnly, "may not"),
        ("ValidationException", StoreError, "ValidationException"),
    ],
)
def test_permanent_errors_are_raised_with_an_explanation(code: str, error: type[StoreError], words: str) -> None:
    told = explain(400, code, {"message": "…"})
    assert type(told) is error
    assert words in str(told)


def test_a_condition_is_an_answer_and_brings_the_item() -> None:
    failed = explain(400, "ConditionalCheckFailedException", {"Item": {"SK": {"S": "x"}}})
    assert isinstance(failed, ConditionFailed)
    assert failed.item == {"SK": {"S": "x"}}


def test_a_transaction_that_met_a_condition_and_a_conflict_met_a_condition() -> None:
    reasons = [
        {"Code": "None"},
        {"Code": "ConditionalCheckFailed", "Item": {"n": {"N": "1"}}},
        {"Code": "TransactionConflict"},
    ]
    cancelled = explain(400, "TransactionCanceledException", {"CancellationReasons": reasons})
    assert isinstance(cancelled, Cancelled)
    assert [cancelled.failed(number) for number in range(4)] == [False, True, False, False]
    assert cancelled.item(1) == {"n": {"N": "1"}}
    busy = explain(400, "TransactionCanceledException", {"CancellationReasons": [{"Code": "ThrottlingError"}]})
    assert isinstance(busy, Setback)
    assert isinstance(busy.final_error, StoreBusy)


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", "Zoë", 0, -7, 2**62, 0.25, -1.5e-7, True, False, b"\x00\xff", [1, "a"], {"a": [True]}]
)
def test_values_come_back_as_they_were(value: Any) -> None:
    again = plain(attribute(value))
    assert again == value
    assert type(again) is type(value)


def test_attributes_that_are_none_are_left_out() -> None:
    assert unpack(pack({"a": None, "b": 1})) == {"b": 1}


def test_the_size_is_that_of_names_and_values() -> None:
    assert size({"name": {"S": "Zoë"}}) == 4 + 4
    assert size({"b": {"BOOL": True}, "l": {"L": [{"S": "xx"}]}}) == 2 + (1 + 3 + 3)


# -- connections --------------------------------------------------------------------------------------------


async def test_an_unreachable_server_raises_within_the_budget() -> None:
    client = Client(REGION, "http://127.0.0.1:9", budget=0.2)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="gave no answer"):
        await client.call("ListTables", {})
    assert time.monotonic() - began < 5
    assert client.tally["network"] > 1
    await client.close()


async def test_a_request_whose_time_is_over_does_not_look_up_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up has no time limit. At the end of a program, each further request would wait for one more."""
    client = Client(REGION, "http://db.invalid:8000/")
    await client._credentials.keys()
    looked_up: list[Any] = []

    def look_up(*asked: Any, **_: Any) -> list[Any]:
        looked_up.append(asked)
        return []

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    with pytest.raises(TimeoutError, match="no time is left"):
        client.call_now("UpdateItem", {}, time.monotonic() - 1)
    assert looked_up == []
    await client.close()


@pytest.mark.slow
async def test_each_loop_has_connections_of_its_own() -> None:
    client = Client(REGION, endpoint())
    asked = {"TableName": fresh_name()}

    async def ask() -> None:
        with pytest.raises(StoreError, match="migrate"):
            await client.call("DescribeTable", asked)

    await ask()
    for _ in range(2):
        thread = threading.Thread(target=asyncio.run, args=(ask(),))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert len(client._sessions._by_loop) == 2  # ours and the last thread's: that of the one before was dropped
    await client.close()
    assert client._sessions._by_loop == {}


def test_no_endpoint_is_guessed_from_nonsense() -> None:
    for nonsense in ("localhost:8000", "ftp://host", "http://", "http://host/path"):
        with pytest.raises(ConfigurationError, match="is not an endpoint"):
            Client(REGION, nonsense)


# -- throttling can be seen: in numbers, in the log, as events and in the health, once and not per call -----


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_beginning_and_end_of_throttling_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
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
async def test_throttling_and_conflicts_are_counted(store: FreshStore) -> None:
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
    assert await store.ack([outcome(job, Move.DONE) for job in held]) == [Status.COMPLETED] * 4
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
