"""A table that Mainspring shares with other data, and with other applications of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring.copying import Copy
from mainspring.errors import ConfigurationError, Failure
from mainspring.job import Move, Outcome, Status
from mainspring.stores.documents import Bundle, By, Key, Write
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.dynamodb.items import ATTRIBUTE_NAMES
from mainspring.stores.dynamodb.layout import OWN_EXPIRY, SHARED_NAMES, Layout, Translator, shared
from mainspring.stores.dynamodb.schema import TableSettings
from mainspring.stores.protocol import Action, Filter, Severity
from mainspring.stores.records import Kind
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, claim_one, end, join, look, put, put_many, running
from tests.conformance.transfer import all_of, fill
from tests.dynamodb import FOREIGN_ITEMS, SharedStore, client, fresh_name

slow = pytest.mark.slow  # a real server
BY = By(actor="ana", reason="by hand")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[SharedStore]:
    store = SharedStore(clock=clock)
    await store.open()
    yield store
    await store.close()


def in_order(items: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True) for item in items)


async def all_items(store: DynamoStore) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client().call("Scan", {"TableName": store.table.name}))["Items"]
    return items


async def be_busy(store: DynamoStore, clock: ManualClock) -> None:
    """Use every kind of item: jobs in every status, keys, steps, documents, halts, counts."""
    await join(store, "w1")
    await fill(store, clock)
    await put_many(store, 30, queue="many", target=("user", "7"))
    held = await running(store, queue="x", dedupe_key="once", timeout=1000)
    await end(store, held, Move.RETRY, failure=Failure("OSError", "bad", "Traceback"), delay=1)
    await store.write([Bundle((Write(Key("theirs", "", "x"), "{}", "1", due_at=clock.now()),))])
    running_jobs = [record for record in await all_of(store, Kind.LIVE) if record["status"] == Status.RUNNING]
    await store.ack([Outcome(record["id"], record["token"], Move.RELEASE) for record in running_jobs])
    await store.reap()


# -- other data ---------------------------------------------------------------------------------------------


@slow
async def test_items_of_the_other_owner_stay_as_they_are(store: SharedStore, clock: ManualClock) -> None:
    before = in_order(await store.foreign_items())
    assert before == in_order(FOREIGN_ITEMS)
    await be_busy(store, clock)
    target = SharedStore(clock=clock)
    await target.open()
    await Copy(store, target, history=True, skip_conflicts=True).run()
    assert in_order(await target.foreign_items()) == before
    await target.close()
    for action in (Action.CANCEL, Action.DELETE):
        await store.change(action, Filter(), BY)
    clock.advance(400 * 86_400)
    while await store.prune():
        pass
    await store.repair()
    assert await store.count(Filter()) == 0
    assert in_order(await store.foreign_items()) == before


@slow
async def test_mainspring_does_not_see_items_of_the_other_owner(store: SharedStore) -> None:
    assert await store.count(Filter()) == 0
    assert await store.halts() == []
    assert await store.audit() == []
    assert (await store.stats()).queues == []
    await join(store, "w1")
    assert await claim(store, 10, queue="default") == []
    assert dict(await store.sizes()) == dict.fromkeys(await store.sizes(), 0)


@slow
async def test_every_key_carries_the_prefix_and_every_attribute_is_known(
    store: SharedStore, clock: ManualClock
) -> None:
    await be_busy(store, clock)
    theirs = in_order(FOREIGN_ITEMS)
    ours = [item for item in await all_items(store) if json.dumps(item, sort_keys=True) not in theirs]
    assert len({item["pk"]["S"].partition("#")[0] for item in ours}) > 8
    for item in ours:
        keys = [item[name]["S"] for name in ("pk", "mainspring_place", "mainspring_target") if name in item]
        assert all(key.startswith("mainspring/") for key in keys)
        names = {name for name in item if not name.startswith("pause#")}
        assert names <= ATTRIBUTE_NAMES - SHARED_NAMES.keys() | {"pk", "sk", OWN_EXPIRY, *SHARED_NAMES.values()}


@slow
async def test_two_applications_in_one_table_do_not_see_each_other(store: SharedStore, clock: ManualClock) -> None:
    other = DynamoStore(
        store.table.name, client=client(), clock=clock, shards=3, prune=True, prefix="mainspring-3/", keys="pk,sk"
    )
    await other.open()
    await join(store, "w1")
    await join(other, "w1")
    mine, theirs = await put(store, dedupe_key="k"), await put(other, dedupe_key="k")
    assert [job.id for job in (await store.find(Filter())).jobs] == [mine]
    assert await other.get([mine]) == []
    held = await claim_one(store)
    assert held.id == mine
    assert (await look(other, theirs)).status is Status.PENDING
    await end(store, held, Move.DONE)
    await store.change(Action.DELETE, Filter(), BY)
    assert await other.count(Filter()) == 1
    await other.close()


# -- preparing a table that exists --------------------------------------------------------------------------


async def make_table(*keys: str, kind: str = "S", ttl: str | None = None) -> str:
    name = fresh_name()
    roles = zip(keys, ("HASH", "RANGE"), strict=False)
    await client().call("CreateTable", {
        "TableName": name, "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": kind} for key in keys],
        "KeySchema": [{"AttributeName": key, "KeyType": role} for key, role in roles],
    })  # fmt: skip
    if ttl:
        wanted = {"AttributeName": ttl, "Enabled": True}
        await client().call("UpdateTimeToLive", {"TableName": name, "TimeToLiveSpecification": wanted})
    return name


def sharing(name: str, **settings: Any) -> DynamoStore:
    return DynamoStore(name, **{"client": client(), "shards": 2, "prefix": "mainspring/", **settings})


async def severities(store: DynamoStore) -> dict[str, Severity]:
    """Return what a diagnosis says of the table; setbacks depend on how busy the machine is."""
    return {finding.check: finding.severity for finding in await store.diagnose() if finding.check != "setbacks"}


@slow
@pytest.mark.parametrize("theirs", [None, "expires"])
async def test_migrate_adds_what_an_existing_table_lacks_and_keeps_its_expiry(theirs: str | None) -> None:
    name = await make_table("PK", "SK", ttl=theirs)
    store = sharing(name)
    with pytest.raises(ConfigurationError, match=r"lacks the index mainspring_places \(mainspring_place, .*migrate"):
        await store.open()
    done = await store.migrate()
    assert done[:2] == ["add index mainspring_places", "add index mainspring_targets"]
    assert ("let the service delete what has expired" in done) is (theirs is None)
    assert await store.migrate() == []
    await join(store, "w1")
    await end(store, await running(store, keep=1000), Move.DONE)
    (job,) = [item for item in await all_items(store) if item["PK"]["S"].startswith("mainspring/job#")]
    assert (theirs or OWN_EXPIRY) in job
    assert await severities(store) == {"table": Severity.OK, "expiry": Severity.OK}
    await client().call("DeleteTable", {"TableName": name})


@slow
async def test_processes_that_migrate_at_once_create_one_table() -> None:
    name = fresh_name()
    done = await asyncio.gather(*(sharing(name).migrate() for _ in range(4)))
    assert [f"create table {name}" in steps for steps in done].count(True) == 1
    await sharing(name).open()
    await client().call("DeleteTable", {"TableName": name})


@slow
async def test_a_table_without_the_indexes_is_not_changed_without_a_prefix() -> None:
    name = await make_table("PK", "SK")
    with pytest.raises(ConfigurationError, match=r"share the table: dynamodb://.*\?prefix=mainspring/"):
        await sharing(name, prefix=None).migrate()
    await client().call("DeleteTable", {"TableName": name})


@slow
@pytest.mark.parametrize(("keys", "kind"), [(("id",), "S"), (("pk", "sk"), "S"), (("PK", "SK"), "N")])
async def test_a_table_with_other_keys_is_refused_and_the_error_says_what_is_needed(
    keys: tuple[str, ...], kind: str
) -> None:
    name = await make_table(*keys, kind=kind)
    for step in ("migrate", "open"):
        with pytest.raises(ConfigurationError, match=r"needs a partition key and a sort key of type S \(text\)"):
            await getattr(sharing(name), step)()
    await client().call("DeleteTable", {"TableName": name})


@slow
async def test_an_expiry_by_an_attribute_that_jobs_have_is_refused_with_a_way_out() -> None:
    name = await make_table("PK", "SK", ttl="expires_at")
    with pytest.raises(ConfigurationError, match="expires_at as well; write prune=on"):
        await sharing(name).migrate()
    assert "2 shards" in await sharing(name, prune=True).migrate()
    await client().call("DeleteTable", {"TableName": name})


@slow
async def test_an_expiry_that_is_changed_later_is_reported(store: SharedStore) -> None:
    store.table.prunes = False
    wanted = {"AttributeName": "elsewhere", "Enabled": True}
    await store.table.call("UpdateTimeToLive", {"TimeToLiveSpecification": wanted})
    assert await severities(store) == {"table": Severity.OK, "expiry": Severity.WARNING}


def test_the_template_of_a_shared_table_says_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    store = DynamoStore("jobs", region="eu-central-1", prefix="app/", keys="pk,sk", table_settings=TableSettings())
    for form in ("cloudformation", "terraform"):
        text = store.template(form)
        assert "do not create it again" in text
        for word in ("mainspring_places", "mainspring_target", '"pk"', '"sk"', OWN_EXPIRY, "begin with app/"):
            assert word in text
    assert len(json.loads(store.template("cloudformation"))["Description"]) < 1024


# -- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/", "app", "a b/", "a/b/", "a#b#", "x" * 64 + "/", "é/"])
def test_a_prefix_that_another_could_begin_with_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"one / or #.*prefix=mainspring/"):
        shared(prefix)


@pytest.mark.parametrize("keys", ["", "pk", "pk,", "pk,pk", "a,b,c"])
def test_keys_must_name_two_attributes(keys: str) -> None:
    with pytest.raises(ConfigurationError, match="keys=pk,sk"):
        shared("app/", keys)


def test_keys_with_names_of_other_attributes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="use status as well; use a table with other keys"):
        shared("app/", "status,sk")


def test_keys_need_a_prefix() -> None:
    with pytest.raises(ConfigurationError, match="also give a prefix"):
        DynamoStore("jobs", region="x", keys="pk,sk")


# -- translating --------------------------------------------------------------------------------------------

MESSAGES: list[dict[str, Any]] = [
    {"Key": {"PK": {"S": "a"}, "SK": {"S": "b"}}, "Item": {"PK": {"S": "a"}, "place": {"S": "p"}, "ttl": {"N": "1"}}},
    {"RequestItems": {"t": {"Keys": [{"PK": {"S": "a"}}], "ExpressionAttributeNames": {"#n0": "SK"}}}},
    {"UnprocessedItems": {"t": [{"DeleteRequest": {"Key": {"PK": {"S": "a"}}}}]}},
    {"Responses": {"t": [{"PK": {"S": "a"}}]}},
    {"Responses": [{"Item": {"target": {"S": "a"}}}, {"Error": {"Code": "x", "Item": {"PK": {"S": "a"}}}}]},
    {"TransactItems": [{"Put": {"Item": {"PK": {"S": "a"}, "rank": {"S": "r"}}}}], "ClientRequestToken": "x"},
    {"ExpressionAttributeValues": {":k0": {"S": "a"}, ":v1": {"S": "a"}}, "LastEvaluatedKey": {"PK": {"S": "a"}}},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: next(iter(message)))
def test_a_translated_message_is_translated_back(message: dict[str, Any]) -> None:
    translator = Translator(Layout("app/", "pk", "sk", "gone_at"))
    there = translator.outgoing.translate(message)
    assert there != message
    assert '"PK"' not in json.dumps(there)
    assert translator.incoming.translate(there) == message


def test_only_values_that_are_compared_with_keys_get_the_prefix() -> None:
    translator = Translator(Layout("app/"))
    values = {":k0": {"S": "job#1"}, ":v1": {"S": "job#1"}}
    translated = translator.outgoing.translate({"ExpressionAttributeValues": values})
    assert translated["ExpressionAttributeValues"] == {":k0": {"S": "app/job#1"}, ":v1": {"S": "job#1"}}
