from __future__ import annotations

from typing import Any

import pytest

from mainspring.job import UNTIL_WOKEN, NewJob, Status
from mainspring.stores import columns
from mainspring.stores.engine.creation import created, rounds_by_key

NOW = 1_000


def new(**given: Any) -> NewJob:
    return NewJob("id", "task", "{}", **given)


@pytest.mark.parametrize(
    ("given", "status", "run_at"),
    [
        ({}, Status.PENDING, NOW),
        ({"delay": 5}, Status.PENDING, NOW + 5),
        ({"run_at": 7, "delay": 5}, Status.PENDING, 7),
        ({"waits_for": "key"}, Status.SUSPENDED, UNTIL_WOKEN),
        ({"waits_for": "key", "delay": 5}, Status.SUSPENDED, NOW + 5),
        ({"waits_for": "key", "run_at": 7}, Status.SUSPENDED, 7),
    ],
)
def test_a_new_job_has_the_expected_status_and_due_time(given: dict[str, Any], status: Status, run_at: int) -> None:
    job = created(new(**given), NOW)
    assert (job["status"], job["run_at"], job["created_at"]) == (status, run_at, NOW)


def test_a_new_job_has_every_column_that_is_given() -> None:
    job = created(new(target=("guest", "7"), tags=("a", "b"), priority=0), NOW)
    assert columns.GIVEN.keys() <= job.keys()
    assert (job["target_type"], job["target_id"], job["tags"], job["priority"]) == ("guest", "7", ["a", "b"], 0)


def test_jobs_that_share_a_dedupe_key_come_in_different_rounds() -> None:
    jobs = [new(dedupe_key=key) for key in ("a", "b", "a", None, "a", "b")]
    assert rounds_by_key(jobs) == [[0, 1], [2, 5], [4]]
