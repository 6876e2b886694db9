"""What the coordinator remembers of limits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mainspring import Limit, Rate
from mainspring.features.limits import coordinator as coordinator_module
from mainspring.features.limits.coordinator import LimitCoordinator, wake
from mainspring.features.limits.options import Ticket
from mainspring.features.limits.rules import Acquire, Release, Wait
from mainspring.features.limits.storage import Bucket, Slots, state_in, write_of, written
from mainspring.stores.documents import Bundle
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


async def test_a_job_that_starts_to_wait_while_none_was_found_is_woken_later() -> None:
    """It was refused before, and is suspended just after the timer, which had a token for it, has looked for it."""

    class Slow(MemoryStore):
        async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
            woken = await super().wake(keys)
            await coordinator.settle([Wait((ticket,))])
            return woken

    store, ticket = Slow(), Ticket(Rate(1, per=1, name="mail"), "")
    coordinator = LimitCoordinator(store)
    await coordinator.settle([Wait((ticket,))])
    (document,) = await store.documents([ticket.document])
    bucket = state_in(document)
    assert isinstance(bucket, Bucket)
    now = store.clock.now()
    assert bucket.wake(now) == 1
    write = write_of(document.key, bucket, document, now)
    await store.write([Bundle((write,))])
    planned = written(write)
    assert planned is not None
    await wake(store, {ticket.document: 1}, {ticket.document: planned}, now)
    (document,) = await store.documents([ticket.document])
    assert state_in(document).waiting
    assert document.due_at is not None
    await store.close()
