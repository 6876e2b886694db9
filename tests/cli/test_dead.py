from __future__ import annotations

import pytest

from mainspring import Recover
from mainspring.job import Status
from tests.cli.conftest import Outcome, Run, Shop

pytestmark = pytest.mark.slow


@pytest.fixture
def dead(run: Run, shop: Shop) -> Run:
    def call(command: str, *argv: str) -> Outcome:
        return run("dead", command, *argv, "--store", shop.url)

    return call


def test_list_shows_only_dead_letters_and_why(dead: Run, shop: Shop) -> None:
    shop.enqueue_later()
    buried = shop.bury()
    header, *rows = dead("list").out.splitlines()
    assert header.split() == ["ID", "TASK", "WHEN", "NOTE", "QUEUE", "TRIES", "PAYLOAD"]
    assert len(rows) == 1
    assert "LookupError: no such guest" in rows[0]
    assert rows[0].endswith('{"guest": "bad"}')
    assert [job["id"] for job in dead("list", "--json").data["jobs"]] == [buried]
    assert dead("list", "--task", "nightly", "--json").data["jobs"] == []


def test_list_has_no_status_to_choose(dead: Run) -> None:
    assert dead("list", "--status", "pending").code == 2


def test_show_prints_the_last_traceback(dead: Run, shop: Shop) -> None:
    buried = shop.bury()
    assert "Last traceback" in dead("show", buried).out
    assert dead("show", buried, "--json").data["job"]["status"] == "dead_letter"


def test_show_refuses_a_job_that_is_not_dead(dead: Run, shop: Shop) -> None:
    waiting = shop.enqueue_later()
    outcome = dead("show", waiting)
    assert outcome.code == 3
    assert f"job {waiting} is pending, not a dead letter; see `mainspring jobs show {waiting}`" in outcome.err
    assert dead("show", "nope").code == 3


def test_retry_makes_a_dead_letter_pending_once(dead: Run, shop: Shop) -> None:
    buried = shop.bury()
    assert dead("retry", buried).out == f"{buried} retried\n"
    assert shop.status(buried) is Status.PENDING
    assert dead("retry", buried).code == 3


def test_retry_by_filter_touches_only_dead_letters(dead: Run, shop: Shop) -> None:
    buried = [shop.bury(tags=["x"]), shop.bury(tags=["x"]), shop.bury()]
    cancelled = shop.enqueue_later(tags=["x"])
    shop.app.run(shop.app.jobs.cancel(cancelled))
    outcome = dead("retry", "--tag", "x", "--all-matching", "--yes")
    assert (outcome.code, outcome.out) == (0, "2 jobs retried\n")
    assert [shop.status(job_id).value for job_id in buried] == ["pending", "pending", "dead_letter"]
    assert shop.status(cancelled) is Status.CANCELLED


def test_a_dry_run_by_id_counts_only_dead_letters(dead: Run, shop: Shop) -> None:
    cancelled = shop.enqueue_later()
    shop.app.run(shop.app.jobs.cancel(cancelled))
    assert dead("retry", shop.bury(), cancelled, "--dry-run").out == "1 job would be retried\n"


def test_purge_deletes_only_dead_letters_of_that_age(dead: Run, shop: Shop) -> None:
    for _ in range(2):
        shop.bury()
    shop.enqueue_later()
    assert dead("purge", "--older-than", "1h", "--yes").out == "0 jobs purged\n"
    assert dead("purge", "--older-than", "0", "--dry-run").out == "2 jobs would be purged\n"
    assert dead("purge", "--older-than", "0").code == 2
    assert dead("purge", "--older-than", "0", "--yes", "--json").data["changed"] == 2
    assert shop.count() == 1


def test_purge_needs_an_age(dead: Run) -> None:
    assert dead("purge").code == 2
    assert dead("purge", "--older-than", "old").code == 2


def test_recoveries_show_what_tasks_have_recovered(dead: Run, shop: Shop) -> None:
    assert "no task has a recovery" in dead("recoveries").err
    shop.bury()
    shop.app.runtime.recovery.declare("welcome", Recover(max_times=1))
    shop.app.run(shop.app.runtime.recovery.begin())
    shop.app.run(shop.app.runtime.timers.run_due())
    (data,) = dead("recoveries", "--json").data["recoveries"]
    assert (data["task"], data["recovered"], data["exhausted"], data["total"]) == ("welcome", 1, 0, 1)
    assert data["next_at"] > data["recovered_at"] == data["fired_at"]
    assert "welcome" in dead("recoveries").out
