from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze
from mainspring.errors import (
    CannotStoreResult,
    ConfigurationError,
    InvalidPayload,
    UnsupportedCall,
    WorkerCrashed,
)
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Outcome
from mainspring.worker.run import (
    CROWDED_DELAY,
    Dumped,
    Run,
    Stop,
    outcome_of_error,
    outcome_of_unknown_task,
    outcome_of_value,
    run_in_new_context,
)
from tests.worker.working import new_app, run_of

NOW = 5000
name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


class Unfit:
    """Nothing that JSON knows."""


def broken_policy(attempt: int, error: BaseException) -> float:
    raise ZeroDivisionError("in the policy")


@pytest.fixture
def app() -> Mainspring:
    app = new_app()

    @app.task()
    async def work() -> Any: ...

    @app.task(retry=Retry(max_attempts=5, base=1, jitter_share=0, never=(ValueError,)))
    async def picky() -> Any: ...

    @app.task(retry=Retry(max_attempts=5, base=1, jitter_share=0, only=(OSError,)))
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
    outcome = outcome_of_value(run, value, NOW)
    assert outcome is not None
    return outcome


def raised(run: Run, error: BaseException) -> Outcome:
    outcome = outcome_of_error(run, error, NOW)
    assert outcome is not None
    assert (outcome.job_id, outcome.token, outcome.started_at, outcome.finished_at) == ("j1", 1, 1000, NOW)
    return outcome


def test_the_returned_value_is_the_result(app: Mainspring) -> None:
    outcome = returned(run_of(app, "work"), {"sum": 3})
    assert (outcome.move, outcome.result, outcome.follow_ups) == (Move.DONE, '{"sum":3}', ())


def test_a_handler_that_returns_none_has_no_result(app: Mainspring) -> None:
    assert returned(run_of(app, "work"), None).result is None


def test_the_result_of_a_child_process_is_stored_as_it_is(app: Mainspring) -> None:
    assert returned(run_of(app, "work"), Dumped('"2026-01-01"')).result == '"2026-01-01"'


def test_result_and_follow_ups_of_the_context_are_in_the_outcome(app: Mainspring) -> None:
    run = run_of(app, "work")
    run.context = Context(run.claim)
    run.context.set_result(None)
    follow_up = NewJob(new_id(), "work", "{}")
    run.context.follow_up(follow_up)
    outcome = returned(run, "ignored")
    assert outcome.result is None
    assert outcome.follow_ups == (follow_up,)


def test_a_result_that_is_not_json_makes_a_dead_letter(app: Mainspring) -> None:
    outcome = returned(run_of(app, "work"), Unfit())
    assert outcome.move is Move.DEAD
    assert outcome.failure is not None
    assert outcome.failure.type == "CannotStoreResult"


def test_a_result_whose_type_raises_makes_a_dead_letter(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_retry_rules_decide_by_exception(app: Mainspring, task: str, error: Exception, move: Move, delay: int) -> None:
    outcome = raised(run_of(app, task), error)
    assert (outcome.move, outcome.delay) == (move, delay)


def test_a_policy_that_raises_is_replaced_by_the_default(app: Mainspring) -> None:
    outcome = raised(run_of(app, "broken"), OSError("the cause"))
    assert outcome.move is Move.RETRY
    assert 60_000 <= outcome.delay <= 72_000
    assert outcome.failure is not None
    assert outcome.failure.message == "the cause"
    assert "in the policy" in outcome.failure.traceback
    assert raised(run_of(app, "broken", attempts=2), OSError()).move is Move.DEAD


@pytest.mark.parametrize("answer", ["soon", float("inf"), float("nan")])
def test_a_policy_that_returns_no_number_is_replaced_by_the_default(answer: Any) -> None:
    app = new_app()

    @app.task(retry=Retry.by(lambda _attempt, _error: answer))
    async def work() -> None: ...

    assert raised(run_of(app, "work"), OSError()).move is Move.RETRY


def test_a_negative_delay_becomes_zero() -> None:
    app = new_app()

    @app.task(retry=Retry.by(lambda _attempt, _error: -5))
    async def work() -> None: ...

    assert raised(run_of(app, "work"), OSError()).delay == 0


def test_a_job_s_own_policy_overrides_that_of_its_task(app: Mainspring) -> None:
    options = '{"retry": {"max_attempts": 9, "explicit": [7], "jitter_share": 0}}'
    assert raised(run_of(app, "work", options=options), OSError()).delay == 7000


@pytest.mark.parametrize("error", [InvalidPayload("no"), CannotStoreResult("no"), UnsupportedCall("no")])
def test_errors_that_would_repeat_make_a_dead_letter_at_once(app: Mainspring, error: Exception) -> None:
    assert raised(run_of(app, "work"), error).move is Move.DEAD


@pytest.mark.parametrize("delay", [-3, timedelta(seconds=-3)])
def test_snooze_refuses_a_negative_delay(delay: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match="cannot run again before now"):
        Snooze(delay)


def test_a_crash_of_the_child_process_is_a_crash(app: Mainspring) -> None:
    assert raised(run_of(app, "work", attempts=2), WorkerCrashed()).move is Move.CRASH


def test_snooze_cancel_and_discard_decide_the_outcome(app: Mainspring) -> None:
    snoozed = raised(run_of(app, "work"), Snooze(1.5, "busy"))
    assert (snoozed.move, snoozed.delay, snoozed.reason) == (Move.SNOOZE, 1500, "busy")
    assert raised(run_of(app, "work"), Snooze(0)).delay == 0
    cancelled = raised(run_of(app, "work"), Cancel("not needed"))
    assert (cancelled.move, cancelled.reason) == (Move.CANCEL, "not needed")
    discarded = raised(run_of(app, "work"), Discard("hopeless"))
    assert (discarded.move, discarded.reason) == (Move.DEAD, "hopeless")


def test_an_exception_can_be_given_as_the_reason(app: Mainspring) -> None:
    assert raised(run_of(app, "work"), Discard(ValueError("no such guest"))).reason == "no such guest"
    assert raised(run_of(app, "work"), Cancel(None)).reason == ""
    assert raised(run_of(app, "work"), Snooze(1, KeyError("busy"))).reason == "'busy'"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_base_exceptions_are_retried_like_exceptions(app: Mainspring, error: BaseException) -> None:
    outcome = raised(run_of(app, "work"), error)
    assert outcome.move is Move.RETRY
    assert outcome.failure is not None
    assert outcome.failure.type == type(error).__name__


def test_a_lost_claim_writes_nothing(app: Mainspring) -> None:
    assert outcome_of_error(stop(run_of(app, "work"), Stop.LOST), asyncio.CancelledError(), NOW) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError(), Snooze(1)])
