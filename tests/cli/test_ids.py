"""Ids of jobs that are cut short."""

from __future__ import annotations

import pytest

from mainspring.ids import new_id
from mainspring.job import NewJob, Status
from tests.cli.conftest import Run, Shop

OLD, OLDER, OLDEST = (f"018f0000-{middle}-7000-8000-000000000000" for middle in ("00ff", "00f0", "0000"))


@pytest.fixture(autouse=True)
def _jobs(shop: Shop) -> None:
    jobs = [NewJob(job_id, "nightly", '{"day": "monday"}') for job_id in (OLDEST, OLDER, OLD, new_id())]
    shop.app.run(shop.app.store.insert(jobs))


@pytest.mark.parametrize("text", ["018f0000-00ff", "018F0000-00FF-7", OLD])
def test_the_beginning_is_enough_where_only_one_job_has_it(run: Run, shop: Shop, text: str) -> None:
    assert run("jobs", "show", text, "--store", shop.url, "--json").data["job"]["id"] == OLD
    assert run("jobs", "cancel", text, "--store", shop.url).code == 0
    assert shop.status(OLD) is Status.CANCELLED


def test_the_oldest_of_all_is_found_too(run: Run, shop: Shop) -> None:
    assert run("jobs", "why", "018f0000-0000", "--store", shop.url, "--json").data["job"]["id"] == OLDEST


def test_where_several_begin_so_nothing_is_changed(run: Run, shop: Shop) -> None:
    refused = run("jobs", "cancel", "018f0000-00f", "--store", shop.url)
    assert refused.code == 2
    assert f"several jobs begin with 018f0000-00f, such as {OLD} and {OLDER}" in refused.err
    assert shop.status(OLD) is Status.PENDING


@pytest.mark.parametrize("text", ["018f0000-01", "018f", "nothing"])
def test_what_no_job_begins_with_is_not_found(run: Run, shop: Shop, text: str) -> None:
    assert run("jobs", "show", text, "--store", shop.url).code == 3
