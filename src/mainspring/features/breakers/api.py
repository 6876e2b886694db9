"""Circuit breakers by name, shared by all processes: `app.breakers`, `ctx.breaker(…)`, `@app.task(breaker=…)`.

Results are written once a second if there are errors among them, or at once if they would open the breaker or belong
to a probe. So a service that works costs one read per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from mainspring.clock import Length, Millis, duration, to_datetime
from mainspring.errors import ConfigurationError, InvalidPayload, RunEnd, StoreUnavailable
from mainspring.features.breakers import rules
from mainspring.features.breakers.options import OPTION, Breaker, check_name
from mainspring.features.breakers.rules import Circuit, Phase
from mainspring.features.breakers.storage import Circuits, View
from mainspring.services import Services, whoami
from mainspring.stores.documents import By, Note

PROBING_DELAY: Millis = 1_000  # until a refused job asks again, while probes are under way
BY_HAND_RECHECK: Millis = 600_000  # until a job checks again by itself whether an operator has closed the breaker


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


class Breakers:
    """All circuit breakers: `app.breakers`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.run = services.run
        self.circuits = Circuits(services)
        self._settings: dict[str, Breaker] = {}

    # -- for operators ----------------------------------------------------------------------------

    def configure(self, name: str, breaker: Breaker) -> None:
        """Set how the breaker of this name decides. Call it in code that every worker runs."""
        if not isinstance(breaker, Breaker):
            msg = f"breaker {name!r}: its settings are Breaker(error_rate=0.5, …), not {breaker!r}"
            raise ConfigurationError(msg)
        self._settings[check_name(name)] = breaker

    async def get(self, name: str) -> BreakerStatus:
        """Return a breaker's status. One that was never used is closed."""
        return self._status(name, await self.circuits.get(check_name(name)))

    async def list(self) -> list[BreakerStatus]:
        """Return all breakers that ever had errors, were set, or that this program's tasks declare, by name."""
        declared = [str(task.options[OPTION]) for task in self._services.tasks.values() if OPTION in task.options]
        known: dict[str, Circuit] = dict.fromkeys([*self._settings, *declared], Circuit()) | await self.circuits.all()
        return [self._status(name, known[name]) for name in sorted(known)]

    async def open(
        self, name: str, *, reason: str = "", open_for: Length | None = None, actor: str | None = None
    ) -> None:
        """Let no call through: for `open_for`, or until `close` is called."""
        if open_for is not None and duration(open_for) <= 0:
            msg = f"breaker {name!r}: open_for is {open_for}; give a length of time above 0, or leave it out"
            raise ConfigurationError(msg)

        def decide(before: Circuit, now: Millis) -> tuple[Circuit, None]:
            until = None if open_for is None else now + duration(open_for)
            return Circuit(Phase.OPEN, now, until=until, times=before.times, reason=reason or "opened by hand"), None

        await self.circuits.change(check_name(name), decide, note_of("open", name, reason, actor))

    async def close(self, name: str, *, reason: str = "", actor: str | None = None) -> None:
        """Let all calls through, and wake the jobs that wait for it."""

        def decide(before: Circuit, now: Millis) -> tuple[Circuit, None]:
            is_it = before.phase is Phase.CLOSED and not before.slices
            return before if is_it else Circuit(since=now, reason=reason or "closed by hand"), None

        await self.circuits.change(check_name(name), decide, note_of("close", name, reason, actor))

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

    async def admit(self, name: str, call_ids: Sequence[str]) -> BreakerAdmission:
        """Return which of these may call the service now. Report each call's result by `note`."""
        view, now = self.circuits.view(name), self._services.store.clock.now()
        current = await self.circuits.current(name, self._of(name), now)
        if current.phase_at(now) is Phase.CLOSED:
            return BreakerAdmission(frozenset(call_ids), view.defer)
        granted: frozenset[str] = frozenset()
        if current.phase_at(now) is Phase.HALF_OPEN:
            granted = await self._probe(name, view, call_ids)
            current = view.circuit or current
        return BreakerAdmission(granted, lambda: wait_of(current, now) + view.defer())

    async def _probe(self, name: str, view: View, call_ids: Sequence[str]) -> frozenset[str]:
        def decide(before: Circuit, now: Millis) -> tuple[Circuit, tuple[Phase, frozenset[str]]]:
            after, granted = rules.ask(before, call_ids, self._of(name), now)
            return after, (after.phase, granted)

        phase, granted = await self.circuits.change(name, decide)
        if phase is Phase.HALF_OPEN:
            with view.lock:
                view.probes |= granted
        return granted

    def disown(self, name: str, call_ids: Collection[str]) -> None:
        """Forget probes: another process may hear of their results."""
        view = self.circuits.view(name)
        with view.lock:
            view.probes -= set(call_ids)

    async def adopt(self, name: str, call_ids: Collection[str]) -> None:
        """Note which of these calls are probes, granted here or in another process."""
        view, now = self.circuits.view(name), self._services.store.clock.now()
        current = await self.circuits.current(name, self._of(name), now)
        if current.phase is not Phase.CLOSED:  # another process may have granted the probe a moment ago
            current = await self.circuits.sync(name, self._of(name))
        with view.lock:
            view.probes |= current.probes.keys() & set(call_ids)

    async def recheck(self, name: str) -> BreakerAdmission:
        """Return how the breaker stands now, for jobs that were admitted earlier. No probe is granted."""
        view, now = self.circuits.view(name), self._services.store.clock.now()
        current = await self.circuits.current(name, self._of(name), now)
        return BreakerAdmission(frozenset(), lambda: wait_of(current, now) + view.defer())

    def permits(self, name: str, call_id: str) -> bool:
        """Return whether a call that was admitted may still be made, as far as this process knows."""
        view = self.circuits.view(name)
        known = view.circuit
        return known is None or known.phase is Phase.CLOSED or call_id in view.probes

    def admits_at_once(self, name: str) -> bool:
        """Return whether the breaker is known to be closed, without asking the store."""
        view, now = self.circuits.view(name), self._services.store.clock.now()
        return view.is_fresh(now) and view.circuit is not None and view.circuit.phase is Phase.CLOSED

    def meter(self, name: str, seconds: float, *, well: bool | None) -> None:
        """Count a call of `ctx.breaker` for metrics, if this process has them."""
        if self._services.bus.meter is not None:
            self._services.bus.meter.called(name, seconds, well=well)

    async def note(self, name: str, call_id: str, *, well: bool | None) -> None:
        """Count the result of a call; None says nothing about the service. Never fails: a lost result does no harm."""
        if self.must_tell(name, call_id, well=well):
            await self.tell(name, call_id, well=well)

    def must_tell(self, name: str, call_id: str, *, well: bool | None) -> bool:
        """Count the result here; return whether it must be written at once."""
        view = self.circuits.view(name)
        return call_id in view.probes or (well is not None and self._count(name, view, well=well))

    def _count(self, name: str, view: View, *, well: bool) -> bool:
        breaker, now = self._of(name), self._services.store.clock.now()
        if view.circuit is not None and view.circuit.phase is not Phase.CLOSED:
            return False
        view.count(breaker.slice_of(now), well=well, oldest=now - duration(breaker.per))
        if not view.is_fresh(now) and view.has_errors():
            return True
        return not well and self._would_open(name, view, now)

    async def tell(self, name: str, call_id: str, *, well: bool | None) -> None:
        view = self.circuits.view(name)
        with view.lock:
            is_probe = call_id in view.probes
            view.probes.discard(call_id)
        with suppress(StoreUnavailable):
            if is_probe:
                answers = {call_id: well}
                await self.circuits.change(name, lambda before, at: (self._answer(name, before, answers, at), None))
            else:
                await self.circuits.sync(name, self._of(name))

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

    def _of(self, name: str) -> Breaker:
        return self._settings.get(name, DEFAULT)


DEFAULT = Breaker()


def wait_of(current: Circuit, now: Millis) -> Millis:
    """Return for how long, at least, a refused call cannot go through."""
    if current.phase is Phase.OPEN:
        return BY_HAND_RECHECK if current.until is None else max(0, current.until - now)
    return PROBING_DELAY


def reason_of(name: str) -> str:
    return f"the circuit breaker {name!r} is open"


def note_of(action: str, name: str, reason: str, actor: str | None) -> Note:
    return Note(By(actor or whoami(), reason), f"breaker.{action}", {"breaker": name})
