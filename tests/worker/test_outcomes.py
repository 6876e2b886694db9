from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze
from mainspring.errors import (
    CannotStoreResult,
    ConfigurationError,
    Failure,
    InvalidPayload,
    UnsupportedCall,
    WorkerCrashed,
)
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Outcome
from mainspring.stores.engine.ack import LONGEST_TRACEBACK
from mainspring.stores.protocol import StalledRun
from mainspring.worker import outcomes
from mainspring.worker.run import Dumped, Run, Stop
from tests.worker.working import new_app, run_of

NOW = 5000


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Delegating(Exception):
    """Like errors of some libraries for remote calls, which look up in an answer whatever they are asked for."""

    def __getattr__(self, name: str) -> Any:
        return dict[str, Any]()[name]


class Unfit:
    """Nothing that JSON knows."""


def broken_policy(attempt: int, error: BaseException) -> float:
    raise ZeroDivisionError("in the policy")


@pytest.fixture
def app() -> Mainspring:
    app = new_app()

    @app.task()
    async def work() -> Any: ...

    @app.task(retry=Retry(max_attempts=5, base=1, jitter=0, never=(ValueError,)))
    async def picky() -> Any: ...

    @app.task(retry=Retry(max_attempts=5, base=1, jitter=0, only=(OSError,)))
    async def choosy() -> Any: ...

    @app.task(retry=Retry.by(lambda attempt, error: None if isinstance(error, KeyError) else attempt * 10))
    async def computed() -> Any: ...

    @app.task(retry=Retry.by(broken_policy))
    async def broken() -> Any: ...

    return app


def stop(run: Run, how: Stop, reason: str = "") -> Run:
    run.stop, run.stop_reason = how, reason
    return run


def returned(run: Run, value: object) -> Outcome:
    outcome = outcomes.returned(run, value, NOW)
    assert outcome is not None
    return outcome


def raised(run: Run, error: BaseException) -> Outcome:
    outcome = outcomes.raised(run, error, NOW)
    assert outcome is not None
    assert (outcome.job_id, outcome.token, outcome.started_at, outcome.finished_at) == ("j1", 1, 1000, NOW)
    return outcome


def test_a_value_is_the_result(app: Mainspring) -> None:
    outcome = returned(run_of(app, "work"), {"sum": 3})
    assert (outcome.move, outcome.result, outcome.follow_ups) == (Move.DONE, '{"sum":3}', ())


def test_nothing_is_no_result(app: Mainspring) -> None:
    assert returned(run_of(app, "work"), None).result is None


def test_what_a_child_has_dumped_is_not_dumped_again(app: Mainspring) -> None:
    assert returned(run_of(app, "work"), Dumped('"2026-01-01"')).result == '"2026-01-01"'


def test_the_context_may_know_the_result_and_what_follows(app: Mainspring) -> None:
    run = run_of(app, "work")
    run.context = Context(run.claim)
    run.context.set_result(None)
    follow_up = NewJob(new_id(), "work", "{}")
    run.context.follow_up(follow_up)
    outcome = returned(run, "ignored")
    assert outcome.result is None
    assert outcome.follow_ups == (follow_up,)


def test_a_result_that_is_not_json_is_a_dead_letter(app: Mainspring) -> None:
    outcome = returned(run_of(app, "work"), Unfit())
    assert outcome.move is Move.DEAD
    assert outcome.failure is not None
    assert outcome.failure.type == "CannotStoreResult"


