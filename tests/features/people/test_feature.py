"""Jobs that ask for their people at the same time share a read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from mainspring import Mainspring, Occasion, Person
from mainspring.features.people.feature import Lookups
from mainspring.stores.documents import Document, Key
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock


class Register:
    """People by id, and what was read of them."""

    def __init__(self) -> None:
        self.people: dict[str, Person] = {}
        self.reads: list[set[str]] = []
        self.asked = asyncio.Event()
        self.opened = asyncio.Event()
        self.opened.set()

    def add(self, id: str, name: str = "") -> None:
        self.people[id] = Person(id=id, tz="UTC", first_name=name)

    async def read(self, ids: Sequence[str]) -> Mapping[str, Person | None]:
        self.reads.append(set(ids))
        self.asked.set()
        await self.opened.wait()
        if "broken" in ids:
            message = "cannot be read"
            raise OSError(message)
        return {who: self.people.get(who) for who in ids}


@pytest.fixture
def register() -> Register:
    return Register()


@pytest.fixture
def lookups(register: Register) -> Lookups[Person | None]:
    return Lookups(register.read)


async def test_concurrent_lookups_share_a_read(register: Register, lookups: Lookups[Person | None]) -> None:
    for number in range(5):
        register.add(f"p{number}")
    found = await asyncio.gather(*(lookups.get(f"p{number}") for number in range(6)))
    assert [person and person.id for person in found] == ["p0", "p1", "p2", "p3", "p4", None]
    assert register.reads == [{"p0", "p1", "p2", "p3", "p4", "p5"}]
    assert (await lookups.get("p1")) is not None
    assert len(register.reads) == 2


async def test_a_lookup_during_a_read_sees_earlier_writes(register: Register, lookups: Lookups[Person | None]) -> None:
    register.add("p1", "old")
    register.opened.clear()
    first = asyncio.create_task(lookups.get("p1"))
    await register.asked.wait()
    register.add("p1", "new")
    later = asyncio.create_task(lookups.get("p1"))
    await asyncio.sleep(0)
    register.opened.set()
    assert [person and person.first_name for person in await asyncio.gather(first, later)] == ["new", "new"]
    assert register.reads == [{"p1"}, {"p1"}]


async def test_a_job_that_is_cancelled_leaves_the_others_alone(
    register: Register, lookups: Lookups[Person | None]
) -> None:
    register.add("p2")
    register.opened.clear()
    cancelled, other = (asyncio.create_task(lookups.get(who)) for who in ("p1", "p2"))
    await register.asked.wait()
    cancelled.cancel()
    register.opened.set()
    assert (await other) is not None
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_failed_read_fails_all_its_lookups(register: Register, lookups: Lookups[Person | None]) -> None:
    register.add("p1")
    results = await asyncio.gather(*(lookups.get(who) for who in ("p1", "broken")), return_exceptions=True)
    assert [type(result) for result in results] == [OSError, OSError]
    assert (await lookups.get("p1")) is not None


async def test_no_job_sees_what_another_does_to_the_same_person(
    register: Register, lookups: Lookups[Person | None]
) -> None:
    register.people["p1"] = Person(id="p1", tz="UTC", attributes={"tags": []})
    one, other = await asyncio.gather(lookups.get("p1"), lookups.get("p1"))
    assert one is not None
    assert other is not None
    one.attributes["seen"] = True
    assert other.attributes == {"tags": []}


def test_each_event_loop_reads_for_itself() -> None:
    register = Register()
    register.add("p1")
    lookups: Lookups[Person | None] = Lookups(register.read)
    found: list[Person | None] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(_ask(lookups)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [person and person.id for person in found] == ["p1"] * 3
    assert asyncio.run(_ask(lookups)) is not None
    assert asyncio.run(_ask(lookups)) is not None


async def _ask(lookups: Lookups[Person | None]) -> Person | None:
    return await lookups.get("p1")


async def test_a_burst_reads_its_people_together(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring(MemoryStore(clock=ManualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))))
    greeted: list[str] = []

    @app.occasion("birthday")
    async def greet(person: Person) -> None:
        greeted.append(person.id)

    reads: list[int] = []
    read = app.store.documents

    async def counted(keys: Sequence[Key]) -> list[Document]:
        reads.append(len(keys))
        return await read(keys)

    today = Occasion(kind="birthday", date="03-01", at="09:00")
    await app.people.put_many(Person(id=f"p{number}", tz="UTC", occasions=[today]) for number in range(60))
    monkeypatch.setattr(app.store, "documents", counted)
    await app.worker().drain()
    assert sorted(greeted) == sorted(f"p{number}" for number in range(60))
    assert len(reads) < 20
    await app.close()
