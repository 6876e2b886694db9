from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import Failure, IllegalMove
from mainspring.fingerprint import fingerprint
from mainspring.job import KEEP_FOREVER, MAX_CRASHES, UNTIL_WOKEN, Move, Outcome, Status
from mainspring.stores.engine.ack import (
    LEADS_TO,
    LONGEST_MESSAGE,
    LONGEST_TRACEBACK,
    JobState,
    Run,
    conclude,
    crashed,
    first_of_each,
    refuse_illegal,
    released,
    stalled,
    takeover,
)
from mainspring.stores.protocol import Takeover, TakeoverCause

NOW = 1_000_000
JOB = JobState(
    id="job",
    token=3,
    task="task",
    queue="queue",
    worker="w1",
    run_at=900_000,
    attempts=1,
    max_attempts=5,
    crashes=1,
    claimed_at=950_000,
    timeout=0,
    keep=1_000,
    keep_dead=2_000,
    dedupe_key=None,
    target_type=None,
    target_id=None,
    options=None,
    fingerprint=None,
    version="v1",
    updated_at=950_000,
    cancel_reason=None,
)
FAILURE = Failure("ValueError", "no", "line 1")
KNOWN = fingerprint("task", "ValueError", "", "no")


def outcome(move: Move, **given: Any) -> Outcome:
    return Outcome("job", 3, move, **given)


@pytest.mark.parametrize("move", LEADS_TO)
def test_each_move_leads_to_its_status(move: Move) -> None:
    assert conclude(JOB, outcome(move), NOW).status is LEADS_TO[move]


@pytest.mark.parametrize("move", [move for move in Move if move not in LEADS_TO])
def test_a_run_cannot_end_with_another_move(move: Move) -> None:
    with pytest.raises(IllegalMove, match=f"a run cannot end with {move}; use one of done, "):
        refuse_illegal([outcome(move)])


@pytest.mark.parametrize(
    ("move", "attempts", "crashes"),
    [
        (Move.DONE, 2, 1),
        (Move.RETRY, 2, 1),
        (Move.DEAD, 2, 1),
        (Move.CANCEL, 2, 1),
        (Move.SNOOZE, 1, 1),
        (Move.RELEASE, 1, 1),
        (Move.CRASH, 1, 2),
        (Move.SUSPEND, 0, 0),
    ],
)
def test_each_move_counts_as_what_it_is(move: Move, attempts: int, crashes: int) -> None:
    end = conclude(JOB, outcome(move), NOW)
    assert (end.attempts, end.crashes) == (attempts, crashes)


def test_a_blocked_job_keeps_its_counters() -> None:
    end = conclude(JOB, outcome(Move.SUSPEND, blocked=True), NOW)
    assert (end.status, end.attempts, end.crashes) == (Status.SUSPENDED, 1, 1)


def test_the_last_crash_makes_a_dead_letter() -> None:
    end = conclude(replace(JOB, crashes=MAX_CRASHES - 1), outcome(Move.CRASH), NOW)
    assert (end.status, end.crashes) == (Status.DEAD_LETTER, MAX_CRASHES)
    assert end.run is not None
    assert end.run.move is Move.CRASH


@pytest.mark.parametrize(
    ("move", "delay", "run_at"),
    [
        (Move.RETRY, 500, NOW + 500),
        (Move.SNOOZE, 0, NOW),
        (Move.SUSPEND, UNTIL_WOKEN, UNTIL_WOKEN),
        (Move.RELEASE, 500, NOW + 500),
        (Move.RELEASE, 0, JOB.run_at),
        (Move.CRASH, 0, JOB.run_at),
        (Move.DONE, 0, JOB.run_at),
    ],
)
def test_each_move_sets_the_expected_run_time(move: Move, delay: int, run_at: int) -> None:
    assert conclude(JOB, outcome(move, delay=delay), NOW).run_at == run_at


def test_a_released_job_stays_due_after_the_clock_was_set_back() -> None:
    assert conclude(JOB, outcome(Move.RELEASE), JOB.run_at - 10).run_at == JOB.run_at - 10


@pytest.mark.parametrize("move", [Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH])
def test_a_requested_cancellation_applies_if_the_job_would_run_again(move: Move) -> None:
    end = conclude(replace(JOB, cancel_reason="by hand"), outcome(move, reason="later", waits_for="key"), NOW)
    assert (end.status, end.reason, end.waits_for, end.crashes) == (Status.CANCELLED, "by hand", None, 1)
    assert end.run is not None
    assert end.run.move is (Move.CRASH if move is Move.CRASH else Move.CANCEL)