def test_a_result_that_cannot_even_be_tried_is_a_dead_letter(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(app, "work")
    monkeypatch.setattr(run.task.payload, "dump_result", lambda _value: 1 // 0)
    assert returned(run, 1).move is Move.DEAD


def test_an_error_is_retried_until_the_attempts_are_used_up(app: Mainspring) -> None:
    assert raised(run_of(app, "work", attempts=1), RuntimeError("x")).move is Move.RETRY
    last = raised(run_of(app, "work", attempts=2), RuntimeError("x"))
    assert last.move is Move.DEAD
    assert last.failure is not None
    assert (last.failure.type, last.failure.message) == ("RuntimeError", "x")


@pytest.mark.parametrize(
    ("task", "error", "move", "delay"),
    [
        ("picky", ValueError(), Move.DEAD, 0),
        ("picky", UnicodeError(), Move.DEAD, 0),
        ("picky", KeyError(), Move.RETRY, 1000),
        ("choosy", ConnectionError(), Move.RETRY, 1000),
        ("choosy", KeyError(), Move.DEAD, 0),
        ("computed", ValueError(), Move.RETRY, 10_000),
        ("computed", KeyError(), Move.DEAD, 0),
    ],
)
def test_rules_for_exceptions(app: Mainspring, task: str, error: Exception, move: Move, delay: int) -> None:
    outcome = raised(run_of(app, task), error)
    assert (outcome.move, outcome.delay) == (move, delay)


def test_a_policy_that_fails_itself_gives_way_to_the_default(app: Mainspring) -> None:
    outcome = raised(run_of(app, "broken"), OSError("the cause"))
    assert outcome.move is Move.RETRY
    assert 60_000 <= outcome.delay <= 72_000
    assert outcome.failure is not None
    assert outcome.failure.message == "the cause"
    assert "in the policy" in outcome.failure.traceback
    assert raised(run_of(app, "broken", attempts=2), OSError()).move is Move.DEAD


@pytest.mark.parametrize("answer", ["soon", float("inf"), float("nan")])
def test_a_policy_that_answers_nonsense(answer: Any) -> None:
    app = new_app()

    @app.task(retry=Retry.by(lambda _attempt, _error: answer))
    async def work() -> None: ...

    assert raised(run_of(app, "work"), OSError()).move is Move.RETRY


def test_a_delay_is_never_negative() -> None:
    app = new_app()

    @app.task(retry=Retry.by(lambda _attempt, _error: -5))
    async def work() -> None: ...

    assert raised(run_of(app, "work"), OSError()).delay == 0


def test_a_job_may_carry_its_own_policy(app: Mainspring) -> None:
    options = '{"retry": {"max_attempts": 9, "explicit": [7], "jitter": 0}}'
    assert raised(run_of(app, "work", options=options), OSError()).delay == 7000


@pytest.mark.parametrize("error", [InvalidPayload("no"), CannotStoreResult("no"), UnsupportedCall("no")])
def test_what_will_not_fit_the_next_time_is_not_tried_again(app: Mainspring, error: Exception) -> None:
    assert raised(run_of(app, "work"), error).move is Move.DEAD


@pytest.mark.parametrize("delay", [-3, timedelta(seconds=-3)])
def test_nothing_is_put_off_into_the_past(delay: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match="cannot run again before now"):
        Snooze(delay)


def test_a_crash_is_not_an_attempt(app: Mainspring) -> None:
    assert raised(run_of(app, "work", attempts=2), WorkerCrashed()).move is Move.CRASH


def test_signals(app: Mainspring) -> None:
    snoozed = raised(run_of(app, "work"), Snooze(1.5, "busy"))
    assert (snoozed.move, snoozed.delay, snoozed.reason) == (Move.SNOOZE, 1500, "busy")
    assert raised(run_of(app, "work"), Snooze(0)).delay == 0
    cancelled = raised(run_of(app, "work"), Cancel("not needed"))
    assert (cancelled.move, cancelled.reason) == (Move.CANCEL, "not needed")
    discarded = raised(run_of(app, "work"), Discard("hopeless"))
    assert (discarded.move, discarded.reason) == (Move.DEAD, "hopeless")


def test_the_reason_may_be_the_error_that_was_caught(app: Mainspring) -> None:
    assert raised(run_of(app, "work"), Discard(ValueError("no such guest"))).reason == "no such guest"
    assert raised(run_of(app, "work"), Cancel(None)).reason == ""
    assert raised(run_of(app, "work"), Snooze(1, KeyError("busy"))).reason == "'busy'"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_what_is_no_exception_is_retried_like_one(app: Mainspring, error: BaseException) -> None:
    outcome = raised(run_of(app, "work"), error)
    assert outcome.move is Move.RETRY
    assert outcome.failure is not None
    assert outcome.failure.type == type(error).__name__


def test_a_lost_claim_writes_nothing(app: Mainspring) -> None:
    assert outcomes.raised(stop(run_of(app, "work"), Stop.LOST), asyncio.CancelledError(), NOW) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError(), Snooze(1)])
def test_cancelled_by_hand(app: Mainspring, error: BaseException) -> None:
    outcome = raised(stop(run_of(app, "work"), Stop.CANCEL, "changed our mind"), error)
    assert (outcome.move, outcome.reason) == (Move.CANCEL, "changed our mind")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), WorkerCrashed(), Cancel(), ConnectionError()])
def test_a_stop_of_the_worker_burns_no_attempt(app: Mainspring, error: BaseException) -> None:
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), error).move is Move.RELEASE


def test_a_stopped_handler_may_still_decide_for_itself(app: Mainspring) -> None:
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), Snooze(2)).move is Move.SNOOZE
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), Discard()).move is Move.DEAD


