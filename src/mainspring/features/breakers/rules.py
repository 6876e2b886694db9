"""When a circuit breaker opens, lets probes through and closes again. It does no I/O, so every process decides alike.

While the breaker is closed, results are counted in slices of the window. If enough of them are errors, it opens. After
a while it is half open: a few probes at a time may go through, each with a lease, in case its process dies. Once enough
probes have succeeded, it closes. If one fails, it opens again, for longer each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from mainspring.clock import SKEW, Millis, duration
from mainspring.features.breakers.options import Breaker

PROBE_LEASE: Millis = 60_000  # after that, a probe without an answer no longer blocks others
SLOWEST_PROBE: Millis = 86_400_000  # a probe's answer still counts until this long after its lease


class Phase(StrEnum):
    """The phase of a circuit breaker."""

    CLOSED = "closed"  # calls go through
    OPEN = "open"  # no calls go through
    HALF_OPEN = "half_open"  # some calls go through, as probes


class Slice(NamedTuple):
    """The results counted in one part of the window."""

    start: Millis
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of one breaker, shared by all processes."""

    phase: Phase = Phase.CLOSED
    since: Millis = 0
    slices: tuple[Slice, ...] = ()  # only while it is closed
    until: Millis | None = None  # if open: when it becomes half open; None: only when an operator closes it
    times: int = 0  # how often it has opened since it was last closed
    passed: int = 0  # probes that succeeded
    probes: Mapping[str, Millis] = field(default_factory=dict)  # those under way, and when their lease ends
    reason: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"slices": [list(part) for part in self.slices]})

    @classmethod
    def from_json(cls, text: str) -> Circuit:
        data: dict[str, Any] = json.loads(text)
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        slices = tuple(Slice(*part) for part in data.get("slices", ()))
        return cls(**known | {"phase": Phase(data["phase"]), "slices": slices})

    def rewound(self, now: Millis) -> Circuit:
        """Return the state moved back to now, if a clock that was ahead wrote it; otherwise it would stay stuck."""
        newest = max(
            [self.since, *(part.start for part in self.slices), *(end - PROBE_LEASE for end in self.probes.values())]
        )
        if newest <= now + SKEW:
            return self
        back = newest - now
        return replace(
            self,
            since=max(0, self.since - back),
            until=None if self.until is None else self.until - back,
            slices=tuple(part._replace(start=part.start - back) for part in self.slices),
            probes={probe: end - back for probe, end in self.probes.items()},
        )

    def phase_at(self, now: Millis) -> Phase:
        is_over = self.phase is Phase.OPEN and self.until is not None and now >= self.until
        return Phase.HALF_OPEN if is_over else self.phase

    def counted(self, breaker: Breaker, now: Millis) -> tuple[int, int]:
        """Return the numbers of good and bad results within the window."""
        fresh = recent(self.slices, breaker, now)
        return sum(part.good for part in fresh), sum(part.bad for part in fresh)


def recent(slices: Iterable[Slice], breaker: Breaker, now: Millis) -> list[Slice]:
    return [part for part in slices if part.start > now - duration(breaker.per)]


def merge(circuit: Circuit, results: Iterable[Slice], breaker: Breaker, now: Millis) -> Circuit:
    """Count results, and open if too many are bad. Results from before it was last closed are ignored."""
    if circuit.phase is not Phase.CLOSED:
        return circuit
    sums: dict[Millis, Slice] = {}
    since = breaker.slice_of(circuit.since)
    for start, good, bad in (*circuit.slices, *(part for part in results if part.start >= since)):
        before = sums.get(start, Slice(start, 0, 0))
        sums[start] = Slice(start, before.good + good, before.bad + bad)
    counted = replace(circuit, slices=tuple(sorted(recent(sums.values(), breaker, now))))
    good, bad = counted.counted(breaker, now)
    if good + bad >= breaker.min_calls and bad >= breaker.error_rate * (good + bad):
        return opened(counted, breaker, now, f"{bad} of {good + bad} calls failed")
    return counted


def opened(circuit: Circuit, breaker: Breaker, now: Millis, reason: str) -> Circuit:
    times = circuit.times + 1
    return Circuit(Phase.OPEN, now, until=now + breaker.open_length(times), times=times, reason=reason)


def ask(circuit: Circuit, call_ids: Iterable[str], breaker: Breaker, now: Millis) -> tuple[Circuit, frozenset[str]]:
    """Return the circuit and which calls may go through now; if it is half open, they are probes."""
    phase = circuit.phase_at(now)
    if phase is Phase.CLOSED:
        return circuit, frozenset(call_ids)
    if phase is Phase.OPEN:
        return circuit, frozenset()
    if circuit.phase is Phase.OPEN:
        circuit = Circuit(Phase.HALF_OPEN, now, times=circuit.times, reason=circuit.reason)
    waited_for = sum(end > now for end in circuit.probes.values())
    room = max(0, breaker.probes - circuit.passed - waited_for)
    let_in = [probe for probe in call_ids if probe not in circuit.probes][:room]
    if not let_in:
        return circuit, frozenset()
    known = {probe: end for probe, end in circuit.probes.items() if end > now - SLOWEST_PROBE}
    return replace(circuit, probes=known | dict.fromkeys(let_in, now + PROBE_LEASE)), frozenset(let_in)


def answer(circuit: Circuit, answers: Mapping[str, bool | None], breaker: Breaker, now: Millis) -> Circuit:
    """Count the results of probes. None means that a probe's result is unknown, and another may try."""
    ours = {probe: well for probe, well in answers.items() if probe in circuit.probes}
    if circuit.phase is not Phase.HALF_OPEN or not ours:
        return circuit
    if False in ours.values():
        return opened(circuit, breaker, now, "a probe failed")
    passed = circuit.passed + sum(well is True for well in ours.values())
    if passed >= breaker.probes:
        return Circuit(since=now, reason=f"{passed} probes succeeded")
    left = {probe: end for probe, end in circuit.probes.items() if probe not in ours}
    return replace(circuit, passed=passed, probes=left)
