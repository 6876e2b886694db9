"""The state of a `Rate`: a bucket into which tokens drip, one for each start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from mainspring.clock import Millis

TURN: Millis = 100  # between two calls to those that wait; tokens that drip meanwhile have room in the bucket
CALL_LASTS: Millis = 2_000  # who was called and has not come by then does not come
TURNED_BACK: Millis = 60_000  # a bucket filled so long after now was filled by a clock that was wrong
SLACK: Millis = 60_000


@dataclass(slots=True)
class Bucket:
    drip: float  # tokens per millisecond
    burst: int
    tokens: float
    at: Millis  # filled up to then
    waiting: bool = False  # jobs may be suspended until they are called
    called: int = 0  # of those, who may come now; while any wait, nobody else may start
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
        return max(self.burst, self.drip * TURN)

    def fill(self, now: Millis) -> None:
        """With what has dripped. Processes' clocks may differ a little: who is behind adds nothing."""
        if self.at - now > TURNED_BACK:
            self.at = now
        if now > self.at:
            self.tokens = min(self.capacity, self.tokens + (now - self.at) * self.drip)
            self.at = now
        if now - self.called_at > CALL_LASTS:
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
        """Tokens for starts to come; none while others wait."""
        drawn = 0 if self.waiting else min(int(self.tokens), most)
        self.tokens -= drawn
        return drawn

    def put_back(self, number: int) -> None:
        self.tokens = min(self.capacity, self.tokens + number)

    def call(self, now: Millis) -> int:
        """How many of those that wait may be called."""
        number = max(0, int(self.tokens) - self.called)
        if number:
            self.called += number
            self.called_at = now
        return number

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """The next turn of those that wait; only who gives them their turn says when the next one is."""
        if not self.waiting:
            return None
        if before is not None:
            return before
        missing = max(0.0, 1 - (self.tokens - self.called))
        return now + max(TURN, ceil(missing / self.drip))

    def expires_at(self, now: Millis) -> Millis | None:
        """A bucket that is full is as good as none."""
        if self.waiting:
            return None
        return now + ceil((self.capacity - self.tokens) / self.drip) + SLACK
