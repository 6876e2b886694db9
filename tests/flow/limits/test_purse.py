"""Tokens drawn ahead: they are used in time, or go back in time, or are lost."""

from __future__ import annotations

from mainspring.flow.limits.purse import LEASE, USABLE, Portion, Purse, returnable


def test_the_oldest_are_used_first_and_none_when_it_must_go_back() -> None:
    purse = Purse()
    assert purse.tokens(0) == 0
    purse.add(2, 0)
    purse.add(5, USABLE / 2)
    assert purse.tokens(0) == 7
    purse.take(1)
    assert purse.tokens(USABLE * 1.1) == 5  # one of the first two is stale now
    purse.take(1)
    assert (purse.give_back_stale(), purse.give_back_stale()) == ([Portion(1, 0)], [])
    assert purse.tokens(USABLE * 2) == 0
    assert purse.empty() == [Portion(4, USABLE / 2)]


def test_none_goes_back_after_its_lease() -> None:
    portions = [Portion(1, 0), Portion(2, LEASE / 2)]
    assert returnable(portions, LEASE) == 3
    assert returnable(portions, LEASE * 1.1) == 2
    assert returnable(portions, LEASE * 2) == 0


def test_many_are_taken_from_several_portions() -> None:
    purse = Purse()
    purse.add(2, 0)
    purse.add(5, USABLE / 2)
    purse.take(4)
    assert (purse.tokens(0), purse.tokens(USABLE * 1.1), purse.give_back_stale()) == (3, 3, [Portion(0, 0)])


def test_it_is_low_when_half_of_it_is_gone_or_half_of_its_time() -> None:
    purse = Purse()
    assert purse.is_low(0)
    purse.add(4, 0)
    assert not purse.is_low(0)
    assert purse.is_low(USABLE * 0.6)
    purse.take(3)
    assert purse.is_low(0)
    purse.add(4, 0)
    assert not purse.is_low(0)
