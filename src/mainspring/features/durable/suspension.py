"""Suspensions: a function that sleeps or waits is unwound, so that it occupies no worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mainspring.clock import Millis
from mainspring.feature import Recheck
from mainspring.job import UNTIL_WOKEN, Step

MINUTE: Millis = 60_000
RECHECK_DELAYS: tuple[Millis, ...] = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""How long until a waiting job runs again by itself, in case a wake was lost: the first, second and later times."""


def next_look(looks: int) -> Millis:
    """Return how long to wait before checking again without being woken, after this many checks."""
    return RECHECK_DELAYS[min(looks, len(RECHECK_DELAYS) - 1)]


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until a time or, with a key, until the key is woken, whichever is first."""

    until: Millis  # by the store's clock
    step: Step | None  # the record, written in one commit with the suspension
    key: str | None = None
    recheck: Recheck | None = None


@dataclass(slots=True)
class Suspension:
    """Everything that a function waits for at once. Several waits occur only if branches wait at the same time."""

    waits: list[Wait] = field(default_factory=list)
    failures: tuple[Step, ...] = ()  # of earlier steps, whose errors the function caught

    @property
    def key(self) -> str | None:
        return next((wait.key for wait in self.waits if wait.key is not None), None)

    @property
    def recheck(self) -> Recheck | None:
        return next((wait.recheck for wait in self.waits if wait.key == self.key and wait.recheck), None)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.failures, *(wait.step for wait in self.waits if wait.step is not None))

    def delay(self, now: Millis) -> Millis:
        """Return how long to suspend. A job waits for one key only; with several, it rechecks after a minute."""
        several = len({wait.key for wait in self.waits if wait.key is not None}) > 1
        until = min(wait.until for wait in self.waits)
        return max(0, min(until - now, RECHECK_DELAYS[0] if several else UNTIL_WOKEN))


class Suspended(BaseException):
    """Unwinds a function whose job sleeps or waits. It is a BaseException, so `except Exception` does not catch it."""


def is_suspended(error: BaseException) -> bool:
    """Return whether an error only suspends the function.

    A task group wraps `Suspended` in an exception group. If the group holds any other error, the run has failed.
    """
    return all(isinstance(leaf, Suspended) for leaf in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
