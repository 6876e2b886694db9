"""Tokens drawn in advance: they are used in time, or go back."""

from __future__ import annotations

from mainspring.flow.limits.purse import LEASE, Purse


def test_the_oldest_are_used_first_and_none_after_its_lease() -> None:
    purse = Purse()
    assert purse.tokens(0) == 0
    purse.add(2, 0)
    purse.add(5, LEASE / 2)
    assert purse.tokens(0) == 7
    purse.take(1)
    assert purse.tokens(LEASE * 1.1) == 5  # one of the first two is stale now
    purse.take(1)
    assert (purse.give_back_stale(), purse.give_back_stale()) == (1, 0)
    assert purse.tokens(LEASE * 2) == 0
    assert purse.empty() == 4


def test_many_are_taken_from_several_portions() -> None:
    purse = Purse()
    purse.add(2, 0)
    purse.add(5, LEASE / 2)
    purse.take(4)
    assert (purse.tokens(0), purse.tokens(LEASE * 1.1), purse.give_back_stale()) == (3, 3, 0)


def test_it_is_low_when_half_of_it_is_gone_or_half_of_its_time() -> None:
    purse = Purse()
    assert purse.is_low(0)
    purse.add(4, 0)
    assert not purse.is_low(0)
    assert purse.is_low(LEASE * 0.6)
    purse.take(3)
    assert purse.is_low(0)
    purse.add(4, 0)
    assert not purse.is_low(0)
