"""How much to claim, and from which queues. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from mainspring.stores.protocol import EVERY_QUEUE, Want
from mainspring.worker.settings import Subscription

AHEAD = 0.1  # seconds of work to hold in advance, at the rate at which jobs finish: a few claims' journeys
MEASURED = 0.05  # seconds, at least, over which the rate is measured
SMOOTHING = 0.5  # weight of the newest measurement


class Prefetch:
    """Claim ahead as much as is soon done: thousands of quick jobs, not one slow job that another worker could run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.ahead = 0  # jobs
        self._rate = 0.0
        self._finished = 0
        self._since: float | None = None

    def overestimated(self) -> None:
        """Jobs have become slow: measure anew."""
        self.ahead, self._rate = 0, 0.0

    def finished(self, number: int, now: float) -> None:
        """Jobs finished."""
        if self._since is None:
            self._since = now
        self._finished += number
        elapsed = now - self._since
        if elapsed >= MEASURED:
            rate = self._finished / elapsed
            self._rate += (rate - self._rate) * (SMOOTHING if self._rate else 1)
            self._finished, self._since = 0, now
            self.ahead = min(self._most, int(self._rate * AHEAD))


class SoloTurns:
    """When to make way for crash suspects, which run alone, while there are any.

    They and the others take turns. A turn lasts a second at first; if long jobs kept the worker from ever being alone,
    the next ones last longer, so that in the end even a busy worker gets to them.
    """

    FIRST, LONGEST = 1.0, 30.0

    def __init__(self) -> None:
        self._length = self.FIRST
        self._ends = 0.0
        self._others_until = 0.0

    def patience(self, now: float) -> float:
        """Seconds left of the suspects' turn; 0 in the turn of the others."""
        if now < self._ends:
            return self._ends - now
        if now < self._others_until:
            return 0.0
        lapsed = now - self._others_until > self.LONGEST  # long ago: another story
        self._length = self.FIRST if lapsed else min(self._length * 2, self.LONGEST)
        self._ends, self._others_until = now + self._length, now + 2 * self._length
        return self._length

    def hurry(self) -> None:
        """The others have nothing to do: their turn is over."""
        self._others_until = 0.0


def wants(
    subscribed: Sequence[Subscription], *, strict: bool, room: int, in_hand: Mapping[str, int], rng: random.Random
) -> list[Want]:
    """In strict order all of the first queue, then the next; else each its share by weight, and the rest to any."""
    limits = {s.queue: room if s.concurrency is None else s.concurrency - held_of(s, in_hand) for s in subscribed}
    open_ = [s for s in subscribed if limits[s.queue] > 0]
    if strict or len(open_) < 2:
        return [Want(s.queue, min(room, limits[s.queue])) for s in open_]
    total = sum(s.weight for s in open_)
    drawn = sorted(open_, key=lambda s: rng.random() ** (1 / s.weight), reverse=True)  # the heavier, the earlier
    shares = [Want(s.queue, min(limits[s.queue], max(1, room * s.weight // total))) for s in drawn]
    rest = [Want(s.queue, limits[s.queue] - share.limit) for s, share in zip(drawn, shares, strict=True)]
    return shares + [want for want in rest if want.limit > 0]


def held_of(subscription: Subscription, in_hand: Mapping[str, int]) -> int:
    return sum(in_hand.values()) if subscription.queue == EVERY_QUEUE else in_hand.get(subscription.queue, 0)
