from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.stores.protocol import EVERY_QUEUE, Want
from mainspring.worker.intake import PREFETCH_SECONDS, Prefetch, SoloTurns, wants
from mainspring.worker.settings import Subscription

NAMES = "abcdef"


@st.composite
def subscribed(draw: st.DrawFn) -> list[Subscription]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    limits = st.none() | st.integers(1, 20)
    return [Subscription(name, draw(st.integers(1, 50)), draw(limits)) for name in names]


in_hands = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 25))


def asked(found: list[Want]) -> Counter[str]:
    total: Counter[str] = Counter()
    for want in found:
        total[want.queue] += want.limit
    return total


@pytest.mark.slow
@given(subscribed(), st.booleans(), st.integers(1, 100), in_hands, st.randoms(use_true_random=False))
def test_no_queue_gets_more_than_its_limit_leaves(
    subscriptions: list[Subscription], strict: bool, room: int, in_hand: dict[str, int], rng: random.Random
) -> None:
    total = asked(wants(subscriptions, strict=strict, room=room, in_hand=in_hand, rng=rng))
    for one in subscriptions:
        if one.concurrency is not None:
            assert total[one.queue] <= max(0, one.concurrency - in_hand.get(one.queue, 0))


@pytest.mark.slow
@given(subscribed(), st.booleans(), st.integers(1, 100), in_hands, st.randoms(use_true_random=False))
def test_a_queue_that_is_open_can_fill_all_the_room(
    subscriptions: list[Subscription], strict: bool, room: int, in_hand: dict[str, int], rng: random.Random
) -> None:
    """If the others are empty nothing is held back for them."""
    found = wants(subscriptions, strict=strict, room=room, in_hand=in_hand, rng=rng)
    assert all(want.limit > 0 for want in found)
    total = asked(found)
    for one in subscriptions:
        left = room if one.concurrency is None else one.concurrency - in_hand.get(one.queue, 0)
        assert total[one.queue] >= min(room, max(0, left))


@given(subscribed(), st.integers(1, 100), st.randoms(use_true_random=False))
def test_strict_means_the_order_given(subscriptions: list[Subscription], room: int, rng: random.Random) -> None:
    found = wants(subscriptions, strict=True, room=room, in_hand={}, rng=rng)
    assert [want.queue for want in found] == [one.queue for one in subscriptions]


@pytest.mark.slow
@given(subscribed(), st.integers(10, 200), st.randoms(use_true_random=False))
def test_each_queue_has_a_share_before_the_rest_is_given_out(
    subscriptions: list[Subscription], room: int, rng: random.Random
) -> None:
    found = wants(subscriptions, strict=False, room=room, in_hand={}, rng=rng)
    assert {want.queue for want in found[: len(subscriptions)]} == {one.queue for one in subscriptions}


def test_shares_follow_the_weights() -> None:
    mail, default = Subscription("mail", 3), Subscription("default", 1)
    found = wants([mail, default], strict=False, room=100, in_hand={}, rng=random.Random(7))
    assert sorted(found[:2], key=lambda want: want.queue) == [Want("default", 25), Want("mail", 75)]


def test_with_room_for_one_the_weights_decide_how_often_each_is_first() -> None:
    rng, first = random.Random(1), Counter[str]()
    pair = [Subscription("heavy", 9), Subscription("light", 1)]
    for _ in range(4000):
        first[wants(pair, strict=False, room=1, in_hand={}, rng=rng)[0].queue] += 1
    assert 0.87 < first["heavy"] / 4000 < 0.93


def test_a_limit_of_every_queue_counts_all_of_them() -> None:
    star = [Subscription(EVERY_QUEUE, concurrency=3)]
    assert wants(star, strict=False, room=10, in_hand={"a": 1, "b": 1}, rng=random.Random()) == [Want("*", 1)]
    assert wants(star, strict=False, room=10, in_hand={"a": 2, "b": 1}, rng=random.Random()) == []


# -- prefetch -------------------------------------------------------------------------------------


def measured(prefetch: Prefetch, rate: float, seconds: float, start: float = 0.0) -> float:
    now = start
    while now < start + seconds:
        now += 0.01
        prefetch.finished(round(rate * 0.01), now)
    return now


def test_nothing_is_claimed_ahead_before_anything_is_known() -> None:
    assert Prefetch(1000).ahead == 0