def test_a_cancelled_run_is_cancelled_whatever_it_raises(app: Mainspring, error: BaseException) -> None:
    outcome = raised(stop(run_of(app, "work"), Stop.CANCEL, "changed our mind"), error)
    assert (outcome.move, outcome.reason) == (Move.CANCEL, "changed our mind")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), WorkerCrashed(), Cancel(), ConnectionError()])
def test_a_stopping_worker_releases_the_job_whatever_it_raises(app: Mainspring, error: BaseException) -> None:
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), error).move is Move.RELEASE


def test_snooze_and_discard_count_while_the_worker_stops(app: Mainspring) -> None:
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), Snooze(2)).move is Move.SNOOZE
    assert raised(stop(run_of(app, "work"), Stop.SHUTDOWN), Discard()).move is Move.DEAD


def test_a_job_without_room_is_released_with_a_delay(app: Mainspring) -> None:
    outcome = raised(stop(run_of(app, "work"), Stop.CROWDED), asyncio.CancelledError())
    assert (outcome.move, outcome.delay) == (Move.RELEASE, CROWDED_DELAY)


@pytest.mark.parametrize("how", [Stop.CANCEL, Stop.CROWDED, Stop.HALTED, Stop.SHUTDOWN])
@pytest.mark.parametrize("called", [True, False])
def test_a_run_that_is_stopped_counts_as_a_start_only_if_its_handler_was_called(
    app: Mainspring, how: Stop, *, called: bool
) -> None:
    run = stop(run_of(app, "work"), how)
    run.called = called
    assert raised(run, asyncio.CancelledError()).blocked is not called


@pytest.mark.parametrize("error", [ValueError(), Discard(), WorkerCrashed()])
def test_a_failed_attempt_counts_as_a_start_even_if_its_handler_was_not_called(
    app: Mainspring, error: BaseException
) -> None:
    assert not raised(run_of(app, "work"), error).blocked


def test_a_timeout_fails_with_timeout_error(app: Mainspring) -> None:
    outcome = raised(stop(run_of(app, "work", timeout=1500), Stop.TIMEOUT), WorkerCrashed())
    assert outcome.move is Move.RETRY
    assert outcome.failure is not None
    assert (outcome.failure.type, outcome.failure.message) == (
        "TimeoutError",
        "ran longer than its timeout of 1.5 s",
    )


def test_a_job_of_an_unknown_task_is_released_without_delay(app: Mainspring) -> None:
    outcome = outcome_of_unknown_task(run_of(app, "work"), NOW)
    assert (outcome.move, outcome.delay) == (Move.RELEASE, 0)
    assert "'work'" in outcome.reason


def test_long_error_messages_and_reasons_are_shortened(app: Mainspring) -> None:
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


# -- a context of its own ------------------------------------------------------------------------


async def test_context_variables_do_not_leak_from_a_new_context() -> None:
    async def work() -> str:
        before = name.get()
        name.set("worker")
        await asyncio.sleep(0)
        assert name.get() == "worker"
        return before

    name.set("caller")
    assert await run_in_new_context(work(), lambda: None) == "caller"
    assert name.get() == "caller"


async def test_a_new_context_passes_on_errors_and_cancellations() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        await run_in_new_context(fails(), lambda: None)

    cleaned: list[bool] = []

    async def waits() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cleaned.append(True)
            return "swallowed"
        return "never"

    async def outer() -> str:
        return await run_in_new_context(waits(), lambda: None)

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "swallowed"
    assert cleaned == [True]
