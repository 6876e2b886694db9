"""What every store must do, as tests: for authors of stores.

Subclass `StoreConformance` in a test module and give it a `store` fixture. pytest-asyncio must run in auto mode
(`asyncio_mode = "auto"`).

    import pytest
    from mainspring.testing.clock import ManualClock
    from mainspring.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock: ManualClock):
            store = MyStore("my://…", clock=clock, lease=30.0, stall_grace=30_000, patience=60_000)
            await store.open()
            yield store
            await store.close()

The `clock` fixture is a `ManualClock`: no test sleeps. Each test gets an empty store, in which the workers "w1" and
"w2" have joined, for all queues.

A worker dies in these tests by falling silent, see `by_silence`. A store that learns of deaths in another way, say by
a lock that the operating system frees, overrides `die` to bring that about. One that goes by heartbeats should also
pass `HeartbeatConformance`:

    class TestMyStore(StoreConformance, HeartbeatConformance): ...

`mainspring.testing.machine` drives a store through random histories; run it too.
"""

from __future__ import annotations

import pkgutil

import pytest

# Before the modules are imported: it is what makes a failed assertion show its values.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in pkgutil.iter_modules(__path__)))

from mainspring.testing.conformance.bounds import Bounds
from mainspring.testing.conformance.changing import Changing
from mainspring.testing.conformance.claiming import Claiming
from mainspring.testing.conformance.documents import Keeping
from mainspring.testing.conformance.ending import Ending
from mainspring.testing.conformance.halting import Halting
from mainspring.testing.conformance.heartbeats import HeartbeatConformance
from mainspring.testing.conformance.inserting import Inserting
from mainspring.testing.conformance.reading import Reading
from mainspring.testing.conformance.retention import Retention
from mainspring.testing.conformance.scene import by_silence
from mainspring.testing.conformance.suspending import Suspending
from mainspring.testing.conformance.takeover import TakingOver
from mainspring.testing.conformance.transferring import Transferring
from mainspring.testing.conformance.transitions import Transitions
from mainspring.testing.conformance.unknown_tasks import UnknownTasks
from mainspring.testing.conformance.workers import Workers


class StoreConformance(
    Inserting,
    Claiming,
    UnknownTasks,
    Ending,
    Transitions,
    TakingOver,
    Workers,
    Reading,
    Changing,
    Halting,
    Retention,
    Transferring,
    Keeping,
    Suspending,
    Bounds,
):
    """The whole suite. See the module's docstring for how to use it."""


__all__ = ["HeartbeatConformance", "StoreConformance", "by_silence"]
