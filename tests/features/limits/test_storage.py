"""The token bucket, and that no window of time ever sees more starts than it should."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.clock import SKEW, Millis
from mainspring.features.limits.storage import WAITING_ROOM, WAKE_EVERY, WOKEN_FOR, Bucket
from mainspring.features.limits.token_cache import LEASE, TokenCache, returnable

SLACK: Millis = 200  # as docs/flow.md has it: burst + rate x (window + 0.2 s)


def excess(history: list[tuple[Millis, int]], drip: float, burst: int) -> float:
    """By how many starts the worst window, of any length, is beyond the documented bound."""
    times = [at for at, _ in history]
    before = [0, *accumulate(number for _, number in history)]
    return max(
        (
            before[last + 1] - before[first] - (burst + drip * (times[last] - times[first] + SLACK))
            for first in range(len(times))
            for last in range(first, len(times))
        ),
        default=0.0,
    )


def test_a_full_bucket_gives_its_burst_and_then_what_drips() -> None:
    bucket = Bucket.full(0.01, 3, 0)
    assert (bucket.room, bucket.draw(10), bucket.room) == (3, 3, 0)
    bucket.fill(99)
    assert bucket.room == 0
    bucket.fill(100)
    assert bucket.room == 1
    bucket.fill(1_000_000)
    assert bucket.room == 3


def test_a_process_whose_clock_is_a_little_behind_adds_nothing() -> None:
    bucket = Bucket.full(0.01, 1, 100_000)
    bucket.draw(1)
    bucket.fill(100_000 - SKEW)
    assert (bucket.room, bucket.at) == (0, 100_000)


def test_a_clock_that_went_back_stops_nothing() -> None:
    hour = 3_600_000
    bucket = Bucket.full(0.01, 1, hour)
    bucket.waiting = True
    assert (bucket.wake(hour), bucket.due_at(hour, None)) == (1, hour + 100)
    bucket.fill(0)  # the woken job went another way
    assert bucket.woken == 0
    assert bucket.due_at(0, hour + 100) == WAKE_EVERY
    bucket.take("a", 1)
    bucket.fill(100)
    assert bucket.wake(100) == 1


def test_while_jobs_wait_only_woken_ones_may_start() -> None:
    bucket = Bucket.full(0.01, 5, 0)
    bucket.waiting = True
    assert (bucket.room, bucket.draw(5)) == (0, 0)
    assert (bucket.wake(0), bucket.wake(0), bucket.room) == (5, 0, 5)
    bucket.take("a", 1)
    assert (bucket.room, bucket.woken) == (4, 4)
    bucket.fill(WOKEN_FOR + 1)  # they do not come
    assert (bucket.woken, bucket.room) == (0, 0)
    assert bucket.wake(WOKEN_FOR + 1) == 5 + int(0.01 * WAITING_ROOM)


def test_their_next_turn_is_when_there_is_a_token() -> None:
    slow, quick = Bucket.full(1 / 60_000, 1, 0), Bucket.full(10, 1, 0)
    for bucket in (slow, quick):
        bucket.draw(100)
        bucket.waiting = True
    assert (slow.due_at(0, None), quick.due_at(0, None)) == (60_000, WAKE_EVERY)
    quick.fill(WAKE_EVERY)
    assert quick.room == 0
    assert quick.wake(WAKE_EVERY) == 10 * WAKE_EVERY  # what drips in between is not lost, however small the burst


def test_a_turn_is_taken_before_the_next_token_if_a_woken_job_may_be_lost() -> None:
    bucket = Bucket.full(1 / 60_000, 2, 0)
    bucket.waiting = True
    assert bucket.wake(0) == 2
    assert bucket.due_at(0, None) == WOKEN_FOR + 1


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
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30), st.integers(0, 400)),  # milliseconds that pass
            st.integers(0, 2),  # the process
            st.sampled_from(["ask", "draw", "use", "return", "wait", "wake", "done"]),
            st.integers(1, 60),
        ),
        max_size=60,
    ),
)
def test_no_window_sees_more_than_the_documented_bound(
    count: int, per: int, burst: int, steps: list[tuple[int, int, str, int]]
) -> None:
    """Whatever several processes take, draw ahead, use, give back, and however often jobs wait and are woken."""
    bucket, now, history = Bucket.full(count / per, burst, 0), 0, list[tuple[int, int]]()
    token_caches = [TokenCache() for _ in range(3)]
    for pause, process, action, number in steps:
        now += pause
        token_cache, started = token_caches[process], 0
        bucket.fill(now)
        match action:
            case "ask":
                bucket.put_back(returnable(token_cache.empty(), now / 1000))
                while started < number and bucket.has_room_for("a"):
                    bucket.take("a", 1)
                    started += 1
            case "draw":
                token_cache.add(bucket.draw(min(number, int(bucket.drip * LEASE * 1000))), now / 1000)
            case "use":
                started = min(number, token_cache.tokens(now / 1000))
                token_cache.take(started)
            case "return":
                bucket.put_back(returnable(token_cache.empty(), now / 1000))
            case "wait" | "done":
                bucket.waiting = action == "wait"
            case "wake":
                bucket.wake(now)
        history.append((now, started))
    assert excess(history, bucket.drip, burst) <= 1e-6


def saturated(bucket: Bucket, length: Millis, latency: int, rng: random.Random) -> list[Millis]:
    """Starts while more jobs wait than may start, if the timer and woken jobs come late by up to `latency` each."""
    bucket.waiting = True
    events: list[tuple[Millis, str]] = [(0, "turn")]
    starts: list[Millis] = []
    while events[0][0] <= length:
        now, what = heapq.heappop(events)
        bucket.fill(now)
        if what == "turn":
            for _ in range(bucket.wake(now)):
                heapq.heappush(events, (now + rng.randint(0, latency), "job"))
            heapq.heappush(events, ((bucket.due_at(now, None) or now) + rng.randint(0, latency), "turn"))
        elif bucket.has_room_for("a"):
            bucket.take("a", 1)
            starts.append(now)
    return starts


@pytest.mark.parametrize(
    ("count", "per", "burst"),
    [
        (10, 1000, 1),
        (1, 500, 1),
        (5, 100, 50),
        pytest.param(7, 100, 2, marks=pytest.mark.slow),
        pytest.param(100, 1000, 1, marks=pytest.mark.slow),
        pytest.param(1000, 1000, 10, marks=pytest.mark.slow),
        pytest.param(1000, 1000, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("latency", [0, 5, 40])
def test_a_saturated_rate_is_reached_within_two_percent_with_any_burst(
    count: int, per: int, burst: int, latency: int
) -> None:
    length = max(20_000, 200 * per // count)
    bucket = Bucket.full(count / per, burst, 0)
    starts = saturated(bucket, length, latency, random.Random(f"{count} {per} {burst} {latency}"))
    steady = starts[bisect_left(starts, length // 4) :]
    assert len(steady) == pytest.approx(bucket.drip * length * 3 / 4, rel=0.02)
    some = [(at, 1) for at in starts[:2000]]
    assert excess(some, bucket.drip, burst) <= 1e-6
