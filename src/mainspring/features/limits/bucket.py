"""The state of a `Rate`: a bucket into which tokens drip. Each start takes a token. The code here does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from mainspring.clock import SKEW, Millis

WAKE_EVERY: Millis = 50  # shortest time between two wake-ups of waiting jobs, as each costs a read, a write and a claim
AHEAD_ROOM: Millis = 100  # holds what drips in this time even if the burst is less, to be taken in advance
WAITING_ROOM: Millis = 150  # while jobs wait, the bucket holds what drips in this time beyond the burst: see `capacity`
WOKEN_FOR: Millis = 2_000  # a woken job that has not taken its token by then is not expected any more
EXPIRY_SLACK: Millis = 60_000  # how long the document of a bucket is kept after it is full


@dataclass(slots=True)
class Bucket:
    """The tokens of a rate, and how many waiting jobs were woken for them."""

    drip: float  # tokens per millisecond
    burst: int
    tokens: float
    at: Millis  # when the tokens were last counted
    waiting: bool = False  # jobs may be suspended until they are woken
    called: int = 0  # jobs that were woken and may take a token; while jobs wait, no others may start
    called_at: Millis = 0

    @classmethod
    def full(cls, drip: float, burst: int, now: Millis) -> Bucket:
        return cls(drip, burst, float(burst), now)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Bucket:
        return cls(**data)

    def to_data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.to_data() != before

    @property
    def idle(self) -> bool:
        return False

    @property
    def capacity(self) -> float:
        """Return how many tokens the bucket can hold; more are lost.

        While jobs wait, a token stays unused for the time that waking and claiming a job takes. It must not be lost
        meanwhile, or a rate with a small burst would never be reached. No tokens are taken in advance then. So in both
        cases no more than burst + rate x 0.2 s can start at once (docs/flow.md).
        """
        return self.burst + self.drip * WAITING_ROOM if self.waiting else max(self.burst, self.drip * AHEAD_ROOM)

    def fill(self, now: Millis) -> None:
        """Add the tokens that have dripped. A process whose clock is slightly behind the last one's adds nothing."""
        if self.at - now > SKEW:
            self.at = now
        dripped = max(0, now - self.at) * self.drip
        self.tokens = min(self.capacity, self.tokens + dripped)
        self.at = max(self.at, now)
        if not -SKEW <= now - self.called_at <= WOKEN_FOR:
            self.called = 0

    @property
    def room(self) -> int:
        return min(int(self.tokens), self.called) if self.waiting else int(self.tokens)

    def has_room_for(self, job_id: str) -> bool:
        del job_id
        return self.room > 0

    def take(self, job_id: str, token: int) -> None:
        del job_id, token
        self.tokens -= 1
        self.called = max(0, self.called - 1)

    def draw(self, most: int) -> int:
        """Take up to `most` tokens for coming starts; none while jobs wait."""
        drawn = 0 if self.waiting else min(int(self.tokens), most)
        self.tokens -= drawn
        return drawn

    def put_back(self, number: int) -> None:
        self.tokens = min(self.capacity, self.tokens + number)

    def call(self, now: Millis) -> int:
        """Return how many waiting jobs may be woken, and count them as woken."""
        number = max(0, int(self.tokens) - self.called)
        if number:
            self.called += number
            self.called_at = now
        return number

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """Return when to wake the next of the waiting jobs. It is never later than was planned before.

        It is also not later than the moment at which woken jobs are given up: their worker may have died.
        """
        if not self.waiting:
            return None
        missing = max(0.0, 1 - (self.tokens - self.called))
        due = now + max(WAKE_EVERY, ceil(missing / self.drip))
        if self.called:
            due = min(due, max(now, self.called_at) + WOKEN_FOR + 1)
        return due if before is None else min(before, due)

    def expires_at(self, now: Millis) -> Millis | None:
        """Return when the document may be deleted: a full bucket is the same as none."""
        if self.waiting:
            return None
        return now + ceil((self.capacity - self.tokens) / self.drip) + EXPIRY_SLACK
