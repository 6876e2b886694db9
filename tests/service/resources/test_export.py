"""Downloads of all jobs of a filter."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.service import export
from mainspring.stores.protocol import Page
from tests.service.resources.client import Client
from tests.service.resources.conftest import fail

NDJSON, CSV = "application/x-ndjson", "text/csv"
MANY = 1_203  # more than two pages


async def enqueue_many(app: Mainspring) -> list[str]:
    task = app.tasks["greet"].using(delay=60, tags=["a", "b"], target=("guest", "g7"))
    return [handle.id for handle in await task.enqueue_many([{"name": str(number)} for number in range(MANY)])]


async def test_all_jobs_of_a_filter_are_exported_as_ndjson(app: Mainspring, client: Client) -> None:
    jobs = await enqueue_many(app)
    await fail(app, 1)
    answer = await client.send("GET", "/v1/jobs?status=pending&limit=5&descending=false", Accept=NDJSON)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert (answer.status, answer.headers["Content-Type"]) == (200, NDJSON)
    assert [line["id"] for line in lines] == jobs
    assert lines[0] == await client.get(f"/v1/jobs/{jobs[0]}")


async def test_all_jobs_of_a_filter_are_exported_as_csv(app: Mainspring, client: Client) -> None:
    jobs = await enqueue_many(app)
    answer = await client.send("GET", "/v1/jobs?task=greet&descending=false", Accept=CSV)
    assert answer.headers["Content-Type"].startswith(CSV)
    assert answer.headers["Content-Disposition"] == 'attachment; filename="jobs.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == jobs
    assert (rows[0]["payload"], rows[0]["tags"], rows[0]["target_id"]) == ('{"name": "0"}', "a b", "g7")


async def test_dead_letters_are_exported_with_their_errors(app: Mainspring, client: Client) -> None:
    dead = await fail(app, 2)
    answer = await client.send("GET", "/v1/dead", Accept=CSV)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["id"] for row in rows} == set(dead)
    assert {(row["error_type"], row["error_message"]) for row in rows} == {("LookupError", "nobody is here")}


async def test_a_spreadsheet_does_not_run_what_a_cell_says(app: Mainspring, client: Client) -> None:
    await app.tasks["greet"].using(dedupe_key="=1+1", delay=60).enqueue(name="Ada")
    answer = await client.send("GET", "/v1/jobs", Accept=CSV)
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["dedupe_key"] == "'=1+1"


async def test_an_empty_export_has_no_jobs(client: Client) -> None:
    assert (await client.send("GET", "/v1/jobs", Accept=NDJSON)).text == ""
    assert (await client.send("GET", "/v1/jobs", Accept=CSV)).text.split(",")[0] == "id"


async def test_an_export_with_a_wrong_filter_is_a_problem(client: Client) -> None:
    assert await client.problem("GET", "/v1/jobs?cursor=x", Accept=NDJSON) == (400, "invalid_cursor")
    assert await client.problem("GET", "/v1/jobs?status=odd", Accept=CSV) == (422, "invalid_request")


async def test_an_export_that_fails_in_the_middle_does_not_look_complete(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue_many(app)
    find = app.jobs.find

    async def failing(*given: Any, cursor: str | None = None, **options: Any) -> Page:
        if cursor is not None:
            raise StoreUnavailable
        return await find(*given, **options)

    monkeypatch.setattr(app.jobs, "find", failing)
    with pytest.raises(aiohttp.ClientPayloadError):
        await client.send("GET", "/v1/jobs", Accept=NDJSON)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", None),
        ("*/*", None),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None),
        ("application/json, text/csv", None),
        ("application/json;q=0.5, text/csv", export.CSV),
        ("TEXT/CSV; charset=utf-8", export.CSV),
        ("application/ndjson", export.NDJSON),
        ("text/csv;q=0", None),
        ("text/csv;q=odd", None),
    ],
)
def test_the_preferred_form_is_chosen(accept: str, form: export.Form | None) -> None:
    assert export.form_of(accept) is form
