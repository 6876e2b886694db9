"""How a function leaves its worker while it sleeps or waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mainspring.clock import Millis
from mainspring.guards import LookAgain
from mainspring.job import UNTIL_WOKEN, Step

MINUTE: Millis = 60_000
NET: tuple[Millis, ...] = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""A waiting job looks by itself now and then, in case it was not woken."""


def next_look(looks: int) -> Millis:
    """How long until a function that has looked so often looks again without being called."""
    return NET[min(looks, len(NET) - 1)]


@dataclass(frozen=True, slots=True)
class Wait:
    """Until a time or, with a key, until that is called before."""

    until: Millis  # by the store's clock
    step: Step | None  # written with the suspension
    key: str | None = None
    look_again: LookAgain | None = None


@dataclass(slots=True)
class Suspension:
    """All that a function waits for at once: usually one thing, several only if its branches wait side by side."""

    waits: list[Wait] = field(default_factory=list)
    failures: tuple[Step, ...] = ()  # of steps before it, which the function has caught

    @property
    def key(self) -> str | None:
        return next((wait.key for wait in self.waits if wait.key is not None), None)

    @property
    def look_again(self) -> LookAgain | None:
        return next((wait.look_again for wait in self.waits if wait.key == self.key and wait.look_again), None)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.failures, *(wait.step for wait in self.waits if wait.step is not None))

    def delay(self, now: Millis) -> Millis:
        """A job waits for one key; with several it comes back soon to look after the others."""
        several = len({wait.key for wait in self.waits if wait.key is not None}) > 1
        until = min(wait.until for wait in self.waits)
        return max(0, min(until - now, NET[0] if several else UNTIL_WOKEN))


class Suspended(BaseException):
    """Unwinds a function whose job sleeps or waits. Like a cancellation, `except Exception` does not catch it."""


def is_suspended(error: BaseException) -> bool:
    """A task group wraps it, together with the cancellations that it has caused; a real error among them is one."""
    return all(isinstance(one, Suspended) for one in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error
