"""How a failure group changes, without a store."""

from __future__ import annotations

import pytest

from mainspring.features.failures.group import GroupState
from mainspring.features.failures.rules import GroupData, failed, judged, recovered, unmuted
from mainspring.stores.engine.failures import FailureNote

GROUP = GroupData("f" * 16, "charge", "LookupError", "shop:charge", "no order", "job", 1, 1)


@pytest.mark.parametrize(
    ("until", "state"), [(None, GroupState.MUTED), (200, GroupState.MUTED), (100, GroupState.RESOLVED)]
)
def test_a_group_whose_mute_is_over_resolves_itself(until: int | None, state: GroupState) -> None:
    muted = judged(GROUP, GroupState.MUTED, 10, note="known", actor="ana", until=until)
    after = recovered(muted, 100)
    assert after.state is state
    if state is GroupState.RESOLVED:
        assert (after.automatic, after.changed_at, after.until) == (True, 100, None)


MUTED = judged(GROUP, GroupState.MUTED, 10, note="known", actor="ana", until=100)


def failure(at: int) -> FailureNote:
    return FailureNote(GROUP.fingerprint, at, "charge", "job", "LookupError", "no order", count=1)


def test_a_group_that_recovers_while_it_is_muted_is_resolved_when_the_mute_ends() -> None:
    marked = recovered(MUTED, 50)
    assert (marked.state, unmuted(marked, 99)) == (GroupState.MUTED, marked)
    after = unmuted(marked, 150)
    assert (after.state, after.automatic, after.changed_at, after.until) == (GroupState.RESOLVED, True, 100, None)
    assert (after.note, after.actor, after.recovered) == ("", "", False)
    assert unmuted(MUTED, 150).state is GroupState.OPEN


def test_a_failure_after_the_recovery_opens_the_group_when_the_mute_ends() -> None:
    again = failed(recovered(MUTED, 50), failure(60), 60)
    assert (again.state, unmuted(again, 150).state) == (GroupState.MUTED, GroupState.OPEN)
    late = failed(recovered(MUTED, 50), failure(120), 120)
    assert (late.state, late.reopened, late.recovered) == (GroupState.OPEN, 1, False)


def test_a_failure_opens_a_group_that_was_resolved_before_the_clock_was_set_back() -> None:
    resolved = judged(GROUP, GroupState.RESOLVED, 3_600_000, note="", actor="ana")
    assert failed(resolved, failure(3_599_000), 3_601_000).state is GroupState.RESOLVED  # it happened before
    again = failed(resolved, failure(60_000), 61_000)
    assert (again.state, again.reopened) == (GroupState.OPEN, 1)


def test_a_longer_mute_does_not_forget_the_recovery() -> None:
    longer = judged(recovered(MUTED, 50), GroupState.MUTED, 60, note="", actor="ana", until=200)
    assert unmuted(longer, 250).state is GroupState.RESOLVED
    reopened = judged(longer, GroupState.OPEN, 70, note="", actor="ana")
    assert not judged(reopened, GroupState.MUTED, 80, note="", actor="ana", until=200).recovered


def test_a_group_that_was_muted_after_it_had_resolved_itself_is_resolved_again() -> None:
    muted = judged(recovered(GROUP, 5), GroupState.MUTED, 10, note="", actor="ana", until=100)
    assert unmuted(muted, 150).state is GroupState.RESOLVED
