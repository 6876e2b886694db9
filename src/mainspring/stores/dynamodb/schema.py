"""The table itself: created by `mainspring migrate`, or by other tools from the template that it prints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mainspring.errors import ConfigurationError, StoreError, StoreTooNew, StoreUnavailable
from mainspring.stores.dynamodb.client import Client, ConditionFailed, TableExists, TableMissing
from mainspring.stores.dynamodb.items import PLACES, TARGETS, key
from mainspring.stores.dynamodb.layout import OWN_TABLE, Layout
from mainspring.stores.dynamodb.table import Table
from mainspring.stores.dynamodb.values import absent, put, unpack

VERSION = 1
DEFAULT_SHARDS = 16
MAX_SHARDS = 999
READY_TIMEOUT = 120.0  # seconds
ABOUT = key("system", "table")


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How to create the table."""

    read_units: int | None = None  # provisioned, for the table and each index; None: on demand
    write_units: int | None = None
    recovery: bool = False  # point-in-time recovery for the last 35 days
    expiry: bool = True  # the service deletes expired items


def definition(name: str, settings: TableSettings, layout: Layout = OWN_TABLE) -> dict[str, Any]:
    throughput = throughput_of(settings)
    return {
        "TableName": name,
        "BillingMode": "PROVISIONED" if throughput else "PAY_PER_REQUEST",
        "AttributeDefinitions": texts([layout.partition, layout.sort, *index_keys(layout)]),
        "KeySchema": schema_of(layout.partition, layout.sort),
        "GlobalSecondaryIndexes": [index | throughput for index in indexes(layout)],
        **throughput,
    }


def throughput_of(settings: TableSettings) -> dict[str, Any]:
    if not (settings.read_units and settings.write_units):
        return {}
    units = {"ReadCapacityUnits": settings.read_units, "WriteCapacityUnits": settings.write_units}
    return {"ProvisionedThroughput": units}


def indexes(layout: Layout) -> list[dict[str, Any]]:
    names, called = layout.names, layout.indexes
    shown = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["job_type", "timeout", "token"]}
    return [
        index(called.get(PLACES, PLACES), names.get("place", "place"), names.get("rank", "rank"), shown),
        index(
            called.get(TARGETS, TARGETS), names.get("target", "target"), layout.sort, {"ProjectionType": "KEYS_ONLY"}
        ),
    ]


def index_keys(layout: Layout) -> list[str]:
    return [layout.names.get(name, name) for name in ("place", "rank", "target")]


