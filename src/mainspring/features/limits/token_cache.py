"""Tokens of a rate that a process has taken in advance. The code here does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

LEASE = 0.1  # seconds in which a token starts a job or goes back to its bucket; later it is lost
USABLE_FOR = 0.08  # seconds in which a token may start a job; the rest of the lease is for returning it
TOKENS_AHEAD = 32  # tokens taken for each one that was needed; but no more than drip during the lease


@dataclass(slots=True)
class Portion:
    """Tokens that were taken together."""

    tokens: int
    drawn_at: float  # by the process's monotonic clock


@dataclass(slots=True)
class TokenCache:
    """The tokens of one rate that this process holds."""

    portions: deque[Portion] = field(default_factory=deque)  # the oldest first
    used: int = 0  # tokens used since the last portion was taken
    stale: list[Portion] = field(default_factory=list)  # portions that were not used in time

    def tokens(self, now: float) -> int:
        while self.portions and self.portions[0].drawn_at + USABLE_FOR < now:
            self.stale.append(self.portions.popleft())
        return sum(portion.tokens for portion in self.portions)

    def take(self, number: int) -> None:
        """Use tokens. The caller must not ask for more than `tokens` returns."""
        self.used += number
        for portion in self.portions:
            taken = min(number, portion.tokens)
            portion.tokens -= taken
            number -= taken

    def add(self, tokens: int, now: float) -> None:
        self.used = 0
        if tokens:
            self.portions.append(Portion(tokens, now))

    def is_low(self, now: float) -> bool:
        """Return whether to take more now: half of the time is over, or half of the tokens are used."""
        newest = self.portions[-1].drawn_at if self.portions else now - USABLE_FOR
        return now - newest > USABLE_FOR / 2 or self.tokens(now) < self.used

    def empty(self) -> list[Portion]:
        left, self.stale = [*self.stale, *self.portions], []
        self.portions.clear()
        return left

    def give_back_stale(self) -> list[Portion]:
        left, self.stale = self.stale, []
        return left


def most_drawn(drip: float) -> int:
    """Return how many tokens may be taken at a time; `drip` is how many the bucket gains per millisecond."""
    return int(drip * LEASE * 1000)


def returnable(portions: Iterable[Portion], now: float) -> int:
    """Return how many tokens may go back into the bucket.

    None may after the lease: the bucket may have been full meanwhile, and tokens that dripped then were lost. Tokens
    that come back later would let more jobs start than the rate allows.
    """
    return sum(portion.tokens for portion in portions if portion.drawn_at + LEASE >= now)
