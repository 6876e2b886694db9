"""What every store must do, as tests.

Each store has a test module that subclasses `StoreConformance` and gives it a `store` fixture:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[MyStore]:
            store = MyStore("my://…", clock=clock)
            await store.open()
            yield store
            await store.close()

Each test gets an empty store, in which the workers "w1" and "w2" have joined for all queues. A worker dies in these
tests by sending no heartbeats, see `by_silence`.

`machine.py` drives a store through random histories and checks it against a model; `differential.py` runs one random
history on several stores and compares them.
"""

from __future__ import annotations

from tests.conformance.acks import AckTests
from tests.conformance.admin import AdminTests
from tests.conformance.affected import AffectedTests
from tests.conformance.bounds import BoundTests
from tests.conformance.claims import ClaimTests
from tests.conformance.documents import DocumentTests
from tests.conformance.ends import EndTests
from tests.conformance.failures import FailureTests
from tests.conformance.feed import FeedTests
from tests.conformance.first_steps import FirstStepTests
from tests.conformance.halts import HaltTests
from tests.conformance.heartbeats import HeartbeatTests
from tests.conformance.insertion import InsertionTests
from tests.conformance.numbers import NumbersTests
from tests.conformance.once import OnceTests
from tests.conformance.read import ReadTests
from tests.conformance.remote_workers import RemoteWorkerTests
from tests.conformance.retention import RetentionTests
from tests.conformance.revisions import RevisionTests
from tests.conformance.sorting import SortingTests
from tests.conformance.takeover import TakeoverTests
from tests.conformance.transfer import TransferTests
from tests.conformance.transitions import TransitionTests
from tests.conformance.unknown_tasks import UnknownTaskTests
from tests.conformance.wakeups import WakeupTests
from tests.conformance.within import WithinTests
from tests.conformance.workers import WorkerTests


class StoreConformance(
    InsertionTests,
    ClaimTests,
    UnknownTaskTests,
    AckTests,
    EndTests,
    TransitionTests,
    TakeoverTests,
    WorkerTests,
    ReadTests,
    SortingTests,
    RevisionTests,
    FirstStepTests,
    AdminTests,
    AffectedTests,
    HaltTests,
    RetentionTests,
    NumbersTests,
    TransferTests,
    DocumentTests,
    OnceTests,
    WakeupTests,
    BoundTests,
    HeartbeatTests,
    RemoteWorkerTests,
    FeedTests,
    FailureTests,
    WithinTests,
):
    """The whole suite."""