def texts(names: Iterable[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def index(name: str, partition: str, sort: str, projection: dict[str, Any]) -> dict[str, Any]:
    return {"IndexName": name, "KeySchema": schema_of(partition, sort), "Projection": projection}


def schema_of(partition: str, sort: str) -> list[dict[str, str]]:
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


# -- creating it ----------------------------------------------------------------------------------------


async def describe(client: Client, name: str) -> dict[str, Any] | None:
    try:
        answer = await client.call("DescribeTable", {"TableName": name})
    except TableMissing:
        return None
    table: dict[str, Any] = answer["Table"]
    return table


async def migrate(table: Table, settings: TableSettings, shards: int) -> list[str]:
    """Create what is missing and return the names of what was done."""
    done = await create(table, settings)
    found = await wait_until_active(table)
    if not done:
        refuse_other_keys(table, found)
        done += await add_indexes(table, settings, found)
        await wait_until_active(table)
    is_new = await about(table) is None
    if is_new:
        await introduce(table, shards)
    done += await let_expire(table, settings)
    if settings.recovery and not await recoverable(table):
        wanted = {"PointInTimeRecoveryEnabled": True}
        await table.call("UpdateContinuousBackups", {"PointInTimeRecoverySpecification": wanted})
        done.append("point-in-time recovery")
    return [*done, f"{shards} shards"] if is_new else done


async def create(table: Table, settings: TableSettings) -> list[str]:
    """Create the table if it does not exist. Another process may do so meanwhile, or the answer may be lost."""
    if await describe(table.client, table.name) is not None:
        return []
    try:
        await table.client.call("CreateTable", definition(table.name, settings, table.layout))
    except TableExists:
        return []
    return [f"create table {table.name}"]


async def add_indexes(table: Table, settings: TableSettings, found: Mapping[str, Any]) -> list[str]:
    """Add Mainspring's indexes to a table that exists. The service adds one at a time; the table stays usable."""
    if (lacking := missing_indexes(table.layout, found)) and not table.layout.prefix:
        msg = (
            f"table {table.name!r} exists and does not have Mainspring's indexes, so other data may be in it. "
            f"Use another name, or share the table: dynamodb://{table.name}?prefix=mainspring/"
        )
        raise ConfigurationError(msg)
    on_demand = found.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    throughput = {} if on_demand else throughput_of(settings) or throughput_like(found)
    for wanted in lacking:
        await wait_until_active(table)
        await table.client.call("UpdateTable", index_addition(table, wanted | throughput))
    return [f"add index {wanted['IndexName']}" for wanted in lacking]


def throughput_like(found: Mapping[str, Any]) -> dict[str, Any]:
    """Give a new index of a provisioned table the table's own capacity."""
    units = found.get("ProvisionedThroughput", {})
    names = ("ReadCapacityUnits", "WriteCapacityUnits")
    given = {name: units[name] for name in names if units.get(name)}
    return {"ProvisionedThroughput": given} if len(given) == len(names) else {}


def index_addition(table: Table, wanted: dict[str, Any]) -> dict[str, Any]:
    keys = [key["AttributeName"] for key in wanted["KeySchema"]]
    return {
        "TableName": table.name,
        "AttributeDefinitions": texts(keys),
        "GlobalSecondaryIndexUpdates": [{"Create": wanted}],
    }


def missing_indexes(layout: Layout, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    there = {index["IndexName"] for index in found.get("GlobalSecondaryIndexes") or ()}
    return [wanted for wanted in indexes(layout) if wanted["IndexName"] not in there]


def refuse_other_keys(table: Table, found: Mapping[str, Any]) -> None:
    """Refuse a table whose keys are not the ones that the URL names. Keys of a table cannot be changed."""
    layout = table.layout
    types = {definition["AttributeName"]: definition["AttributeType"] for definition in found["AttributeDefinitions"]}
    keys = [f"{key['AttributeName']} ({types[key['AttributeName']]})" for key in found["KeySchema"]]
    if keys != [f"{layout.partition} (S)", f"{layout.sort} (S)"]:
        msg = (
            f"table {table.name!r} has the keys {', '.join(keys)}; Mainspring needs a partition key and a sort key of "
            f"type S (text), and expects {layout.partition} and {layout.sort}. "
            "If both are texts with other names, write prefix=mainspring/&keys=partition,sort into the URL; "
            "otherwise use another table"
        )
        raise ConfigurationError(msg)


async def wait_until_active(table: Table) -> dict[str, Any]:
    """Return the description of the table and its indexes once they can be used."""
    for _ in range(round(READY_TIMEOUT)):
        found = await describe(table.client, table.name)
        if found is not None and found["TableStatus"] == "ACTIVE":
            states = {index.get("IndexStatus", "ACTIVE") for index in found.get("GlobalSecondaryIndexes") or ()}
            if states <= {"ACTIVE"}:
                return found
        await asyncio.sleep(1.0)
    msg = f"table {table.name} or one of its indexes is still being created; run `mainspring migrate` again later"
    raise StoreUnavailable(msg)


# -- expiry -----------------------------------------------------------------------------------------------


async def let_expire(table: Table, settings: TableSettings) -> list[str]:
    """Let the service delete expired items, unless it does already: a table has one attribute for this."""
    if not settings.expiry or await expiry_attribute(table) is not None:
        return []
    wanted = {"AttributeName": table.layout.expiry, "Enabled": True}
    await table.call("UpdateTimeToLive", {"TimeToLiveSpecification": wanted})
    return ["let the service delete what has expired"]


async def expires(table: Table) -> bool:
    """Return whether the service deletes Mainspring's expired items."""
    return await expiry_attribute(table) == table.layout.expiry


async def expiry_attribute(table: Table) -> str | None:
    """Return the attribute by which the service deletes items of the table, if it does."""
    answer = (await table.call("DescribeTimeToLive", {}))["TimeToLiveDescription"]
    on = str(answer.get("TimeToLiveStatus", "")) in {"ENABLED", "ENABLING"}
    return str(answer["AttributeName"]) if on and "AttributeName" in answer else None


async def recoverable(table: Table) -> bool:
    answer = await table.call("DescribeContinuousBackups", {})
    state = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription") or {}
    return bool(state.get("PointInTimeRecoveryStatus") == "ENABLED")


# -- the item that describes it ---------------------------------------------------------------------------


async def about(table: Table) -> dict[str, Any] | None:
    found = await table.get(ABOUT)
    if found is not None and found["version"] > VERSION:
        msg = f"table {table.name} has version {found['version']}; this program knows {VERSION}. Upgrade it."
        raise StoreTooNew(msg)
    if found is not None and "expiry" in found:
        table.lay_out(table.layout.expiring_by(found["expiry"]))
    return found


async def introduce(table: Table, shards: int) -> dict[str, Any]:
    """Write the version and number of shards. That number never changes: it says where each job is.

    In a shared table, also write by which attribute items expire.
    """
    words = {"PK": "system", "SK": "table", "version": VERSION, "shards": shards}
    if table.layout.prefix:
        table.lay_out(table.layout.expiring_by(await shared_expiry(table)))
        words["expiry"] = table.layout.expiry
    try:
        await table.put(put(words, [absent("PK")]))
    except ConditionFailed as failed:  # another program was faster
        return await about(table) or unpack(failed.item or {})
    return words


async def shared_expiry(table: Table) -> str:
    """Return the attribute by which items of a shared table expire. One that the other owner has chosen stays."""
    theirs = None if table.prunes else await expiry_attribute(table)
    return theirs or table.layout.expiry


async def shards_of(table: Table, wanted: int | None) -> int:
    """Return the number of shards. A new table gets the number that is wanted."""
    found = await known_or_checked(table)
    if found is None:
        found = await introduce(table, wanted or DEFAULT_SHARDS)
    shards = int(found["shards"])
    if wanted is not None and wanted != shards:
        msg = (
            f"table {table.name} has {shards} shards, not {wanted}. Leave shards= out of the URL; for another number "
            "make a new table and copy the jobs"
        )
        raise ConfigurationError(msg)
    return shards


async def known_or_checked(table: Table) -> dict[str, Any] | None:
    """Return what the table says of itself. If it says nothing, check that Mainspring can work in it."""
    try:
        found = await about(table)
    except TableMissing:
        raise
    except StoreError:  # perhaps the request was refused because the table has other keys
        await refuse_unfit(table)
        raise
    if found is None:
        await refuse_unfit(table)
    return found


async def refuse_unfit(table: Table) -> None:
    """Refuse a table that exists and lacks what Mainspring needs. A program that may not ask cannot check."""
    with suppress(StoreError):
        if (found := await describe(table.client, table.name)) is not None:
            refuse_other_keys(table, found)
            refuse_missing_indexes(table, found)


def refuse_missing_indexes(table: Table, found: Mapping[str, Any]) -> None:
    lacking = missing_indexes(table.layout, found)
    if lacking:
        described = "; ".join(map(index_in_words, lacking))
        msg = (
            f"table {table.name!r} lacks {described}. Run `mainspring migrate` with the same URL, which adds what is "
            "missing to a table that is shared (prefix=…) and leaves the rest as it is"
        )
        raise ConfigurationError(msg)


def index_in_words(wanted: Mapping[str, Any]) -> str:
    partition, sort = (key["AttributeName"] for key in wanted["KeySchema"])
    projection = ", ".join(wanted["Projection"].get("NonKeyAttributes", ())) or "keys only"
    return f"the index {wanted['IndexName']} ({partition}, {sort}; projection: {projection})"


# -- templates for users that may not create tables -------------------------------------------------------


def advice(layout: Layout) -> str:
    """Return what to do with the template of a shared table. CloudFormation allows 1,024 bytes."""
    keys = ", ".join(index_keys(layout))
    return (
        f"Mainspring's keys in this table begin with {layout.prefix} . If the table exists already, do not create it "
        f"again: add the attribute definitions {keys} and the two indexes to the template that owns the table. Keep "
        "that template's expiry (TTL) if it has one; Mainspring then uses the same attribute."
    )


def cloudformation(name: str, settings: TableSettings, layout: Layout = OWN_TABLE) -> str:
    made = definition(name, settings, layout)
    made["TimeToLiveSpecification"] = {"AttributeName": layout.expiry, "Enabled": settings.expiry}
    made["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": settings.recovery}
    resource = {"Type": "AWS::DynamoDB::Table", "DeletionPolicy": "Retain", "Properties": made}
    template = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"MainspringTable": resource}}
    if layout.prefix:
        template["Description"] = advice(layout)
    return json.dumps(template, indent=2)


def terraform(name: str, settings: TableSettings, layout: Layout = OWN_TABLE) -> str:
    """Return Terraform's JSON syntax: save it as mainspring.tf.json."""
    made = definition(name, settings, layout)
    units: dict[str, int] = {}
    if settings.read_units and settings.write_units:
        units = {"read_capacity": settings.read_units, "write_capacity": settings.write_units}
    resource = {
        **({"//": advice(layout)} if layout.prefix else {}),
        "name": name,
        "billing_mode": made["BillingMode"],
        "hash_key": layout.partition,
        "range_key": layout.sort,
        "attribute": [{"name": attribute["AttributeName"], "type": "S"} for attribute in made["AttributeDefinitions"]],
        "global_secondary_index": [
            {
                "name": index["IndexName"],
                "hash_key": index["KeySchema"][0]["AttributeName"],
                "range_key": index["KeySchema"][1]["AttributeName"],
                "projection_type": index["Projection"]["ProjectionType"],
                **({"non_key_attributes": keys} if (keys := index["Projection"].get("NonKeyAttributes")) else {}),
                **units,
            }
            for index in made["GlobalSecondaryIndexes"]
        ],
        "ttl": {"attribute_name": layout.expiry, "enabled": settings.expiry},
        "point_in_time_recovery": {"enabled": settings.recovery},
        "lifecycle": {"prevent_destroy": True},
        **units,
    }
    return json.dumps({"resource": {"aws_dynamodb_table": {"mainspring": resource}}}, indent=2)


TEMPLATES = {"cloudformation": cloudformation, "terraform": terraform}
