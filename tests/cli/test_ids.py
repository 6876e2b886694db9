"""Ids of jobs and batches that are cut short or written without dashes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainspring.app import Mainspring
from mainspring.cli.ids import cursor_after
from mainspring.features.batches.api import BatchHandle
from mainspring.ids import new_id
from mainspring.job import NewJob, Status
from tests.cli.conftest import Outcome, Run
from tests.postgres import dsn, fresh_schema

OLD, OLDER, OLDEST = (f"018f0000-{middle}-7000-8000-00000000000f" for middle in ("00ff", "00f0", "0000"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    schema = fresh_schema()
    yield f"{dsn()}&schema={schema}"
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    """An application with three old jobs and a new one."""
    app = Mainspring(url)
    app.run(app.store.open())
    app.run(app.store.insert([NewJob(job_id, "nightly", "{}") for job_id in (OLDEST, OLDER, OLD, new_id())]))
    yield app
    app.run(app.close())


@pytest.fixture
def call(run: Run, url: str, app: Mainspring) -> Run:
    def call(*argv: str) -> Outcome:
        return run(*argv, "--store", url)

    return call


def status_of(app: Mainspring, job_id: str) -> Status:
    return app.run(app.jobs.get(job_id)).status


def shown_id(outcome: Outcome) -> Any:
    assert outcome.code == 0, outcome.err
    return outcome.data["job"]["id"]


# -- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["018f0000-00ff", "018F0000-00FF-7", "018f000000ff", "018f000000ff7", OLD[:-1], OLD, OLD.replace("-", "")]
)
def test_the_beginning_is_enough_where_only_one_job_has_it(call: Run, app: Mainspring, text: str) -> None:
    assert shown_id(call("jobs", "show", text, "--json")) == OLD
    assert call("jobs", "cancel", text).out == f"{OLD} cancelled\n"
    assert status_of(app, OLD) is Status.CANCELLED


def test_the_oldest_of_all_is_found_too(call: Run) -> None:
    assert shown_id(call("jobs", "why", "018f0000-0000", "--json")) == OLDEST


@pytest.mark.parametrize("text", ["018f0000-00f", "018f000000f", "018f00000"])
def test_where_several_jobs_begin_so_they_are_shown_and_nothing_is_changed(
    call: Run, app: Mainspring, text: str
) -> None:
    refused = call("jobs", "cancel", text)
    shown = f"several job ids begin with {text}: {OLD} (nightly, pending), {OLDER} (nightly, pending)"
    assert (refused.code, shown in refused.err) == (2, True)
    assert status_of(app, OLD) is Status.PENDING


def test_of_very_many_jobs_the_newest_five_are_shown(call: Run, app: Mainspring) -> None:
    many = [f"018f0001-0000-7000-8000-{number:012}" for number in range(7)]
    app.run(app.store.insert([NewJob(job_id, "nightly", "{}") for job_id in many]))
    refused = call("jobs", "show", "018f0001")
    assert [job_id in refused.err for job_id in many] == [False] * 2 + [True] * 5
    assert "and more; give more of the id" in refused.err


@pytest.mark.parametrize("text", ["018f0000-01", "018f00001", "ffffffff", "00000000"])
def test_what_no_job_begins_with_is_not_found(call: Run, text: str) -> None:
    missing = call("jobs", "show", text)
    assert (missing.code, f"no job begins with {text}" in missing.err) == (3, True)
    assert call("dead", "show", text).code == call("jobs", "cancel", text, "--dry-run").code == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("018f", "no job has the id 018f; give at least the first 8 characters of an id"),
        ("nothing", "there is no job nothing"),
        ("018f0000-00ff-7000-8000-000000000000", "there is no job 018f0000-00ff-7000-8000-000000000000"),
    ],
)
def test_what_cannot_be_completed_is_not_found(call: Run, text: str, why: str) -> None:
    missing = call("jobs", "show", text)
    assert (missing.code, why in missing.err) == (3, True)


def test_of_several_ids_those_that_are_found_are_changed(call: Run, app: Mainspring) -> None:
    outcome = call("jobs", "cancel", "018f0000-00f", "018f0000-01", "018f000000ff", "--json")
    assert outcome.code == 3
    assert [(error["id"], error["type"]) for error in outcome.data["errors"]] == [
        ("018f0000-00f", "UsageError"),
        ("018f0000-01", "JobNotFound"),
    ]
    assert [status_of(app, job_id) for job_id in (OLD, OLDER)] == [Status.CANCELLED, Status.PENDING]


def test_the_cursor_sorts_just_after_all_ids_with_that_beginning() -> None:
    assert cursor_after("018f0000") == "018f0001-0000-0000-0000-000000000000"
    assert cursor_after("018f00ffffff7") == "018f00ff-ffff-8000-0000-000000000000"
    assert cursor_after("ffffffff") == "ffffffff-ffff-ffff-ffff-ffffffffffff"


# -- batches --------------------------------------------------------------------------------------


FIRST, SECOND = (f"018f00ab-{middle}-7000-8000-00000000000f" for middle in ("cd00", "cd01"))


@pytest.fixture
def batches(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> list[BatchHandle]:
    jobs = [[NewJob(new_id(), "nightly", "{}") for _ in range(number)] for number in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.features.batches.api.new_id", iter((FIRST, SECOND)).__next__)
        return [app.run(app.batch(members)) for members in jobs]


@pytest.mark.parametrize("dash", ["-", ""])
def test_the_beginning_of_a_batch_id_is_enough(
    call: Run, app: Mainspring, batches: list[BatchHandle], dash: str
) -> None:
    beginning = SECOND[:13].replace("-", dash)
    assert call("batches", "show", beginning, "--json").data["batch"]["id"] == SECOND
    assert call("batches", "cancel", beginning, "--yes").out == "2 jobs cancelled\n"
    assert status_of(app, batches[0].jobs[0]) is Status.PENDING


@pytest.mark.usefixtures("batches")
def test_batches_that_begin_alike_are_shown(call: Run) -> None:
    refused = call("batches", "cancel", "018f00abcd", "--yes")
    shown = f"several batch ids begin with 018f00abcd: {SECOND} (running, jobs: 2), {FIRST} (running, jobs: 1)"
    assert (refused.code, shown in refused.err) == (2, True)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("command", ["show", "cancel"])
def test_a_batch_that_no_id_begins_with_is_not_found(call: Run, command: str) -> None:
    missing = call("batches", command, "018f00000")
    assert (missing.code, "no batch begins with 018f00000" in missing.err) == (3, True)
