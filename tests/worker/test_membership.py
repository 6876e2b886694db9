from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainspring.clock import since_boot
from mainspring.errors import StoreBusy, StoreUnavailable
from mainspring.health import Contact
from mainspring.stores.protocol import Pulse, Store
from mainspring.worker import membership
from mainspring.worker.membership import Heartbeat
from mainspring.worker.outage import Outage
from mainspring.worker.slots import Runs
from tests.worker.working import FakeContact, eventually


class FakeStore:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, int]]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    async def heartbeat(self, worker: str, held: Mapping[str, int], *, stuck: int = 0) -> Pulse:
        del stuck
        self.asked.append((worker, dict(held)))
        self.threads.add(threading.get_ident())
        if not self.answers.is_set():
            await asyncio.to_thread(self.answers.wait)
        if self.error is not None:
            raise self.error
        return Pulse(lost=frozenset(held))


class FakeRuns:
    """Holds one claim, and passes on what it hears."""

    stuck = SimpleNamespace(slots=0)

    def __init__(self, heard: Any) -> None:
        self.heard = heard

    def tokens(self) -> dict[str, int]:
        return {"j": 1}


def beating(
    store: FakeStore, interval: float, heard: Any = lambda _pulse, _asked: None, outage: Outage | None = None
) -> Heartbeat:
    runs = cast("Runs", FakeRuns(heard))
    heartbeat = Heartbeat(cast("Store", store), "w", runs, outage or Outage("w"), interval=interval)
    heartbeat.start()
    return heartbeat


async def test_heartbeats_are_sent_by_a_thread_and_answered_on_the_worker_s_loop() -> None:
    heard: list[tuple[Any, Any, int]] = []
    store = FakeStore()
    heartbeat = beating(store, 0.01, lambda pulse, asked: heard.append((pulse, asked, threading.get_ident())))
    await eventually(lambda: len(heard) >= 3)
    await heartbeat.stop()
    assert store.asked[0] == ("w", {"j": 1})
    assert threading.get_ident() not in store.threads
    assert heard[0] == (Pulse(lost=frozenset({"j"})), {"j": 1}, threading.get_ident())


async def test_a_poke_sends_a_heartbeat_at_once() -> None:
    store = FakeStore()
    heartbeat = beating(store, 3600)
    for number in range(1, 4):
        await eventually(lambda: len(store.asked) >= number)  # noqa: B023
        heartbeat.poke()
    await eventually(lambda: len(store.asked) >= 4)
    await heartbeat.stop()


async def test_heartbeats_go_on_after_errors() -> None:
    store = FakeStore()
    store.error = StoreBusy()
    heartbeat = beating(store, 0.01)
    await eventually(lambda: len(store.asked) >= 3)
    await heartbeat.stop()


async def test_the_heartbeat_can_be_stopped_at_any_moment_and_poked_after_that() -> None:
    for _ in range(20):
        heartbeat = beating(FakeStore(), 3600)
        await asyncio.wait_for(heartbeat.stop(), 5)
        heartbeat.poke()


async def test_a_store_that_does_not_answer_is_reported_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a server that was stopped: the connection stands, and no answer comes."""
    monkeypatch.setattr(membership, "SILENCE_TIMEOUT", 0.01)
    contact, store = FakeContact(), FakeStore()
    store.answers.clear()
    heartbeat = beating(store, 0.01, outage=Outage("w", cast("Contact", contact)))
    await eventually(lambda: contact.told)
    assert str(contact.told[0]) == "no answer for 0.01 s"
    store.answers.set()
    await eventually(lambda: contact.told[-1] is None)
    await heartbeat.stop()


async def test_a_recent_answer_confirms_the_claims_at_once() -> None:
    store = FakeStore()
    heartbeat = beating(store, 3600)
    await eventually(lambda: store.asked)
    await heartbeat.confirm(lease=30)
    assert len(store.asked) == 1
    await heartbeat.stop()


async def test_after_a_pause_longer_than_the_lease_claims_are_confirmed_by_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, heard = FakeStore(), list[Any]()
    heartbeat = beating(store, 3600, lambda pulse, _asked: heard.append(pulse))
    await eventually(lambda: heard)
    later = since_boot() + 31
    monkeypatch.setattr("mainspring.worker.membership.since_boot", lambda: later)
    await heartbeat.confirm(lease=30)
    assert len(heard) == 2
    await heartbeat.stop()


async def test_without_an_answer_the_claims_are_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CONFIRMED_WITHIN", 0.01)
    store, heard = FakeStore(), list[Any]()
    heartbeat = beating(store, 3600, lambda pulse, _asked: heard.append(pulse))
    await eventually(lambda: heard)
    store.error = StoreBusy()
    with pytest.raises(StoreUnavailable, match="no heartbeat was answered"):
        await heartbeat.confirm(lease=-1)
    await heartbeat.stop()