def test_quick_jobs_are_claimed_ahead_for_a_moment() -> None:
    prefetch = Prefetch(1000)
    measured(prefetch, 10_000, 2)
    assert prefetch.ahead == pytest.approx(10_000 * PREFETCH_SECONDS, rel=0.1)


def test_what_was_measured_first_counts_at_once() -> None:
    prefetch = Prefetch(2000)
    measured(prefetch, 10_000, 0.06)
    assert prefetch.ahead == pytest.approx(10_000 * PREFETCH_SECONDS, rel=0.25)


def test_it_adapts_when_jobs_become_slow() -> None:
    prefetch = Prefetch(1000)
    now = measured(prefetch, 10_000, 2)
    for second in range(1, 20):
        prefetch.finished(1, now + second)
    assert prefetch.ahead == 0


def test_slow_jobs_are_never_claimed_ahead() -> None:
    prefetch = Prefetch(1000)
    for second in range(30):
        prefetch.finished(4, float(second))
    assert prefetch.ahead == 0


def test_an_overestimate_is_forgotten_at_once() -> None:
    prefetch = Prefetch(1000)
    measured(prefetch, 10_000, 2)
    prefetch.overestimated()
    assert prefetch.ahead == 0


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 10)), max_size=50))
def test_it_keeps_within_its_bounds(most: int, steps: list[tuple[int, float]]) -> None:
    prefetch, now = Prefetch(most), 0.0
    for number, seconds in steps:
        now += seconds
        prefetch.finished(number, now)
        assert 0 <= prefetch.ahead <= most


# -- turns of suspects and others -----------------------------------------------------------------


NOW = 100.0


def busy(now: float = NOW) -> SoloTurns:
    """Of a worker with other jobs, which has just noticed suspects."""
    turns = SoloTurns()
    turns.others_came(now)
    turns.noticed(True, now)
    return turns


def test_without_suspects_there_are_no_turns() -> None:
    turns = busy()
    turns.noticed(False, NOW)
    assert turns.due_in(NOW + 60, idle=True) is None


def test_an_idle_worker_runs_suspects_at_once() -> None:
    turns = SoloTurns()
    turns.noticed(True, NOW)
    assert turns.due_in(NOW, idle=True) == 0
    turns.ended(NOW, NOW + 5, alone=True)
    assert turns.due_in(NOW + 5, idle=True) == 0


def test_a_busy_worker_leaves_them_to_idle_ones_at_first() -> None:
    turns = busy()
    assert turns.due_in(NOW, idle=False) == SoloTurns.HOLD_BACK
    assert turns.due_in(NOW + SoloTurns.HOLD_BACK, idle=False) == 0


def test_after_a_turn_the_others_have_four_times_as_long() -> None:
    turns, now = busy(), NOW + SoloTurns.HOLD_BACK
    turns.ended(now, now + 0.1, alone=True)
    turns.others_came(now + 0.1)
    assert turns.due_in(now + 0.1, idle=False) == pytest.approx(0.4)
    assert turns.due_in(now + 0.1, idle=True) == pytest.approx(0.4)  # between two jobs it is idle for a moment
    turns.noticed(True, now + 0.3)  # they still wait: nothing begins anew
    assert turns.due_in(now + 0.3, idle=False) == pytest.approx(0.2)


def test_suspects_that_have_waited_for_long_get_half_of_the_time() -> None:
    turns, now = busy(), NOW + SoloTurns.OLD_AFTER + 1
    turns.ended(now, now + 2, alone=True)
    assert turns.due_in(now + 2, idle=False) == pytest.approx(2)


def test_turns_wait_longer_while_the_worker_is_never_idle() -> None:
    turns, patience = busy(), []
    for _ in range(12):
        patience.append(turns.patience)
        turns.ended(NOW, NOW + turns.patience, alone=False)
    assert patience[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert patience[-1] == SoloTurns.LONGEST_PATIENCE
    turns.noticed(False, NOW)
    assert turns.patience == SoloTurns.FIRST_PATIENCE


def test_a_worker_that_runs_a_long_job_does_not_stop_claiming_although_nothing_new_comes() -> None:
    turns = busy()
    turns.ended(NOW + 10, NOW + 11, alone=False)
    assert turns.due_in(NOW + 11, idle=False) == pytest.approx(4)
    assert turns.due_in(NOW + 11, idle=True) == 0  # now the long job has ended
