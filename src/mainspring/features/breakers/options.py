"""When to stop calling a service that fails: what a program declares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Length, Millis, duration
from mainspring.errors import ConfigurationError

OPTION = "breaker"
LONGEST_NAME = 200

SLICES = 10  # per window
MAX_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Breaker:
    """When to stop calling a service that fails, and how to find out that it works again."""

    error_rate: float = 0.5  # it opens at this share of errors
    per: Length = 60  # of the calls in this length of time
    min_calls: int = 10  # if there are at least this many
    open_for: Length = 30  # for this long nothing is called; doubles each time that a probe fails
    max_open_for: Length = 600  # but no longer than this
    probes: int = 3  # calls let through at a time when half open; all of them must succeed
    counts: tuple[type[BaseException], ...] = (Exception,)  # errors of the service; others say nothing about it

    def __post_init__(self) -> None:
        for problem in problems_of(self):
            raise ConfigurationError(problem)

    def slice_of(self, moment: Millis) -> Millis:
        length = max(1, duration(self.per) // SLICES)
        return moment - moment % length

    def open_length(self, times: int) -> Millis:
        doubled = duration(self.open_for) << min(max(times - 1, 0), MAX_DOUBLINGS)
        return min(doubled, max(duration(self.max_open_for), duration(self.open_for)))


def problems_of(breaker: Breaker) -> Iterable[str]:
    if not 0 < breaker.error_rate <= 1:
        yield f"error_rate is {breaker.error_rate}; it is a share of all calls, above 0 and up to 1"
    if breaker.min_calls < 1 or breaker.probes < 1:
        yield "min_calls and probes are numbers of at least 1"
    if duration(breaker.per) <= 0 or duration(breaker.open_for) <= 0:
        yield "per and open_for must be lengths of time above 0"
    counts: Any = breaker.counts
    if not isinstance(counts, tuple) or not all(isinstance(kind, type) for kind in counts):
        yield f"counts is a tuple of exception types, not {counts!r}"


def check_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        msg = f"{name!r} is not a name for a circuit breaker; use 1 to {LONGEST_NAME} printable characters"
        raise ConfigurationError(msg)
    return name
