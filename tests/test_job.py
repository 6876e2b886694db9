from __future__ import annotations

import pytest

from mainspring.job import (
    FINISHED,
    LIVE,
    TRANSITIONS,
    WAITING,
    Claim,
    Counts,
    Job,
    Move,
    Priority,
    Status,
    statuses_that_allow,
)

ENDS_A_RUN = {Move.DONE, Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH, Move.DEAD, Move.CANCEL}


# -- the state machine ----------------------------------------------------------------------------


def test_every_status_has_its_moves() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_every_move_can_be_made_from_somewhere() -> None:
    assert {move for moves in TRANSITIONS.values() for move in moves} == set(Move)


def test_every_status_can_be_reached() -> None:
    reached = {Status.PENDING}
    for _ in Status:
        reached |= {then for status in reached for then in TRANSITIONS[status].values()}
    assert reached == set(Status)


def test_every_unfinished_job_can_come_to_an_end() -> None:
    ending = set(FINISHED)
    for _ in Status:
        ending |= {status for status in Status if ending.intersection(TRANSITIONS[status].values())}
    assert ending == set(Status)


def test_statuses_are_finished_or_live() -> None:
    assert set(Status) == FINISHED | LIVE
    assert not FINISHED & LIVE
    assert WAITING < LIVE


def test_a_completed_job_stays_completed() -> None:
    assert TRANSITIONS[Status.COMPLETED] == {}


def test_finished_jobs_only_ever_leave_by_a_manual_retry() -> None:
    assert {move for status in FINISHED for move in TRANSITIONS[status]} == {Move.MANUAL_RETRY}


def test_only_waiting_jobs_are_claimed_and_edited() -> None:
    assert statuses_that_allow(Move.EDIT) == WAITING
    assert statuses_that_allow(Move.CLAIM) == WAITING | {Status.SUSPENDED}


def test_only_a_claim_makes_a_job_run() -> None:
    ways = {move for moves in TRANSITIONS.values() for move, then in moves.items() if then is Status.RUNNING}
    assert ways == {Move.CLAIM}


def test_a_running_job_ends_in_the_ways_an_outcome_has() -> None:
    assert set(TRANSITIONS[Status.RUNNING]) == ENDS_A_RUN
    assert Status.RUNNING not in TRANSITIONS[Status.RUNNING].values()


@pytest.mark.parametrize("move", sorted(ENDS_A_RUN - {Move.CANCEL}))
def test_only_a_running_job_can_end_its_run(move: Move) -> None:
    assert statuses_that_allow(move) == {Status.RUNNING}


def test_every_unfinished_job_can_be_cancelled() -> None:
    assert statuses_that_allow(Move.CANCEL) == LIVE


def test_an_edit_does_not_change_the_status() -> None:
    for status in statuses_that_allow(Move.EDIT):
        assert TRANSITIONS[status][Move.EDIT] is status


@pytest.mark.parametrize("move", Move)
def test_statuses_that_allow_agrees_with_the_table(move: Move) -> None:
    assert {status for status in Status if move in TRANSITIONS[status]} == statuses_that_allow(move)


# -- priorities -----------------------------------------------------------------------------------


def test_urgent_comes_before_low() -> None:
    assert sorted(Priority) == [Priority.URGENT, Priority.HIGH, Priority.NORMAL, Priority.LOW]


@pytest.mark.parametrize("value", ["high", "HIGH", "High", Priority.HIGH])
def test_a_priority_is_parsed_from_its_name(value: Priority | str) -> None:
    assert Priority.parse(value) is Priority.HIGH


@pytest.mark.parametrize("value", ["", "higher", "1", 7, None])
def test_an_unknown_priority_is_refused_with_the_choices(value: object) -> None:
    with pytest.raises(ValueError, match="urgent, high, normal, low"):
        Priority.parse(value)  # type: ignore[arg-type]


# -- what is read off a job -----------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
def test_a_job_knows_whether_it_is_finished(status: Status) -> None:
    job = Job.__new__(Job)
    object.__setattr__(job, "status", status)
    assert job.finished is (status in FINISHED)


def test_the_first_attempt_is_number_one() -> None:
    claim = Claim("id", 1, "task", "default", "{}", Priority.NORMAL, 0, 3, 0, 0, 0, 0)
    assert claim.attempt == 1


def test_counts_of_a_status_that_has_none_are_zero() -> None:
    counts = Counts("mail", {Status.PENDING: 2})
    assert (counts[Status.PENDING], counts[Status.RUNNING]) == (2, 0)
