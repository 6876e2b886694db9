"""Tokens drawn ahead: they are used in time, or go back in time, or are lost."""

from __future__ import annotations

from mainspring.features.limits.token_cache import LEASE, USABLE_FOR, Portion, TokenCache, returnable


def test_the_oldest_are_used_first_and_none_when_it_must_go_back() -> None:
    token_cache = TokenCache()
    assert token_cache.tokens(0) == 0
    token_cache.add(2, 0)
    token_cache.add(5, USABLE_FOR / 2)
    assert token_cache.tokens(0) == 7
    token_cache.take(1)
    assert token_cache.tokens(USABLE_FOR * 1.1) == 5  # one of the first two is stale now
    token_cache.take(1)
    assert (token_cache.give_back_stale(), token_cache.give_back_stale()) == ([Portion(1, 0)], [])
    assert token_cache.tokens(USABLE_FOR * 2) == 0
    assert token_cache.empty() == [Portion(4, USABLE_FOR / 2)]


def test_none_goes_back_after_its_lease() -> None:
    portions = [Portion(1, 0), Portion(2, LEASE / 2)]
    assert returnable(portions, LEASE) == 3
    assert returnable(portions, LEASE * 1.1) == 2
    assert returnable(portions, LEASE * 2) == 0


def test_many_are_taken_from_several_portions() -> None:
    token_cache = TokenCache()
    token_cache.add(2, 0)
    token_cache.add(5, USABLE_FOR / 2)
    token_cache.take(4)
    assert (token_cache.tokens(0), token_cache.tokens(USABLE_FOR * 1.1), token_cache.give_back_stale()) == (
        3,
        3,
        [Portion(0, 0)],
    )


def test_it_is_low_when_half_of_it_is_gone_or_half_of_its_time() -> None:
    token_cache = TokenCache()
    assert token_cache.is_low(0)
    token_cache.add(4, 0)
    assert not token_cache.is_low(0)
    assert token_cache.is_low(USABLE_FOR * 0.6)
    token_cache.take(3)
    assert token_cache.is_low(0)
    token_cache.add(4, 0)
    assert not token_cache.is_low(0)
