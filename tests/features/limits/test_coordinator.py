"""What the coordinator remembers of limits."""

from __future__ import annotations

import pytest

from mainspring import Limit
from mainspring.features.limits import coordinator as coordinator_module
from mainspring.features.limits.coordinator import LimitCoordinator
from mainspring.features.limits.options import Ticket
from mainspring.features.limits.rules import Acquire, Release
from mainspring.features.limits.storage import Slots, state_in
from mainspring.stores.sqlite import MemoryStore

FEW = 10


async def test_a_forgotten_limit_is_read_again_before_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that leaves would seem to hold nothing, and the job that waits for its slot would not be woken."""
    monkeypatch.setattr(coordinator_module, "MAX_KNOWN", FEW)
    store = MemoryStore()
    coordinator = LimitCoordinator(store)
    places = [Ticket(Limit(1, name="work"), str(number)) for number in range(FEW + 2)]
    await coordinator.settle([Acquire("a", 1, (place,)) for place in places[:-1]])
    await coordinator.settle([Release("a", 1, (places[0],)), Acquire("b", 1, (places[-1],))])
    (document,) = await store.documents([places[0].document])
    state = state_in(document)
    assert isinstance(state, Slots)
    assert state.holders == {}