def test_no_room_here(app: Mainspring) -> None:
    outcome = raised(stop(run_of(app, "work"), Stop.CROWDED), asyncio.CancelledError())
    assert (outcome.move, outcome.delay) == (Move.RELEASE, outcomes.CROWDED_DELAY)


def test_a_timeout_is_an_error_of_its_own(app: Mainspring) -> None:
    outcome = raised(stop(run_of(app, "work", timeout=1500), Stop.TIMEOUT), WorkerCrashed())
    assert outcome.move is Move.RETRY
    assert outcome.failure is not None
    assert (outcome.failure.type, outcome.failure.message) == (
        "TimeoutError",
        "ran longer than its timeout of 1.5 s",
    )


def test_a_job_of_an_unknown_task_goes_back_without_delay(app: Mainspring) -> None:
    outcome = outcomes.unknown_task(run_of(app, "work"), NOW)
    assert (outcome.move, outcome.delay) == (Move.RELEASE, 0)
    assert "'work'" in outcome.reason


def test_an_error_that_was_told_keeps_its_words() -> None:
    error = ValueError("here")
    told = Failure("TheirError", "there", "trace")
    error.mainspring_failure = told  # type: ignore[attr-defined]
    assert outcomes.failure_of(error) is told


def test_failures_can_always_be_stored() -> None:
    assert outcomes.failure_of(Mute()).message == "<its message raised RuntimeError>"
    assert outcomes.failure_of(ValueError("caf\udce9")).message == "caf\\udce9"


def test_megabytes_of_error_text_are_shortened(app: Mainspring) -> None:
    text = "begin " + "x" * 5_000_000 + " end"
    try:
        raise ValueError(text)
    except ValueError as error:
        outcome = raised(run_of(app, "work"), error)
    assert outcome.failure is not None
    for shown, most in ((outcome.failure.message, 4096), (outcome.failure.traceback, 16_384)):
        assert len(shown) < most + 50
        assert "… shortened …" in shown
        assert shown.rstrip().endswith(" end")
    assert outcome.failure.message.startswith("begin ")
    assert len(raised(run_of(app, "work"), Cancel(text)).reason) < 4200


def test_a_shortened_traceback_still_tells_what_led_to_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceback.format_exception", None)  # it would take seconds for such texts
    lines = "\n".join(map(str, range(10_000)))
    try:
        try:
            raise ExceptionGroup("several", [ValueError("first of them"), KeyError("k")])
        except ExceptionGroup as group:
            group.add_note(f"noted {lines}")
            raise LookupError(lines) from group
    except LookupError as error:
        trace = outcomes.failure_of(error).traceback
    assert len(trace) <= LONGEST_TRACEBACK
    told = ["ExceptionGroup: several", "noted 0\n1\n", "ValueError: first of them", "LookupError: 0\n1\n", "9999\n"]
    assert [text for text in told if text not in trace] == []


def test_an_error_that_raises_whatever_it_is_asked_for_is_still_told() -> None:
    try:
        raise Delegating("no such guest")
    except Delegating as error:
        failure = outcomes.failure_of(error)
    assert (failure.type, failure.message) == ("Delegating", "no such guest")
    assert "test_an_error_that_raises" in failure.traceback
    assert "Delegating: no such guest\n" in failure.traceback  # Python 3.13 adds that reading the notes failed


# -- stalled runs ---------------------------------------------------------------------------------


def stalled(options: str | None = None, attempt: int = 1) -> StalledRun:
    return StalledRun("id", "work", "default", attempt, options)


def test_a_stalled_job_is_retried_by_the_policy_of_its_task(app: Mainspring) -> None:
    assert outcomes.after_stall(app.tasks["computed"], stalled(attempt=3)) == 30_000


def test_a_stalled_job_may_carry_its_own_policy(app: Mainspring) -> None:
    options = json.dumps({"retry": Retry.delays(1, 5).to_data()})
    assert outcomes.after_stall(app.tasks["computed"], stalled(options, attempt=2)) == 5000
    assert outcomes.after_stall(None, stalled(options)) == 1000


def test_a_stalled_job_of_an_unknown_task_is_retried_by_the_default_policy() -> None:
    assert 60_000 <= (outcomes.after_stall(None, stalled()) or 0) <= 72_000


def test_a_policy_that_does_not_retry_timeouts_gives_up_on_a_stalled_job(app: Mainspring) -> None:
    @app.task(retry=Retry(never=(TimeoutError,)))
    async def impatient() -> None: ...

    assert outcomes.after_stall(impatient, stalled()) is None


def test_a_policy_that_fails_leaves_a_stalled_job_to_the_default_one(app: Mainspring) -> None:
    assert 60_000 <= (outcomes.after_stall(app.tasks["broken"], stalled()) or 0) <= 72_000