@pytest.mark.parametrize(
    ("cancel_reason", "move", "reason"),
    [
        (None, Move.CANCEL, "own"),
        ("", Move.CANCEL, "own"),
        ("given", Move.CANCEL, "given"),
        ("", Move.SNOOZE, ""),
        ("given", Move.DEAD, "own"),
        ("given", Move.DONE, ""),
        (None, Move.DONE, ""),
    ],
)
def test_a_finished_job_has_the_expected_reason(cancel_reason: str | None, move: Move, reason: str) -> None:
    assert conclude(replace(JOB, cancel_reason=cancel_reason), outcome(move, reason="own"), NOW).reason == reason


@pytest.mark.parametrize(("move", "keep"), [(Move.DONE, 1_000), (Move.CANCEL, 1_000), (Move.DEAD, 2_000)])
def test_a_finished_job_expires(move: Move, keep: int) -> None:
    end = conclude(JOB, outcome(move, result="1"), NOW)
    assert (end.finished_at, end.expires_at, end.result) == (NOW, NOW + keep, "1")


def test_a_job_kept_for_ever_never_expires() -> None:
    end = conclude(replace(JOB, keep=KEEP_FOREVER), outcome(Move.DONE), NOW)
    assert end.expires_at == KEEP_FOREVER


def test_a_job_that_runs_again_has_no_result_and_does_not_expire() -> None:
    end = conclude(JOB, outcome(Move.RETRY, result="1"), NOW)
    assert (end.finished_at, end.expires_at, end.result) == (None, None, None)


@pytest.mark.parametrize("move", [Move.DONE, Move.SNOOZE, Move.RELEASE, Move.SUSPEND])
def test_a_run_that_is_not_an_attempt_or_succeeded_is_not_recorded(move: Move) -> None:
    assert conclude(JOB, outcome(move), NOW).run is None


def test_a_failed_run_is_recorded() -> None:
    end = conclude(JOB, outcome(Move.RETRY, started_at=960_000, finished_at=970_000, failure=FAILURE), NOW)
    assert end.run == Run("w1", 960_000, 970_000, Move.RETRY, "ValueError", "no", None, "line 1", KNOWN, "v1")


def test_a_run_without_times_began_with_its_claim_and_ended_now() -> None:
    end = conclude(JOB, outcome(Move.CRASH), NOW)
    assert end.run == Run("w1", JOB.claimed_at, NOW, Move.CRASH, None, None, None, None, None, "v1")


def test_long_errors_are_shortened() -> None:
    failure = Failure("ValueError", "m" * 10**6, "t" * 10**6)
    end = conclude(JOB, outcome(Move.RETRY, failure=failure), NOW)
    assert end.failure is not None
    assert end.run is not None
    assert len(end.failure.message) < LONGEST_MESSAGE + 100
    assert len(end.run.traceback or "") < LONGEST_TRACEBACK + 100


def test_the_first_of_two_outcomes_for_one_claim_counts() -> None:
    first, second = outcome(Move.DONE), outcome(Move.DEAD)
    assert first_of_each([first, second]) == {("job", 3): first}


TIMED = replace(JOB, timeout=1_500)


def test_the_run_of_a_dead_worker_is_a_crash() -> None:
    outcome = crashed(JOB)
    assert (outcome.move, outcome.started_at, outcome.delay) == (Move.CRASH, JOB.claimed_at, 0)
    assert outcome.failure == Failure("WorkerCrashed", "worker w1 died while it held the job")


def test_a_stalled_run_is_retried_after_the_delay_of_its_policy() -> None:
    outcome = stalled(TIMED, lambda run: run.attempt * 100)
    assert (outcome.move, outcome.delay) == (Move.RETRY, 200)
    message = "still running on w1 after its timeout of 1.5 s and the grace"
    assert outcome.failure == Failure("TimeoutError", message)


@pytest.mark.parametrize(("attempts", "delay"), [(4, 100), (1, None)])
def test_a_stalled_run_without_another_attempt_is_dead(attempts: int, delay: int | None) -> None:
    outcome = stalled(replace(TIMED, attempts=attempts), lambda _: delay)
    assert (outcome.move, outcome.delay) == (Move.DEAD, 0)


def test_a_released_run_says_nothing_but_that() -> None:
    assert released(JOB) == Outcome("job", 3, Move.RELEASE)


@pytest.mark.parametrize(("status", "crashes"), [(Status.PENDING, 2), (Status.CANCELLED, 1)])
def test_a_takeover_reports_what_the_job_has_become(status: Status, crashes: int) -> None:
    outcome = crashed(JOB)
    assert takeover(JOB, outcome, status) == Takeover(
        "job",
        "task",
        "queue",
        "w1",
        TakeoverCause.CRASHED,
        status,
        1,
        crashes,
        outcome.failure,
        5,
        0,
        JOB.claimed_at,
        JOB.timeout,
    )


def test_a_takeover_of_a_stalled_run_counts_the_attempt() -> None:
    taken = takeover(TIMED, stalled(TIMED, lambda _: 100), Status.RETRYING)
    assert (taken.cause, taken.attempts, taken.crashes, taken.delay) == (TakeoverCause.STALLED, 2, 1, 100)
