"""Circuit breakers by name, shared by all processes: `app.breakers`, `ctx.breaker(…)`, `@app.task(breaker=…)`.

Each breaker is a document; circuit.py says what is in it and how it changes. A process trusts what it has read for a
second, and counts results in memory. It writes them once a second if there are errors among them, or at once if they
would open the breaker or belong to a probe. So a service that works costs one read per second. When a breaker opens or
closes, the workers of other processes are woken and read it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from mainspring.clock import Length, Millis, duration, to_datetime
from mainspring.errors import ConfigurationError, InvalidPayload, RunEnd, StoreUnavailable
from mainspring.events import BreakerClosed, BreakerHalfOpened, BreakerOpened
from mainspring.features.breakers import rules
from mainspring.features.breakers.options import OPTION, Breaker, check_name
from mainspring.features.breakers.rules import Circuit, Phase, Slice
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Store

log = get_log("mainspring.breakers")
T = TypeVar("T")

COLLECTION = "breakers"
FRESH_FOR: Millis = 1_000  # how long a process trusts what it has read
PROBING_DELAY: Millis = 1_000  # until a refused job asks again, while probes are under way
BY_HAND_RECHECK: Millis = 600_000  # until a job checks again by itself whether an operator has closed the breaker
SPACING: Millis = 20  # between jobs that come back, so that they do not all start at once
MAX_SPREAD: Millis = 600_000  # the longest time over which they are spread
ALL_WAITING = 1_000_000  # jobs to wake: more than ever wait


def key_of(name: str) -> str:
    """Return the key that jobs wait for while the breaker is open."""
    return f"breaker:{name}"


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """A breaker as `get` and `list` show it."""

    name: str
    phase: Phase
    since: datetime | None  # None: it was never anything but closed
    until: datetime | None  # if open: when the first probes are let through
    good: int  # results within the window
    bad: int
    probing: int  # probes under way
    passed: int  # probes that succeeded
    reason: str


@dataclass(frozen=True, slots=True)
class BreakerAdmission:
    """Which calls may go through, and when the others may ask again."""

    granted: frozenset[str]
    delay: Callable[[], Millis]  # call it once per refused call: each gets another delay


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
            if self.circuit is not None and self.circuit.phase is not seen.phase:
                self.deferred = 0
            if seen.phase is not Phase.CLOSED:
                self.results.clear()
            if seen.phase is Phase.OPEN:
                self.probes.clear()  # earlier probes may not start any more
            self.circuit, self.read_at = seen, now

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


class Breakers:
    """All circuit breakers: `app.breakers`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.run = services.run
        self._settings: dict[str, Breaker] = {}
        self._known: tuple[Store | None, dict[str, View]] = None, {}
        self._ticks = itertools.count(1)  # numbers the reads of documents, in the order in which they begin

    # -- for operators ----------------------------------------------------------------------------

    def configure(self, name: str, breaker: Breaker) -> None:
        """Set how the breaker of this name decides. Call it in code that every worker runs."""
        if not isinstance(breaker, Breaker):
            msg = f"breaker {name!r}: its settings are Breaker(error_rate=0.5, …), not {breaker!r}"
            raise ConfigurationError(msg)
        self._settings[check_name(name)] = breaker

    async def get(self, name: str) -> BreakerStatus:
        """Return a breaker's status. One that was never used is closed."""
        found = await self._look(check_name(name))
        return self._status(name, Circuit() if found is None else Circuit.from_json(found.data))

    async def list(self) -> list[BreakerStatus]:
        """Return all breakers that ever had errors, were set, or that this program's tasks declare, by name."""
        declared = [str(task.options[OPTION]) for task in self._services.tasks.values() if OPTION in task.options]
        known: dict[str, Circuit] = dict.fromkeys([*self._settings, *declared], Circuit())
        after = None
        while page := await self._services.store.browse(Listing(COLLECTION, "", after)):
            for document in page:
                with contextlib.suppress(ValueError, TypeError, LookupError):  # an operator wrote it by hand
                    known[document.key.id] = Circuit.from_json(document.data)
            after = page[-1].key[1:]
        return [self._status(name, known[name]) for name in sorted(known)]

    async def open(self, name: str, *, reason: str = "", open_for: Length | None = None) -> None:
        """Let no call through: for `open_for`, or until `close` is called."""
        if open_for is not None and duration(open_for) <= 0:
            msg = f"breaker {name!r}: open_for is {open_for}; give a length of time above 0, or leave it out"
            raise ConfigurationError(msg)

        def decide(before: Circuit, now: Millis) -> tuple[Circuit, None]:
            until = None if open_for is None else now + duration(open_for)
            return Circuit(Phase.OPEN, now, until=until, times=before.times, reason=reason or "opened by hand"), None

        await self._change(check_name(name), decide)

    async def close(self, name: str, *, reason: str = "") -> None:
        """Let all calls through, and wake the jobs that wait for it."""

        def decide(before: Circuit, now: Millis) -> tuple[Circuit, None]:
            is_it = before.phase is Phase.CLOSED and not before.slices
            return before if is_it else Circuit(since=now, reason=reason or "closed by hand"), None

        await self._change(check_name(name), decide)

    def _status(self, name: str, known: Circuit) -> BreakerStatus:
        now = self._services.store.clock.now()
        good, bad = known.counted(self._of(name), now)
        return BreakerStatus(
            name=name,
            phase=known.phase_at(now),
            since=to_datetime(known.since) if known.since else None,
            until=None if known.until is None else to_datetime(known.until),
            good=good,
            bad=bad,
            probing=sum(end > now for end in known.probes.values()),
            passed=known.passed,
            reason=known.reason,
        )

    # -- around calls -----------------------------------------------------------------------------

    async def admit(self, name: str, who: Sequence[str]) -> BreakerAdmission:
        """Return which of these may call the service now. Report each call's result by `note`."""
        view, now = self._view(name), self._services.store.clock.now()
        current = await self._current(name, view, now)
        if current.phase_at(now) is Phase.CLOSED:
            return BreakerAdmission(frozenset(who), view.defer)
        granted: frozenset[str] = frozenset()
        if current.phase_at(now) is Phase.HALF_OPEN:
            granted = await self._probe(name, view, who)
            current = view.circuit or current
        return BreakerAdmission(granted, lambda: wait_of(current, now) + view.defer())

    async def _probe(self, name: str, view: View, who: Sequence[str]) -> frozenset[str]:
        def decide(before: Circuit, now: Millis) -> tuple[Circuit, tuple[Phase, frozenset[str]]]:
            after, granted = rules.ask(before, who, self._of(name), now)
            return after, (after.phase, granted)

        phase, granted = await self._change(name, decide)
        if phase is Phase.HALF_OPEN:
            with view.lock:
                view.probes |= granted
        return granted

    async def recheck(self, name: str) -> BreakerAdmission:
        """Return how the breaker stands now, for jobs that were admitted earlier. No probe is granted."""
        view, now = self._view(name), self._services.store.clock.now()
        current = await self._current(name, view, now)
        return BreakerAdmission(frozenset(), lambda: wait_of(current, now) + view.defer())

    def permits(self, name: str, who: str) -> bool:
        """Return whether a call that was admitted may still be made, as far as this process knows."""
        view = self._view(name)
        known = view.circuit
        return known is None or known.phase is Phase.CLOSED or who in view.probes

    async def refresh(self) -> None:
        """Read all breakers that this process knows, because another process has changed one."""
        names, now = list(self._known[1]), self._services.store.clock.now()
        if not names or self._known[0] is not self._services.store:
            return
        keys, tick = [Key(COLLECTION, "", name) for name in names], next(self._ticks)
        for found in await self._services.store.documents(keys):
            self._view(found.key.id).saw(Circuit.from_json(found.data), now, tick)

    def admits_at_once(self, name: str) -> bool:
        """Return whether the breaker is known to be closed, without asking the store."""
        view, now = self._view(name), self._services.store.clock.now()
        return is_fresh(view, now) and view.circuit is not None and view.circuit.phase is Phase.CLOSED

    async def note(self, name: str, who: str, *, well: bool | None) -> None:
        """Count the result of a call; None says nothing about the service. Never fails: a lost result does no harm."""
        if self.must_tell(name, who, well=well):
            await self.tell(name, who, well=well)

    def must_tell(self, name: str, who: str, *, well: bool | None) -> bool:
        """Count the result here; return whether it must be written at once."""
        view = self._view(name)
        return who in view.probes or (well is not None and self._count(name, view, well=well))

    def _count(self, name: str, view: View, *, well: bool) -> bool:
        breaker, now = self._of(name), self._services.store.clock.now()
        if view.circuit is not None and view.circuit.phase is not Phase.CLOSED:
            return False
        view.count(breaker.slice_of(now), well=well, oldest=now - duration(breaker.per))
        if not is_fresh(view, now) and view.has_errors():
            return True
        return not well and self._would_open(name, view, now)

    async def tell(self, name: str, who: str, *, well: bool | None) -> None:
        view = self._view(name)
        with view.lock:
            is_probe = who in view.probes
            view.probes.discard(who)
        with suppress(StoreUnavailable):
            if is_probe:
                answers = {who: well}
                await self._change(name, lambda before, at: (self._answer(name, before, answers, at), None))
            else:
                await self._sync(name, view)

    def _answer(self, name: str, before: Circuit, answers: Mapping[str, bool | None], now: Millis) -> Circuit:
        return rules.answer(before, answers, self._of(name), now)

    def _would_open(self, name: str, view: View, now: Millis) -> bool:
        known = view.circuit or Circuit()
        return rules.merge(known, list(view.results.values()), self._of(name), now).phase is Phase.OPEN

    def verdict(self, name: str, error: BaseException | None, *, timed_out: bool = False) -> bool | None:
        """Return whether a call went well; None if the error was not the service's fault, or that is unknown."""
        if error is None:
            return True
        if isinstance(error, asyncio.CancelledError) and timed_out:
            error = TimeoutError()
        if isinstance(error, (RunEnd, InvalidPayload)) or not isinstance(error, self._of(name).counts):
            return None
        return False

    # -- the document -----------------------------------------------------------------------------

    def _of(self, name: str) -> Breaker:
        return self._settings.get(name, DEFAULT)

    def _view(self, name: str) -> View:
        store, views = self._known
        if store is not self._services.store:  # a test has replaced the store
            self._known = self._services.store, views = self._services.store, {}
        return views.setdefault(name, View())

    async def _current(self, name: str, view: View, now: Millis) -> Circuit:
        if is_fresh(view, now) and view.circuit is not None:
            return view.circuit
        try:
            return await self._sync(name, view)
        except StoreUnavailable:
            if view.circuit is None:
                raise
            return view.circuit

    async def _sync(self, name: str, view: View) -> Circuit:
        """Write the counted results if they matter, and read the breaker. One caller at a time does it for all."""
        with view.lock:
            if view.syncing and view.circuit is not None:
                return view.circuit
            view.syncing = True
        taken = view.take() if view.has_errors() else []
        try:
            return await self._change(name, lambda before, at: self._merged(name, before, taken, at))
        except BaseException:
            view.put_back(taken)
            raise
        finally:
            view.syncing = False

    def _merged(self, name: str, before: Circuit, results: Sequence[Slice], now: Millis) -> tuple[Circuit, Circuit]:
        after = rules.merge(before, results, self._of(name), now) if results else before
        return after, after

    async def _change(self, name: str, decide: Callable[[Circuit, Millis], tuple[Circuit, T]]) -> T:
        """Read, decide and write; do it again if another process was quicker."""
        while True:
            tick = next(self._ticks)
            found, now = await self._look(name), self._services.store.clock.now()
            before = Circuit() if found is None else Circuit.from_json(found.data).rewound(now)
            after, answer = decide(before, now)
            spread = after.phase is not before.phase
            if after != before and not await self._write(name, after, found, spread=spread):
                continue
            self._view(name).saw(after, now, tick if after == before else next(self._ticks))
            if after.phase is not before.phase:
                await self._changed(name, before, after)
            return answer

    async def _look(self, name: str) -> Document | None:
        return next(iter(await self._services.store.documents([Key(COLLECTION, "", name)])), None)

    async def _write(self, name: str, after: Circuit, found: Document | None, *, spread: bool) -> bool:
        expected = ABSENT if found is None else found.version
        write = Write(Key(COLLECTION, "", name), after.to_json(), expected=expected)
        return (await self._services.store.write([Bundle((write,), spread=spread)]))[0] is not None

    async def _changed(self, name: str, before: Circuit, after: Circuit) -> None:
        """Report a change, in the one process that wrote it. If it dies before waking jobs, they come back later."""
        say = log.warning if after.times > before.times else log.info
        say("breaker_changed", breaker=name, phase=after.phase, reason=after.reason)
        if after.phase is Phase.OPEN:
            until = None if after.until is None else to_datetime(after.until)
            self._services.bus.emit(BreakerOpened(breaker=name, reason=after.reason, until=until))
        elif after.phase is Phase.HALF_OPEN:
            self._services.bus.emit(BreakerHalfOpened(breaker=name))
        else:
            self._services.bus.emit(BreakerClosed(breaker=name, reason=after.reason))
            await self._services.store.wake({key_of(name): ALL_WAITING})


DEFAULT = Breaker()


def is_fresh(view: View, now: Millis) -> bool:
    return 0 <= now - view.read_at < FRESH_FOR


def wait_of(current: Circuit, now: Millis) -> Millis:
    """Return for how long, at least, a refused call cannot go through."""
    if current.phase is Phase.OPEN:
        return BY_HAND_RECHECK if current.until is None else max(0, current.until - now)
    return PROBING_DELAY


def reason_of(name: str) -> str:
    return f"the circuit breaker {name!r} is open"
