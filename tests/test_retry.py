from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ConfigurationError
from mainspring.retry import Retry

ERROR = ValueError("boom")


def delays(retry: Retry, attempts: int = 5) -> list[int | None]:
    return [retry.delay(attempt, ERROR) for attempt in range(1, attempts + 1)]


def test_delays_double_up_to_the_cap() -> None:
    assert delays(Retry(base=1, max_delay=5, jitter_share=0)) == [1000, 2000, 4000, 5000, 5000]


def test_by_default_there_are_three_attempts_a_minute_and_more_apart() -> None:
    retry = Retry()
    assert retry.max_attempts == 3
    first, second = delays(retry, 2)
    assert first is not None
    assert second is not None
    assert 60_000 <= first <= 72_000
    assert 120_000 <= second <= 144_000


def test_times_may_be_timedeltas() -> None:
    assert delays(Retry(base=timedelta(minutes=1), max_delay=timedelta(minutes=3), jitter_share=0), 3) == [
        60_000,
        120_000,
        180_000,
    ]


def test_a_fixed_delay_stays_the_same() -> None:
    assert delays(Retry.fixed(30)) == [30_000] * 5


def test_explicit_delays_are_used_in_order_and_the_last_again() -> None:
    assert delays(Retry.delays(30, timedelta(seconds=60))) == [30_000, 60_000, 60_000, 60_000, 60_000]


def test_explicit_delays_make_one_attempt_more_than_there_are_delays() -> None:
    assert Retry.delays(30, 60).max_attempts == 3
    assert Retry.delays(30, 60, max_attempts=10).max_attempts == 10


def test_a_function_decides_by_attempt_and_error() -> None:
    retry = Retry.by(lambda attempt, error: attempt * 10 if isinstance(error, ValueError) else None)
    assert delays(retry, 3) == [10_000, 20_000, 30_000]
    assert retry.delay(1, OSError()) is None


def test_a_function_may_return_a_timedelta() -> None:
    assert Retry.by(lambda _attempt, _error: timedelta(seconds=2)).delay(1, ERROR) == 2000


def test_a_delay_of_zero_does_not_give_up() -> None:
    assert Retry.by(lambda _attempt, _error: 0).delay(1, ERROR) == 0
    assert Retry.fixed(0).delay(1, ERROR) == 0


@given(attempt=st.integers(1, 10), jitter=st.floats(0, 1))
def test_jitter_lengthens_delays_below_the_cap(attempt: int, jitter: float) -> None:
    planned = 1000 * 2 ** (attempt - 1)
    jittered = Retry(base=1, max_delay=10_000, jitter_share=jitter).delay(attempt, ERROR)
    assert jittered is not None
    assert planned <= jittered <= planned * (1 + jitter) + 1


@given(attempt=st.integers(7, 10_000), jitter=st.floats(0, 1))
def test_delays_that_reach_the_cap_are_spread_below_it(attempt: int, jitter: float) -> None:
    delay = Retry(base=1, max_delay=60, jitter_share=jitter).delay(attempt, ERROR)
    assert delay is not None
    assert 60_000 / (1 + jitter) - 1 <= delay <= 60_000


@pytest.mark.parametrize("retry", [Retry.fixed(30, jitter_share=0.5), Retry.delays(7200, jitter_share=0.5)])
def test_fixed_and_explicit_delays_are_lengthened_by_their_jitter(retry: Retry) -> None:
    planned = 30_000 if not retry.explicit else 7_200_000
    drawn = [delay for _ in range(200) if (delay := retry.delay(1, ERROR)) is not None]
    assert all(planned <= delay <= planned * 1.5 for delay in drawn)
    assert max(drawn) > planned * 1.2


@given(
    base=st.floats(0, 1e6),
    max_delay=st.floats(0, 1e6),
    factor=st.floats(1, 10),
    attempt=st.integers(1, 1_000_000),
    jitter=st.floats(0, 2),
)
def test_no_delay_exceeds_the_cap_however_many_attempts(
    base: float, max_delay: float, factor: float, attempt: int, jitter: float
) -> None:
    delay = Retry(base=base, max_delay=max_delay, factor=factor, jitter_share=jitter).delay(attempt, ERROR)
    assert delay is not None
    assert 0 <= delay <= round(max_delay * 1000)


# -- which errors ---------------------------------------------------------------------------------


def test_any_error_is_retried_by_default() -> None:
    assert Retry().allows(ERROR)


def test_only_the_named_errors_are_retried() -> None:
    retry = Retry(only=(ConnectionError,))
    assert retry.allows(ConnectionResetError())
    assert not retry.allows(ERROR)


def test_errors_that_are_never_retried_win() -> None:
    retry = Retry(only=(OSError,), never=(FileNotFoundError,))
    assert retry.allows(PermissionError())
    assert not retry.allows(FileNotFoundError())


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"base": -1},
        {"max_delay": timedelta(seconds=-1)},
        {"jitter_share": -0.1},
        {"factor": 0.5},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Retry(**wrong)


def test_explicit_delays_need_at_least_one() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Retry.delays()


# -- as data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "retry",
    [Retry(), Retry(5, 1, 300, 0.5, 3), Retry.fixed(30), Retry.delays(30, 60), Retry(base=timedelta(minutes=2))],
)
def test_a_policy_travels_with_a_job(retry: Retry) -> None:
    back = Retry.from_data(json.loads(json.dumps(retry.to_data())))
    assert back.to_data() == retry.to_data()
    assert back.max_attempts == retry.max_attempts


@pytest.mark.parametrize(
    "retry", [Retry.by(lambda _attempt, _error: 1), Retry(only=(OSError,)), Retry(never=(ValueError,))]
)
def test_a_policy_with_code_does_not_travel(retry: Retry) -> None:
    with pytest.raises(ConfigurationError, match="belongs on the task"):
        retry.to_data()


@pytest.mark.parametrize(("delay", "said"), [(-1, "must not be negative"), ("5m", "'5m' is not a length of time")])
def test_delays_are_lengths_of_time(delay: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Retry.delays(60, delay)
