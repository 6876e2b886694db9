"""`fields`: lists of jobs with some of their fields."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.service.views import JOB_FIELDS
from tests.service.contract import document
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail

NDJSON, CSV = "application/x-ndjson", "text/csv"
LISTS = ("/v1/jobs", "/v1/dead")


async def jobs_of(client: Client, query: str, path: str = "/v1/jobs") -> Any:
    return (await client.get(f"{path}?{query}"))["jobs"]


@pytest.mark.parametrize("path", LISTS)
async def test_jobs_have_just_the_given_fields_in_their_order(app: Mainspring, client: Client, path: str) -> None:
    (dead,) = await fail(app, 1)
    for query in ("fields=status,id,queue", "fields=status&fields=id&fields=queue", "fields=status,id,id&fields=queue"):
        (job,) = await jobs_of(client, query, path)
        assert list(job.items()) == [("status", "dead_letter"), ("id", dead), ("queue", "default")]


@pytest.mark.parametrize("path", LISTS)
async def test_each_field_is_the_one_of_the_whole_job(app: Mainspring, client: Client, path: str) -> None:
    await fail(app, 1)
    (whole,) = await jobs_of(client, "", path)
    assert tuple(sorted(whole)) == tuple(sorted(JOB_FIELDS))
    for name in JOB_FIELDS:
        assert await jobs_of(client, f"fields={name}", path) == [{name: whole[name]}]
    assert await jobs_of(client, f"fields={','.join(JOB_FIELDS)}", path) == [whole]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("wrong", ["colour", "", "id,", "id, status", "ID", "options", "token"])
async def test_an_unknown_field_is_answered_with_the_known_ones(client: Client, path: str, wrong: str) -> None:
    for headers in ({}, {"accept": NDJSON}, {"accept": CSV}):
        answer = await client.send("GET", f"{path}?fields=id&fields={wrong}", **headers)
        assert (answer.status, answer.data["code"]) == (422, "invalid_request")
        (error,) = answer.data["errors"]
        assert error["parameter"] == "fields"
        assert f"choose from {', '.join(JOB_FIELDS)}" in error["detail"]


async def test_pages_keep_their_fields(app: Mainspring, client: Client) -> None:
    jobs = [(await app.enqueue("greet", {"name": str(number)}, delay=60)).id for number in range(5)]
    path, found = "/v1/jobs?limit=2&descending=false&fields=id&count=true", []
    while path:
        answer = await client.send("GET", path)
        assert answer.data["count"] == {"value": 5, "exact": True}
        found += answer.data["jobs"]
        path = answer.headers["Link"].partition("<")[2].partition(">")[0] if "Link" in answer.headers else ""
    assert found == [{"id": job} for job in jobs]


async def test_a_field_without_secrets_does_not_need_the_search_for_them(app: Mainspring, client: Client) -> None:
    secret = "S3cr3t-of-Ada"
    await app.enqueue("sign_in", {"password": secret}, delay=60, dedupe_key=secret, tags=[secret], allow_unknown=True)
    for name in JOB_FIELDS:
        (job,) = await jobs_of(client, f"fields={name}")
        assert secret not in json.dumps(job), name


# -- downloads ----------------------------------------------------------------------------------------


async def test_lines_have_just_the_given_fields(app: Mainspring, client: Client) -> None:
    dead = await fail(app, 2)
    for path in LISTS:
        answer = await client.send("GET", f"{path}?fields=id,status&descending=false", accept=NDJSON)
        assert [json.loads(line) for line in answer.text.splitlines()] == [
            {"id": job, "status": "dead_letter"} for job in dead
        ]


async def test_each_field_is_a_column_of_csv(app: Mainspring, client: Client) -> None:
    await app.enqueue("greet", {"name": "Ada"}, delay=60, tags=["a", "b"], headers={"tenant": "7"}, dedupe_key="=1")
    answer = await client.send("GET", "/v1/jobs?fields=tags,payload,headers,dedupe_key,queue", accept=CSV)
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["tags", "payload", "headers", "dedupe_key", "queue"],
        ["a b", '{"name": "Ada"}', '{"tenant": "7"}', "'=1", "default"],
    ]


async def test_targets_and_failures_have_several_columns(app: Mainspring, client: Client) -> None:
    (dead,) = await fail(app, 1)
    answer = await client.send("GET", "/v1/dead?fields=failure,id,target", accept=CSV)
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["error_type", "error_message", "error_code", "id", "target_type", "target_id"],
        ["LookupError", "nobody is here", "", dead, "", ""],
    ]


@pytest.mark.parametrize("name", JOB_FIELDS)
async def test_every_field_can_be_a_column(app: Mainspring, client: Client, name: str) -> None:
    await fail(app, 1)
    header, row = csv.reader(io.StringIO((await client.send("GET", f"/v1/jobs?fields={name}", accept=CSV)).text))
    assert len(header) == len(row) >= 1
    (whole,) = csv.DictReader(io.StringIO((await client.send("GET", "/v1/jobs", accept=CSV)).text))
    assert {key: value for key, value in zip(header, row, strict=True) if key in whole}.items() <= whole.items()


async def test_a_download_without_jobs_has_the_given_columns(client: Client) -> None:
    assert (await client.send("GET", "/v1/jobs?fields=queue,id", accept=CSV)).text == "queue,id\r\n"


# -- the OpenAPI document -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", LISTS)
def test_the_document_names_the_fields_and_their_form(path: str) -> None:
    operation = document()["paths"][path]["get"]
    (parameter,) = [each for each in operation["parameters"] if each["name"] == "fields"]
    assert parameter["explode"] is False
    assert parameter["schema"]["items"]["enum"] == list(JOB_FIELDS)


def test_the_document_promises_no_field_of_a_part_of_a_job() -> None:
    schemas = document()["components"]["schemas"]
    assert "required" not in schemas["JobPart"]
    assert schemas["JobPart"]["properties"].keys() == schemas["JobView"]["properties"].keys() == set(JOB_FIELDS)
    assert set(schemas["JobView"]["required"]) == set(JOB_FIELDS)
