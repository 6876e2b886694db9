"""Tokens of a rate that a process has drawn in advance. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LEASE = 0.1  # seconds for which a token is good
AHEAD = 32  # tokens that are drawn for each that was needed; but no more than drip during the lease


@dataclass(slots=True)
class Portion:
    tokens: int
    until: float  # the process's monotonic clock


@dataclass(slots=True)
class Purse:
    portions: deque[Portion] = field(default_factory=deque)  # the oldest first
    used: int = 0  # since the last was drawn
    stale: int = 0  # tokens that were not used in time

    def tokens(self, now: float) -> int:
        while self.portions and self.portions[0].until < now:
            self.stale += self.portions.popleft().tokens
        return sum(portion.tokens for portion in self.portions)

    def take(self, number: int) -> None:
        """No more than there are."""
        self.used += number
        for portion in self.portions:
            taken = min(number, portion.tokens)
            portion.tokens -= taken
            number -= taken

    def add(self, tokens: int, now: float) -> None:
        self.used = 0
        if tokens:
            self.portions.append(Portion(tokens, now + LEASE))

    def is_low(self, now: float) -> bool:
        """Time to draw, so that it does not run out: half of the lease is over, or half of the tokens are used up."""
        newest = self.portions[-1].until if self.portions else now
        return newest - now < LEASE / 2 or self.tokens(now) < self.used

    def empty(self) -> int:
        left, self.stale = self.stale + sum(portion.tokens for portion in self.portions), 0
        self.portions.clear()
        return left

    def give_back_stale(self) -> int:
        left, self.stale = self.stale, 0
        return left
