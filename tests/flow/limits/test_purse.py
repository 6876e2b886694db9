"""Tokens drawn in advance: they are used in time, or go back."""

from __future__ import annotations

from mainspring.flow.limits.purse import LEASE, Purse


def test_the_oldest_are_used_first_and_none_after_its_lease() -> None:
    purse = Purse()
    assert not purse.has_token(0)
    purse.add(2, 0)
    purse.add(5, LEASE / 2)
    assert purse.has_token(0)
    purse.take()
    assert purse.has_token(LEASE * 1.1)  # one of the first two is stale now
    purse.take()
    assert [portion.tokens for portion in purse.portions] == [4]
    assert (purse.give_back_stale(), purse.give_back_stale()) == (1, 0)
    assert not purse.has_token(LEASE * 2)
    assert purse.empty() == 4


def test_it_is_low_when_half_of_it_is_gone_or_half_of_its_time() -> None:
    purse = Purse()
    purse.add(4, 0)
    assert not purse.is_low(0)
    assert purse.is_low(LEASE * 0.6)
    for _ in range(3):
        assert purse.has_token(0)
        purse.take()
    assert purse.is_low(0)
    purse.add(4, 0)
    assert not purse.is_low(0)
