"""The token bucket, and that no window of time ever sees more starts than it should."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainspring.flow.limits.bucket import CALL_LASTS, TURN, Bucket


def starts_in(history: list[tuple[int, int]], window: int) -> int:
    """The most in any window of that length."""
    return max((sum(n for at, n in history if begin <= at < begin + window) for begin, _ in history), default=0)


def test_a_full_bucket_gives_its_burst_and_then_what_drips() -> None:
    bucket = Bucket.full(0.01, 3, 0)
    assert (bucket.room, bucket.draw(10), bucket.room) == (3, 3, 0)
    bucket.fill(99)
    assert bucket.room == 0
    bucket.fill(100)
    assert bucket.room == 1
    bucket.fill(1_000_000)
    assert bucket.room == 3


def test_a_clock_that_is_behind_adds_nothing_and_one_that_was_wrong_does_not_stop_it_for_ever() -> None:
    bucket = Bucket.full(0.01, 1, 100_000)
    bucket.draw(1)
    bucket.fill(99_000)
    assert (bucket.room, bucket.at) == (0, 100_000)
    bucket.fill(10_000)  # somebody's clock had been far ahead
    assert bucket.at == 10_000
    bucket.fill(10_100)
    assert bucket.room == 1


def test_while_others_wait_only_who_was_called_may_start() -> None:
    bucket = Bucket.full(0.01, 5, 0)
    bucket.waiting = True
    assert (bucket.room, bucket.draw(5)) == (0, 0)
    assert (bucket.call(0), bucket.call(0), bucket.room) == (5, 0, 5)
    bucket.take("a", 1)
    assert (bucket.room, bucket.called) == (4, 4)
    bucket.fill(CALL_LASTS + 1)  # they do not come
    assert (bucket.called, bucket.room) == (0, 0)
    assert bucket.call(CALL_LASTS + 1) == 5


def test_their_next_turn_is_when_there_is_a_token() -> None:
    slow, quick = Bucket.full(1 / 60_000, 1, 0), Bucket.full(10, 1, 0)
    for bucket in (slow, quick):
        bucket.draw(100)
        bucket.waiting = True
    assert (slow.due_at(0, None), quick.due_at(0, None)) == (60_000, TURN)
    quick.fill(TURN)
    assert quick.room == 0
    assert quick.call(TURN) == 1000  # what drips between two turns is not lost, however small the burst


def test_an_unused_bucket_is_forgotten_when_it_is_full() -> None:
    bucket = Bucket.full(0.001, 10, 0)
    bucket.draw(10)
    assert (bucket.expires_at(0) or 0) >= 10_000
    bucket.waiting = True
    assert bucket.expires_at(0) is None


@given(
    st.integers(1, 50),
    st.integers(1, 2_000),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40), st.integers(0, 5)), max_size=40),
    st.sampled_from([50, 500, 5_000]),
)
def test_no_window_sees_more_than_burst_and_drip(
    count: int, per: int, burst: int, asked: list[tuple[int, int, int]], window: int
) -> None:
    """Whatever is drawn and put back, by however many processes: they go through this one bucket."""
    bucket, now, history = Bucket.full(count / per, burst, 0), 0, list[tuple[int, int]]()
    for pause, wanted, unused in asked:
        now += pause
        bucket.fill(now)
        drawn = bucket.draw(wanted)
        back = min(drawn, unused)
        bucket.put_back(back)
        history.append((now, drawn - back))
    allowed = max(burst, bucket.drip * TURN) + bucket.drip * window
    assert starts_in(history, window) <= allowed + 1e-6
