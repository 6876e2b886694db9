"""Documents that come due are fired by the time that it is, also if the clock goes back while they are looked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.clock import Millis
from mainspring.feature import Feature, Features, Timer
from mainspring.stores.documents import Bundle, Document, Due, Key, Write
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.timers import LOOK_AGAIN, Timers

HOUR: Millis = 3_600_000


class Bell(Timer):
    """Notes what it is fired for, and is done with that."""

    page_size = 10

    def __init__(self, app: Mainspring, collection: str = "bells", heard: list[str] | None = None) -> None:
        self._app = app
        self.collection = collection
        self.fired: list[Millis] = []
        self._heard = [] if heard is None else heard

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        self.fired.append(now)
        self._heard.append(f"{self.collection} {len(documents)}")
        await self._app.store.write([Bundle((Write(document.key, None),)) for document in documents])


def timers_of(app: Mainspring, *timers: Timer) -> Timers:
    feature, features = Feature(), Features()
    feature.timers = timers
    features.add(feature)
    return Timers(app.runtime.services, features)


async def test_documents_due_by_a_clock_that_went_back_do_not_fire() -> None:
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock))
    timers = timers_of(app, bell := Bell(app))
    await app.store.write([Bundle((Write(Key("bells", "", "a"), "{}", due_at=clock.now() + HOUR // 2),))])
    due = app.store.due

    async def went_back(*args: Any, **options: Any) -> Due:
        """The first answer is by a clock that is an hour ahead, and right by the time it arrives."""
        app.store.due = due  # type: ignore[method-assign]
        clock.shift(3600)
        found = await due(*args, **options)
        clock.shift(-3600)
        return found

    app.store.due = went_back  # type: ignore[method-assign]
    begin = clock.now()
    assert await timers.run_due() == begin + LOOK_AGAIN
    assert bell.fired == []
    assert await timers.run_due() == begin + HOUR // 2
    assert bell.fired == []
    clock.advance(1800)
    await timers.run_due()
    assert bell.fired == [begin + HOUR // 2]


class Echo(Bell):
    """Comes due again each time that it is fired, as often as it is told to."""

    def __init__(self, app: Mainspring, times: int) -> None:
        super().__init__(app, "echoes")
        self.left = times

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        self.fired.append(now)
        self.left -= 1
        due_at = now if self.left else None
        await self._app.store.write([Bundle((Write(document.key, "{}", due_at=due_at),)) for document in documents])


async def test_a_timer_that_is_always_busy_does_not_hold_the_others_up() -> None:
    app = Mainspring(MemoryStore(clock=ManualClock()))
    timers = timers_of(app, bell := Bell(app), echo := Echo(app, times=5))
    await app.store.write([Bundle((Write(Key("echoes", "", "e"), "{}", due_at=0),))])
    fire, left = echo.fire, []

    async def ring_as_well(documents: Sequence[Document], now: Millis) -> None:
        """The bell becomes due after the first look at it."""
        if not echo.fired:
            await app.store.write([Bundle((Write(Key("bells", "", "b"), "{}", due_at=0),))])
        await fire(documents, now)

    async def note(documents: Sequence[Document], now: Millis) -> None:
        left.append(echo.left)
        await Bell.fire(bell, documents, now)

    echo.fire, bell.fire = ring_as_well, note  # type: ignore[method-assign]
    await timers.run_due()
    assert echo.left == 0
    assert left[0] >= 3  # before the echo had died away


@pytest.mark.parametrize(
    ("turn", "order"),
    [
        (0, ["bells 10", "chimes 1", "bells 10", "bells 5"]),
        (60, ["bells 10", "bells 10", "bells 5", "chimes 1"]),
    ],
)
async def test_timers_take_turns_of_limited_length(
    monkeypatch: pytest.MonkeyPatch, turn: float, order: list[str]
) -> None:
    monkeypatch.setattr("mainspring.timers.TURN_SECONDS", turn)
    clock = ManualClock()
    app, heard = Mainspring(MemoryStore(clock=clock)), list[str]()
    timers = timers_of(app, *(Bell(app, collection, heard) for collection in ("bells", "chimes")))
    for collection, number in (("bells", 25), ("chimes", 1)):
        keys = [Key(collection, "", str(n)) for n in range(number)]
        await app.store.write([Bundle((Write(key, "{}", due_at=clock.now()),)) for key in keys])
    assert await timers.run_due() is None
    assert heard == order
