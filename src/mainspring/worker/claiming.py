"""How much to claim, and from which queues. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from mainspring.stores.protocol import Want
from mainspring.worker.settings import Subscription

AHEAD = 0.05  # seconds of work to hold in advance, at the rate at which jobs finish
SMOOTHING = 0.3  # weight of the newest measurement


class Prefetch:
    """Claim ahead as much as is soon done: thousands of quick jobs, not one slow job that another worker could run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rate = 0.0
        self._finished = 0
        self._since: float | None = None

    @property
    def ahead(self) -> int:
        return min(self._most, int(self._rate * AHEAD))

    def finished(self, number: int, now: float) -> None:
        """Jobs finished; measured over stretches of at least the time we look ahead."""
        if self._since is None:
            self._since = now
        self._finished += number
        elapsed = now - self._since
        if elapsed >= AHEAD:
            self._rate += SMOOTHING * (self._finished / elapsed - self._rate)
            self._finished, self._since = 0, now


def wants(
    subscribed: Sequence[Subscription], *, strict: bool, room: int, in_hand: Mapping[str, int], rng: random.Random
) -> list[Want]:
    """In strict order all of the first queue, then the next; else each its share by weight, and the rest to any."""
    limits = {s.queue: room if s.concurrency is None else s.concurrency - in_hand.get(s.queue, 0) for s in subscribed}
    open_ = [s for s in subscribed if limits[s.queue] > 0]
    if strict or len(open_) < 2:
        return [Want(s.queue, min(room, limits[s.queue])) for s in open_]
    total = sum(s.weight for s in open_)
    drawn = sorted(open_, key=lambda s: rng.random() ** (1 / s.weight), reverse=True)  # the heavier, the earlier
    shares = [Want(s.queue, min(limits[s.queue], max(1, room * s.weight // total))) for s in drawn]
    rest = [Want(s.queue, limits[s.queue] - share.limit) for s, share in zip(drawn, shares, strict=True)]
    return shares + [want for want in rest if want.limit > 0]
