"""The state of a `Rate`: a bucket into which tokens drip, one for each start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from mainspring.clock import SKEW, Millis

TURN: Millis = 50  # at least so long between two calls to jobs that wait: each call costs a read, a write and a claim
ROOM: Millis = 100  # what drips in this time has room in the bucket even if the burst is less: it can be drawn ahead
LATE: Millis = 150  # a token waits so long, beyond the burst, for the job that was called to be claimed
CALL_LASTS: Millis = 2_000  # a called job that has not asked for its token by then is not coming
EXPIRY_SLACK: Millis = 60_000


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
        """Tokens beyond this are lost.

        While jobs wait, a token stays unused for the time that calling and claiming a job takes. It must not be lost
        meanwhile, or a rate with a small burst would never be reached. Nothing is drawn ahead then, so that both ways
        no more than burst + rate x 0.2 s can start at once (docs/flow.md).
        """
        return self.burst + self.drip * LATE if self.waiting else max(self.burst, self.drip * ROOM)

    def fill(self, now: Millis) -> None:
        """Add what has dripped. A process whose clock is a little behind the last one's adds nothing."""
        if self.at - now > SKEW:
            self.at = now
        dripped = max(0, now - self.at) * self.drip
        self.tokens = min(self.capacity, self.tokens + dripped)
        self.at = max(self.at, now)
        if not -SKEW <= now - self.called_at <= CALL_LASTS:
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
        """When to call the next of the jobs that wait. Never later than planned before, whatever was planned then.

        Not later than the called jobs are given up either: one may have been lost with its worker.
        """
        if not self.waiting:
            return None
        missing = max(0.0, 1 - (self.tokens - self.called))
        due = now + max(TURN, ceil(missing / self.drip))
        if self.called:
            due = min(due, max(now, self.called_at) + CALL_LASTS + 1)
        return due if before is None else min(before, due)

    def expires_at(self, now: Millis) -> Millis | None:
        """A bucket that is full is as good as none."""
        if self.waiting:
            return None
        return now + ceil((self.capacity - self.tokens) / self.drip) + EXPIRY_SLACK
