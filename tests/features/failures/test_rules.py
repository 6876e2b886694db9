"""How a failure group changes, without a store."""

from __future__ import annotations

import pytest

from mainspring.features.failures.group import GroupState
from mainspring.features.failures.rules import GroupData, judged, recovered

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
