"""The document of each breaker, and what this process knows of it.

rules.py says what is in a document and how it changes. A process trusts what it has read for a second, and counts
results in memory. It writes them when it reads the document again, if there are errors among them. A write that opens
or closes a breaker wakes the workers of other processes, which then read the document at once.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mainspring.clock import Millis, to_datetime
from mainspring.errors import StoreUnavailable
from mainspring.events import BreakerClosed, BreakerHalfOpened, BreakerOpened
from mainspring.features.breakers import rules
from mainspring.features.breakers.options import Breaker
from mainspring.features.breakers.rules import Circuit, Phase, Slice
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Note, Write
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Store

log = get_log("mainspring.breakers")
T = TypeVar("T")

COLLECTION = "breakers"
FRESH_FOR: Millis = 1_000  # how long a process trusts what it has read
SPACING: Millis = 20  # between jobs that come back, so that they do not all start at once
MAX_SPREAD: Millis = 600_000  # the longest time over which they are spread
ALL_WAITING = 1_000_000  # jobs to wake: more than ever wait


def waiting_key(name: str) -> str:
    """Return the key that jobs wait for while the breaker is open."""
    return f"breaker:{name}"


@dataclass(slots=True)
class View:
    """What this process knows of a breaker, and the results it has not written yet."""

    circuit: Circuit | None = None
    read_at: Millis = 0
    results: dict[Millis, Slice] = field(default_factory=dict)
    probes: set[str] = field(default_factory=set)  # calls let through as probes
    deferred: int = 0  # jobs deferred since the breaker was last seen to change
    syncing: bool = False
    tick: int = 0  # number of the read that `circuit` comes from
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, seen: Circuit, now: Millis, tick: int) -> None:
        """Take over the state that a read returned. Reads may overlap: one that began before the newest is ignored."""
        with self.lock:
            if tick < self.tick:
                return
            self.tick = tick
            if self.circuit is not None and (self.circuit.phase, self.circuit.since) != (seen.phase, seen.since):
                self.deferred = 0
            if seen.phase is not Phase.CLOSED:
                self.results.clear()
            if seen.phase is Phase.OPEN:
                self.probes.clear()  # earlier probes may not start any more
            self.circuit, self.read_at = seen, now

    def is_fresh(self, now: Millis) -> bool:
        return 0 <= now - self.read_at < FRESH_FOR

    def count(self, start: Millis, *, well: bool, oldest: Millis) -> None:
        with self.lock:
            if start not in self.results:
                self.results = {at: result for at, result in self.results.items() if at > oldest}
            before = self.results.get(start, Slice(start, 0, 0))
            self.results[start] = Slice(start, before.good + well, before.bad + (not well))

    def take(self) -> list[Slice]:
        with self.lock:
            taken, self.results = list(self.results.values()), {}
            return taken

    def put_back(self, results: Sequence[Slice]) -> None:
        with self.lock:
            for result in results:
                since = self.results.get(result.start, Slice(result.start, 0, 0))
                self.results[result.start] = Slice(result.start, result.good + since.good, result.bad + since.bad)

    def has_errors(self) -> bool:
        """Return whether there are errors, here or in the document. Without any, good results need not be written."""
        elsewhere = self.circuit.slices if self.circuit is not None else ()
        return any(result.bad for result in (*list(self.results.values()), *elsewhere))

    def defer(self) -> Millis:
        with self.lock:
            self.deferred += 1
            return min(self.deferred * SPACING, MAX_SPREAD) + random.randrange(SPACING)  # noqa: S311 - spreads load


class Circuits:
    """The circuits of all breakers: in the store, and as this process has last seen them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: tuple[Store | None, dict[str, View]] = None, {}
        self._ticks = itertools.count(1)  # numbers the reads of documents, in the order in which they begin

    def view(self, name: str) -> View:
        store, views = self._known
        if store is not self._services.store:  # a test has replaced the store
            self._known = self._services.store, views = self._services.store, {}
        return views.setdefault(name, View())

    # -- reading ----------------------------------------------------------------------------------

    async def get(self, name: str) -> Circuit:
        found = await self._look(name)
        return Circuit() if found is None else self._read(found)

    async def all(self) -> dict[str, Circuit]:
        """Return the circuits by name, without those that cannot be read: an operator wrote them by hand."""
        known: dict[str, Circuit] = {}
        async for page in pages(self._services.store, COLLECTION):
            for document in page:
                with contextlib.suppress(ValueError, TypeError, LookupError):
                    known[document.key.id] = self._read(document)
        return known

    async def refresh(self) -> None:
        """Read all circuits that this process knows, because another process has changed one."""
        names, now = list(self._known[1]), self._services.store.clock.now()
        if not names or self._known[0] is not self._services.store:
            return
        keys, tick = [Key(COLLECTION, "", name) for name in names], next(self._ticks)
        for found in await self._services.store.documents(keys):
            self.view(found.key.id).saw(self._read(found), now, tick)

    async def current(self, name: str, breaker: Breaker, now: Millis) -> Circuit:
        """Return the circuit as last seen, if that was a moment ago or the store is unavailable; else read it."""
        view = self.view(name)
        if view.is_fresh(now) and view.circuit is not None:
            return view.circuit
        try:
            return await self.sync(name, breaker)
        except StoreUnavailable:
            if view.circuit is None:
                raise
            return view.circuit

    def _read(self, document: Document) -> Circuit:
        return Circuit.from_json(document.data).rewound(self._services.store.clock.now())

    async def _look(self, name: str) -> Document | None:
        return next(iter(await self._services.store.documents([Key(COLLECTION, "", name)])), None)

    # -- writing ----------------------------------------------------------------------------------

    async def sync(self, name: str, breaker: Breaker) -> Circuit:
        """Write the counted results if they matter, and read the circuit. One caller at a time does it for all."""
        view = self.view(name)
        with view.lock:
            if view.syncing and view.circuit is not None:
                return view.circuit
            view.syncing = True
        taken = view.take() if view.has_errors() else []
        try:
            return await self.change(name, lambda before, at: merged(before, taken, breaker, at))
        except BaseException:
            view.put_back(taken)
            raise
        finally:
            view.syncing = False

    async def change(
        self, name: str, decide: Callable[[Circuit, Millis], tuple[Circuit, T]], note: Note | None = None
    ) -> T:
        """Read, decide and write, with an entry for the audit log; do it again if another process was quicker.

        A circuit that a clock which was ahead has written is written as rewound, whatever is decided: if each read
        rewound it anew, it would stay open until that time comes.
        """
        while True:
            tick = next(self._ticks)
            found, now = await self._look(name), self._services.store.clock.now()
            stored = Circuit() if found is None else Circuit.from_json(found.data)
            before = stored.rewound(now)
            after, answer = decide(before, now)
            spread = after.phase is not before.phase
            if after != stored and not await self._write(name, after, found, note, spread=spread):
                continue
            self.view(name).saw(after, now, tick if after == stored else next(self._ticks))
            if spread:
                self._report(name, before, after)
            if before is not stored or (spread and after.phase is Phase.CLOSED):
                await self._wake([name])
            return answer

    async def rewind(self) -> None:
        """Repair what a clock that was ahead has written. Jobs that wait ask again, as it also set their times."""
        names = await self.all()
        for name in names:
            await self.change(name, lambda before, _: (before, None))
        await self._wake(names)

    async def _write(
        self, name: str, after: Circuit, found: Document | None, note: Note | None, *, spread: bool
    ) -> bool:
        expected = ABSENT if found is None else found.version
        actor = None if note is None else note.by.actor
        write = Write(
            Key(COLLECTION, "", name), after.to_json(), expected, recorded=spread, became=after.phase.value, actor=actor
        )
        return (await self._services.store.write([Bundle((write,), note=note, spread=spread)]))[0] is not None

    async def _wake(self, names: Collection[str]) -> None:
        """Wake the jobs that wait. If the process dies before it does so, they come back later, by their own times."""
        if names:
            await self._services.store.wake({waiting_key(name): ALL_WAITING for name in names})

    def _report(self, name: str, before: Circuit, after: Circuit) -> None:
        """Report a change, in the one process that wrote it."""
        say = log.warning if after.times > before.times else log.info
        say("breaker_changed", breaker=name, phase=after.phase, reason=after.reason)
        if after.phase is Phase.OPEN:
            until = None if after.until is None else to_datetime(after.until)
            self._services.bus.emit(BreakerOpened(breaker=name, reason=after.reason, until=until))
        elif after.phase is Phase.HALF_OPEN:
            self._services.bus.emit(BreakerHalfOpened(breaker=name))
        else:
            self._services.bus.emit(BreakerClosed(breaker=name, reason=after.reason))


def merged(before: Circuit, results: Sequence[Slice], breaker: Breaker, now: Millis) -> tuple[Circuit, Circuit]:
    after = rules.merge(before, results, breaker, now) if results else before
    return after, after
