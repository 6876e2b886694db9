"""The command line on a DynamoDB table."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from examples.dynamodb_server import REGION
from mainspring.stores.dynamodb.client import Client, TableMissing
from tests.cli.conftest import Run
from tests.dynamodb import endpoint, fresh_name

pytestmark = pytest.mark.slow  # a real server


@pytest.fixture
def url() -> Iterator[str]:
    name = fresh_name()
    yield f"dynamodb://{name}?region={REGION}&endpoint={endpoint()}&shards=4"

    async def remove() -> None:
        client = Client(REGION, endpoint())
        with suppress(TableMissing):
            await client.call("DeleteTable", {"TableName": name})
        await client.close()

    asyncio.run(remove())


def described(url: str, operation: str) -> dict[str, object]:
    async def ask() -> dict[str, object]:
        client = Client(REGION, endpoint())
        try:
            return await client.call(operation, {"TableName": url.removeprefix("dynamodb://").partition("?")[0]})
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.skipif("MAINSPRING_TEST_DYNAMODB" in os.environ, reason="DynamoDB Local keeps no backups")
def test_it_makes_the_table_once_and_says_so(run: Run, url: str) -> None:
    first = run("migrate", "--store", url, "--recovery")
    assert first.code == 0, first.err
    assert [line.partition(" ")[0] for line in first.out.splitlines()] == [
        "ran",
        "ran",
        "ran",
        "ran",
        url.partition("&s")[0],
    ]
    assert first.out.endswith("is now at version 1\n")
    again = run("migrate", "--store", url, "--json").data
    assert (again["migrated"], again["version"]) == ([], 1)
    assert "'ENABLED'" in str(described(url, "DescribeTimeToLive"))
    assert "'PointInTimeRecoveryStatus': 'ENABLED'" in str(described(url, "DescribeContinuousBackups"))


def test_units_are_provisioned_for_the_table_and_its_indexes(run: Run, url: str) -> None:
    assert run("migrate", "--store", url, "--read-units", "7", "--write-units", "9").code == 0
    table = described(url, "DescribeTable")["Table"]
    assert isinstance(table, dict)
    units = [index["ProvisionedThroughput"] for index in (table, *table["GlobalSecondaryIndexes"])]
    assert [(unit["ReadCapacityUnits"], unit["WriteCapacityUnits"]) for unit in units] == [(7, 9)] * 3


def test_a_table_that_is_not_there_is_missed(run: Run, url: str) -> None:
    outcome = run("stats", "--store", url)
    assert outcome.code == 4
    assert "mainspring migrate" in outcome.err


def test_a_table_with_another_number_of_shards_is_not_misread(run: Run, url: str) -> None:
    run("migrate", "--store", url)
    outcome = run("stats", "--store", url.replace("shards=4", "shards=8"))
    assert outcome.code == 2
    assert "has 4 shards, not 8" in outcome.err
    assert run("stats", "--store", url.replace("&shards=4", "")).code == 0


def test_stats_and_doctor_look_at_the_table(run: Run, url: str) -> None:
    run("migrate", "--store", url)
    assert run("stats", "--store", url, "--json").data["estimated"] is True
    doctor = run("doctor", "--store", url)
    assert doctor.code == 0, doctor.out
    assert "4 shards" in doctor.out
    assert run("doctor", "--store", url, "--repair").code == 0


@pytest.mark.parametrize("form", ["cloudformation", "terraform"])
def test_a_template_is_printed_and_nothing_is_made(run: Run, url: str, form: str) -> None:
    outcome = run("migrate", "--store", url, "--print", form, "--recovery")
    assert outcome.code == 0
    template = json.loads(outcome.out)
    assert ("Resources" if form == "cloudformation" else "resource") in template
    for word in ("places", "targets", "PAY_PER_REQUEST", '"ttl"', "INCLUDE", "KEYS_ONLY"):
        assert word in outcome.out
    with pytest.raises(TableMissing):
        described(url, "DescribeTable")


def test_reads_and_writes_are_provisioned_together(run: Run, url: str) -> None:
    outcome = run("migrate", "--store", url, "--read-units", "7")
    assert outcome.code == 2
    assert "or for neither" in outcome.err


def test_other_stores_have_no_such_options(run: Run, tmp_path: object) -> None:
    outcome = run("migrate", "--store", f"sqlite:///{tmp_path}/jobs.db", "--print", "terraform")
    assert outcome.code == 2
    assert "DynamoDB" in outcome.err
