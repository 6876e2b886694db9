"""`mainspring bulk`, and changes with --background."""

from __future__ import annotations

import pytest

from mainspring.cli.exits import Exit
from tests.cli.conftest import Run, Shop


def test_a_change_in_the_background_is_started_shown_and_cancelled(run: Run, shop: Shop) -> None:
    for _ in range(3):
        shop.enqueue()
    store = ("--store", shop.url)
    many = ("jobs", "cancel", "--all-matching", "--background", *store)
    dry = run(*many, "--dry-run")
    assert (dry.code, dry.out) == (Exit.OK, "3 jobs would be cancelled\n")
    refused = run(*many, "--expect", "9", "--yes")
    assert (refused.code != Exit.OK, "3 jobs match, but 9 were expected" in refused.err) == (True, True)
    started = run(*many, "--expect", "3", "--canary", "1", "--pace", "5", "--yes", "--json").data
    assert (started["state"], started["total"], started["canary"]) == ("canary", 3, 1)
    listed = run("bulk", "list", *store)
    assert (started["id"] in listed.out, "canary" in listed.out) == (True, True)
    assert "0%" in run("bulk", "show", started["id"], *store).out
    assert "only one that waits" in run("bulk", "go-on", started["id"], *store).err
    assert run("bulk", "cancel", started["id"], *store).out == f"bulk change {started['id']} is cancelled\n"
    assert run("bulk", "list", "--json", *store).data["changes"][0]["state"] == "cancelled"


def test_the_jobs_of_a_bulk_change_are_listed(run: Run, shop: Shop) -> None:
    ids = sorted(shop.enqueue() for _ in range(3))
    store = ("--store", shop.url)
    started = run("jobs", "delete", "--all-matching", "--background", "--yes", "--json", *store).data
    assert "no jobs" in run("bulk", "jobs", started["id"], *store).err
    shop.app.run(shop.app.runtime.timers.run_due())
    first = run("bulk", "jobs", started["id"], "--limit", "2", *store)
    assert [line.split() for line in first.out.splitlines()[1:]] == [[job_id, "deleted"] for job_id in ids[:2]]
    assert "more: mainspring bulk jobs" in first.err
    page = run("bulk", "jobs", started["id"], "--limit", "2", "--json", *store).data
    rest = run("bulk", "jobs", started["id"], "--cursor", page["cursor"], "--json", *store).data
    assert rest == {"jobs": [{"id": ids[2], "job": None}], "cursor": None}


def test_many_jobs_are_counted_by_a_worker(run: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        shop.enqueue(tags=["late"])
    monkeypatch.setattr("mainspring.bulk.api.COUNT_CAP", 1)
    store = ("--store", shop.url)
    many = ("jobs", "cancel", "--tag", "late", "--all-matching", "--background", *store)
    assert "this would cancel 1+ jobs; add --yes" in run(*many).err
    assert "counts its jobs first" in run(*many, "--dry-run").out
    shop.app.run(shop.app.runtime.timers.run_due())
    (planned,) = run("bulk", "list", "--json", *store).data["changes"]
    assert (planned["state"], planned["total"], planned["changed"]) == ("planned", 3, 0)


def test_options_of_the_background_need_it(run: Run, shop: Shop) -> None:
    told = run("jobs", "cancel", "--all-matching", "--pace", "5", "--store", shop.url)
    assert (told.code, "need --background" in told.err) == (Exit.USAGE, True)
    told = run("jobs", "cancel", "0199f3a2", "--background", "--store", shop.url)
    assert (told.code, "not with ids" in told.err) == (Exit.USAGE, True)
