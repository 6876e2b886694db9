"""The table itself: created by `mainspring migrate`, or by other tools from the template that it prints."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from mainspring.errors import ConfigurationError, StoreTooNew, StoreUnavailable
from mainspring.stores.dynamodb.client import Client, ConditionFailed, TableMissing
from mainspring.stores.dynamodb.items import PLACES, TARGETS, key
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


def definition(name: str, settings: TableSettings) -> dict[str, Any]:
    throughput: dict[str, Any] = {}
    if settings.read_units and settings.write_units:
        units = {"ReadCapacityUnits": settings.read_units, "WriteCapacityUnits": settings.write_units}
        throughput = {"ProvisionedThroughput": units}
    indexes = [
        index(
            PLACES, "place", "rank", {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["job_type", "timeout", "token"]}
        ),
        index(TARGETS, "target", "SK", {"ProjectionType": "KEYS_ONLY"}),
    ]
    return {
        "TableName": name,
        "BillingMode": "PROVISIONED" if throughput else "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in ("PK", "SK", "place", "rank", "target")
        ],
        "KeySchema": schema_of("PK", "SK"),
        "GlobalSecondaryIndexes": [index | throughput for index in indexes],
        **throughput,
    }


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
    done: list[str] = []
    found = await describe(table.client, table.name)
    if found is None:
        await table.client.call("CreateTable", definition(table.name, settings))
        done.append(f"create table {table.name}")
    await wait_until_active(table)
    if settings.expiry and not await expires(table):
        wanted = {"AttributeName": "ttl", "Enabled": True}
        await table.call("UpdateTimeToLive", {"TimeToLiveSpecification": wanted})
        done.append("let the service delete what has expired")
    if settings.recovery and not await recoverable(table):
        wanted = {"PointInTimeRecoveryEnabled": True}
        await table.call("UpdateContinuousBackups", {"PointInTimeRecoverySpecification": wanted})
        done.append("point-in-time recovery")
    if await about(table) is None:
        await introduce(table, shards)
        done.append(f"{shards} shards")
    return done


async def wait_until_active(table: Table) -> None:
    for _ in range(round(READY_TIMEOUT)):
        found = await describe(table.client, table.name)
        if found is not None and found["TableStatus"] == "ACTIVE":
            states = {index.get("IndexStatus", "ACTIVE") for index in found.get("GlobalSecondaryIndexes", ())}
            if states == {"ACTIVE"}:
                return
            if not states:
                msg = f"table {table.name!r} does not have Mainspring's indexes; use another name"
                raise ConfigurationError(msg)
        await asyncio.sleep(1.0)
    msg = f"table {table.name} is still being created; try again in a minute"
    raise StoreUnavailable(msg)


async def expires(table: Table) -> bool:
    answer = await table.call("DescribeTimeToLive", {})
    return str(answer["TimeToLiveDescription"].get("TimeToLiveStatus", "")) in {"ENABLED", "ENABLING"}


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
    return found


async def introduce(table: Table, shards: int) -> dict[str, Any]:
    """Write the table's version and number of shards. That number never changes: it says where each job is."""
    words = {"PK": "system", "SK": "table", "version": VERSION, "shards": shards}
    try:
        await table.put(put(words, [absent("PK")]))
    except ConditionFailed as failed:  # another program was faster
        return unpack(failed.item or {})
    return words


async def shards_of(table: Table, wanted: int | None) -> int:
    """Return the table's number of shards. A new table gets the number that is wanted."""
    found = await about(table)
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


# -- templates for users that may not create tables -------------------------------------------------------


def cloudformation(name: str, settings: TableSettings) -> str:
    made = definition(name, settings)
    made["TimeToLiveSpecification"] = {"AttributeName": "ttl", "Enabled": settings.expiry}
    made["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": settings.recovery}
    resource = {"Type": "AWS::DynamoDB::Table", "DeletionPolicy": "Retain", "Properties": made}
    template = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"MainspringTable": resource}}
    return json.dumps(template, indent=2)


def terraform(name: str, settings: TableSettings) -> str:
    """Return Terraform's JSON syntax: save it as mainspring.tf.json."""
    made = definition(name, settings)
    units: dict[str, int] = {}
    if settings.read_units and settings.write_units:
        units = {"read_capacity": settings.read_units, "write_capacity": settings.write_units}
    resource = {
        "name": name,
        "billing_mode": made["BillingMode"],
        "hash_key": "PK",
        "range_key": "SK",
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
        "ttl": {"attribute_name": "ttl", "enabled": settings.expiry},
        "point_in_time_recovery": {"enabled": settings.recovery},
        "lifecycle": {"prevent_destroy": True},
        **units,
    }
    return json.dumps({"resource": {"aws_dynamodb_table": {"mainspring": resource}}}, indent=2)


TEMPLATES = {"cloudformation": cloudformation, "terraform": terraform}
