from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import ConfigurationError
from mainspring.job import FINISHED, Status
from mainspring.stores.documents import By
from mainspring.stores.engine.ack import JobState
from mainspring.stores.engine.change import ALLOWED, ChangeRequest, plan, refuse_negative, wanted_keys, woken
from mainspring.stores.protocol import Action, Edit, Filter
from tests.stores.engine.test_ack import JOB as RUNNING

NOW = 1_000_000
WAITING = replace(RUNNING, id="waiting", status=Status.RETRYING)
DEAD = replace(RUNNING, id="dead", status=Status.DEAD_LETTER, dedupe_key="key")


def request(action: Action, edit: Edit | None = None, **given: Any) -> ChangeRequest:
    return ChangeRequest(
        action, Filter(), By("ada", "why"), edit, **{"limit": 100, "cursor": None, "dry_run": False, **given}
    )


@pytest.mark.parametrize("action", Action)
def test_no_action_changes_a_job_that_completed_except_delete(action: Action) -> None:
    assert (Status.COMPLETED in ALLOWED[action]) is (action is Action.DELETE)


def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked_to_stop() -> None:
    planned = plan(request(Action.CANCEL), [WAITING, RUNNING], {}, NOW)
    ((job, end),) = planned.ended
    assert (job, end.status, end.reason, end.finished_at) == (WAITING, Status.CANCELLED, "why", NOW)
    assert (end.attempts, end.crashes, end.expires_at) == (WAITING.attempts, WAITING.crashes, NOW + WAITING.keep)
    assert (planned.updated, planned.columns) == ([RUNNING], {"cancel": True, "reason": "why", "changed_at": NOW})
    assert (planned.changed, planned.requested, planned.woken) == (["waiting"], ["job"], set())


def test_a_retried_job_has_a_full_budget() -> None:
    planned = plan(request(Action.RETRY), [WAITING, DEAD], {}, NOW)
    assert (planned.updated, planned.restored) == ([WAITING], [DEAD])
    assert planned.columns["status"] is Status.PENDING
    assert (planned.columns["run_at"], planned.columns["attempts"], planned.columns["crashes"]) == (NOW, 0, 0)
    assert planned.woken == {"queue"}
    assert list(planned.moves()) == [
        (("queue", Status.RETRYING), ("queue", Status.PENDING)),
        (("queue", Status.DEAD_LETTER), ("queue", Status.PENDING)),
    ]


def test_a_job_is_not_retried_while_another_holds_its_dedupe_key() -> None:
    planned = plan(request(Action.RETRY), [DEAD], {("task", "key"): "other"}, NOW)
    assert (planned.changed, planned.restored, planned.conflicts) == ([], [], {"dead": "other"})


def test_the_first_of_two_dead_jobs_with_one_dedupe_key_is_retried() -> None:
    second = replace(DEAD, id="second")
    planned = plan(request(Action.RETRY), [DEAD, second], {}, NOW)
    assert (planned.restored, planned.conflicts) == ([DEAD], {"second": "dead"})


@pytest.mark.parametrize("action", Action)
def test_only_retried_jobs_need_their_dedupe_keys(action: Action) -> None:
    wanted = wanted_keys(request(action), [DEAD, WAITING, replace(WAITING, dedupe_key="key")])
    assert wanted == ([("task", "key")] if action is Action.RETRY else [])


@pytest.mark.parametrize(
    ("edit", "columns"),
    [
        (Edit(priority=0), {"priority": 0}),
        (Edit(payload="[]", max_attempts=9), {"payload": "[]", "max_attempts": 9}),
        (Edit(run_at=5), {"run_at": 5, "reason": ""}),
        (Edit(delay=5), {"run_at": NOW + 5, "reason": ""}),
        (Edit(queue="other"), {"queue": "other"}),
        (None, {}),
    ],
)
def test_an_edit_changes_what_it_names(edit: Edit | None, columns: dict[str, Any]) -> None:
    planned = plan(request(Action.EDIT, edit), [WAITING], {}, NOW)
    assert (planned.updated, planned.columns) == ([WAITING], {**columns, "changed_at": NOW})


def test_an_edited_queue_is_counted_and_woken() -> None:
    planned = plan(request(Action.EDIT, Edit(queue="other")), [WAITING], {}, NOW)
    assert list(planned.moves()) == [(("queue", Status.RETRYING), ("other", Status.RETRYING))]
    assert planned.woken == {"other"}


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_a_deleted_job_leaves_the_counts(status: Status) -> None:
    job: JobState = replace(DEAD, status=status)
    planned = plan(request(Action.DELETE), [job], {}, NOW)
    assert (planned.deleted, planned.changed) == ([job], ["dead"])
    assert list(planned.moves()) == [(("queue", status), None)]


def test_a_woken_job_is_due_now_and_waits_for_nothing() -> None:
    assert woken(5) == {"status": Status.PENDING, "run_at": 5, "waits_for": None, "changed_at": 5}


def test_a_negative_number_of_jobs_cannot_be_woken() -> None:
    refuse_negative({"one": 0, "two": 3})
    with pytest.raises(ConfigurationError, match="cannot wake -1 jobs for 'two'; give 0 or more"):
        refuse_negative({"one": 0, "two": -1})
