"""Decides how much to claim, and from which queues. It does no I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from mainspring.stores.protocol import EVERY_QUEUE, Want
from mainspring.worker.settings import Subscription

PREFETCH_SECONDS = 0.1  # of work to claim in advance, at the rate at which jobs finish: a few round trips of a claim
MIN_MEASURED_SECONDS = 0.05  # the shortest time over which the rate is measured
SMOOTHING = 0.5  # weight of the newest measurement, from 0 to 1


class Prefetch:
    """Limits claiming ahead to what is soon done: thousands of quick jobs, but no slow job another worker could run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.ahead = 0  # jobs to claim in advance
        self._rate = 0.0
        self._finished = 0
        self._since: float | None = None

    def overestimated(self) -> None:
        """Forget the rate and measure it anew, because jobs have become slow."""
        self.ahead, self._rate = 0, 0.0

    def finished(self, number: int, now: float) -> None:
        """Count finished jobs and adjust `ahead`."""
        if self._since is None:
            self._since = now
        self._finished += number
        elapsed = now - self._since
        if elapsed >= MIN_MEASURED_SECONDS:
            rate = self._finished / elapsed
            self._rate += (rate - self._rate) * (SMOOTHING if self._rate else 1)
            self._finished, self._since = 0, now
            self.ahead = min(self._most, int(self._rate * PREFETCH_SECONDS))


class SoloTurns:
    """Decides when a worker runs crash suspects, each of which must run alone.

    A worker without other jobs runs suspects at once. A busy one holds back first, so that idle workers can take them.
    Then suspects get short turns: the worker claims nothing until it is idle, and runs suspects. After each turn the
    other jobs go on undisturbed for several times as long. So few of them wait, and none for much longer than a suspect
    takes. If long jobs keep the worker from becoming idle, the next turn waits longer for their end.
    """

    HOLD_BACK = 0.5  # seconds before the first turn of a busy worker
    QUIET_FOR = 1.0  # seconds without other jobs after which an idle worker does not hold back
    TURN_LENGTH = 0.05  # seconds; within them, a turn may start further suspects
    FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 30.0  # seconds a turn waits for running jobs; it doubles
    OTHERS_FACTOR = 4.0  # after a turn, the other jobs run undisturbed for this many times its length
    OLD_AFTER, OTHERS_FACTOR_THEN = 60.0, 1.0  # if suspects have waited for so many seconds, they get half of the time

    def __init__(self) -> None:
        self.patience = self.FIRST_PATIENCE
        self._since: float | None = None  # when suspects were noticed; None: there are none
        self._next = 0.0  # when the next turn begins
        self._busy_at = float("-inf")  # when other jobs were last claimed

    def noticed(self, suspects: bool, now: float) -> None:  # noqa: FBT001 - the claim's answer, passed on
        """Note whether suspects are due."""
        if not suspects:
            self._since, self.patience = None, self.FIRST_PATIENCE
        elif self._since is None:
            self._since, self._next = now, now + self.HOLD_BACK

    def others_came(self, now: float) -> None:
        self._busy_at = now

    def due_in(self, now: float, *, idle: bool) -> float | None:
        """Return the seconds until the suspects' next turn; None if there are no suspects."""
        if self._since is None:
            return None
        begins = min(self._next, self._busy_at + self.QUIET_FOR) if idle else self._next
        return max(0.0, begins - now)

    def ended(self, began: float, now: float, *, alone: bool) -> None:
        """Note that a turn is over. `alone` says whether the worker became idle in time."""
        is_old = self._since is not None and now - self._since > self.OLD_AFTER
        self._next = now + (now - began) * (self.OTHERS_FACTOR_THEN if is_old else self.OTHERS_FACTOR)
        if not alone:
            self.patience = min(2 * self.patience, self.LONGEST_PATIENCE)


def wants(
    subscribed: Sequence[Subscription], *, strict: bool, room: int, in_hand: Mapping[str, int], rng: random.Random
) -> list[Want]:
    """Return what to ask of which queue.

    In strict order, the first queue may fill all the room, then the next. Otherwise each queue gets its share by
    weight, and any queue may fill what is left.
    """
    limits = {s.queue: room if s.concurrency is None else s.concurrency - held_of(s, in_hand) for s in subscribed}
    open_ = [s for s in subscribed if limits[s.queue] > 0]
    if strict or len(open_) < 2:
        return [Want(s.queue, min(room, limits[s.queue])) for s in open_]
    total = sum(s.weight for s in open_)
    drawn = sorted(open_, key=lambda s: rng.random() ** (1 / s.weight), reverse=True)  # heavier queues tend to be first
    shares = [Want(s.queue, min(limits[s.queue], max(1, room * s.weight // total))) for s in drawn]
    rest = [Want(s.queue, limits[s.queue] - share.limit) for s, share in zip(drawn, shares, strict=True)]
    return shares + [want for want in rest if want.limit > 0]


def held_of(subscription: Subscription, in_hand: Mapping[str, int]) -> int:
    return sum(in_hand.values()) if subscription.queue == EVERY_QUEUE else in_hand.get(subscription.queue, 0)
