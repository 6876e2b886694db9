"""Which jobs may start, and which are woken."""

from __future__ import annotations

from mainspring import Limit, Rate
from mainspring.features.limits.options import Ticket
from mainspring.features.limits.rules import (
    Acquire,
    LimitDecision,
    LimitRequest,
    Release,
    Wait,
    cases,
    decide,
    state_of,
)
from mainspring.features.limits.storage import Slots, State
from mainspring.stores.documents import Key

ALL = Ticket(Limit(3, name="all"), "")
ACME = Ticket(Limit(1, key=str, name="each"), "acme")
BOB = Ticket(Limit(1, key=str, name="each"), "bob")
QUICK = Ticket(Rate(2, per=60, name="quick"), "")


class Office:
    """States that stay from one decision to the next."""

    def __init__(self, *tickets: Ticket) -> None:
        self.states: dict[Key, State] = {ticket.document: state_of(ticket, None, 0) for ticket in tickets}

    def __call__(self, *wishes: LimitRequest) -> LimitDecision:
        return decide(wishes, self.states, 0)

    def holders(self, ticket: Ticket) -> set[str]:
        state = self.states[ticket.document]
        assert isinstance(state, Slots)
        return set(state.holders)


def names(decision: LimitDecision) -> list[str]:
    return [ask.job_id for ask in decision.admitted]


def test_first_come_first_served_until_it_is_full() -> None:
    office = Office(ALL)
    decision = office(*(Acquire(name, 1, (ALL,)) for name in "abcd"))
    assert names(decision) == ["a", "b", "c"]
    assert decision.refused == {("d", 1): ALL}


def test_all_that_it_needs_or_nothing_of_it() -> None:
    office = Office(ALL, ACME, BOB)
    decision = office(Acquire("a", 1, (ALL, ACME)), Acquire("b", 1, (ALL, ACME)), Acquire("c", 1, (ALL, BOB)))
    assert (names(decision), decision.refused) == (["a", "c"], {("b", 1): ACME})
    assert office.holders(ALL) == {"a", "c"}


def test_a_release_makes_room_in_the_same_decision() -> None:
    office = Office(ACME)
    office(Acquire("a", 1, (ACME,)))
    decision = office(Acquire("b", 1, (ACME,)), Release("a", 1, (ACME,)))
    assert (names(decision), office.holders(ACME)) == (["b"], {"b"})


def test_a_job_that_runs_again_has_its_own_place_and_its_zombie_cannot_give_it_up() -> None:
    office = Office(ACME)
    office(Acquire("a", 1, (ACME,)))
    assert names(office(Acquire("a", 2, (ACME,)))) == ["a"]
    office(Release("a", 1, (ACME,)))
    assert office.holders(ACME) == {"a"}


def test_a_free_slot_wakes_a_job_only_if_one_waits() -> None:
    office = Office(ACME)
    office(Acquire("a", 1, (ACME,)))
    assert not office(Release("a", 1, (ACME,))).wakeups
    office(Acquire("a", 2, (ACME,)), Wait((ACME,)))
    assert office(Release("a", 2, (ACME,)), Release("a", 2, (ACME,))).wakeups == {ACME.document: 1}


def test_a_wait_finds_a_slot_that_was_freed_meanwhile() -> None:
    office = Office(ALL)
    office(Acquire("a", 1, (ALL,)))
    assert office(Wait((ALL,))).wakeups == {ALL.document: 2}


def test_a_wake_up_of_a_job_blocked_elsewhere_goes_to_the_next() -> None:
    office = Office(ALL, ACME)
    office(Acquire("a", 1, (ALL, ACME)), Wait((ALL,)))
    decision = office(Acquire("b", 1, (ALL, ACME)))
    assert decision.refused == {("b", 1): ACME}
    assert decision.wakeups == {ALL.document: 1}


def test_a_job_needs_room_in_both_its_rate_and_its_limit() -> None:
    office = Office(QUICK, ALL)
    decision = office(*(Acquire(name, 1, (ALL, QUICK)) for name in "abc"))
    assert (names(decision), decision.refused) == (["a", "b"], {("c", 1): QUICK})
    assert office.holders(ALL) == {"a", "b"}


def test_requests_without_a_common_limit_are_decided_separately() -> None:
    wishes: list[LimitRequest] = [
        Acquire("a", 1, (ACME,)),
        Acquire("b", 1, (BOB,)),
        Acquire("c", 1, (QUICK, BOB)),
        Release("d", 1, (ACME,)),
    ]
    assert [[wish.tickets[0] for wish in case] for case in cases(wishes, 10)] == [[ACME, ACME], [BOB, QUICK]]
    assert len(cases([Acquire("a", 1, (ACME, ALL)), Acquire("b", 1, (BOB, ALL))], 2)) == 2


def test_the_program_has_the_numbers_and_the_store_the_holders() -> None:
    state = state_of(ALL, {"size": 99, "holders": {"a": 1}, "waiting": True}, 0)
    assert isinstance(state, Slots)
    assert (state.size, state.holders, state.waiting) == (3, {"a": 1}, True)
