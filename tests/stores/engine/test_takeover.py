from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.errors import Failure
from mainspring.job import Move, Outcome, Status
from mainspring.stores.engine.takeover import crashed, released, stalled, takeover
from mainspring.stores.protocol import Takeover, TakeoverCause
from tests.stores.engine.test_ack import JOB

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
        "job", "task", "queue", "w1", TakeoverCause.CRASHED, status, 1, crashes, outcome.failure, 5, 0
    )


def test_a_takeover_of_a_stalled_run_counts_the_attempt() -> None:
    taken = takeover(TIMED, stalled(TIMED, lambda _: 100), Status.RETRYING)
    assert (taken.cause, taken.attempts, taken.crashes, taken.delay) == (TakeoverCause.STALLED, 2, 1, 100)
