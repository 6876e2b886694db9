"""Jobs that a limit has refused and that stay in their worker for a moment.

Where runs are short, the same write that frees a slot hands it to one of them. Otherwise the next job would have to be
suspended, woken, claimed and admitted first. They wait only while a run of this process holds a slot: they would not
hear of a slot that another process frees.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.features.limits.options import Limit, Ticket
from mainspring.features.limits.rules import Acquire, Release
from mainspring.stores.documents import Key

MAX_STANDBYS = 8  # jobs that wait for one limit in one process
QUICK_SECONDS = 0.1  # waiting is worth it if runs take less
MAX_KNOWN = 10_000  # limits that are known to have quick runs


@dataclass(frozen=True, slots=True, eq=False)
class Standby:
    """A refused job that waits for a slot."""

    ask: Acquire
    leave: Release  # what it gives back when it has run
    pending: asyncio.Future[bool]  # cancelled when the job stops waiting

    def answer(self, *, granted: bool) -> None:
        if not self.pending.done():
            self.pending.set_result(granted)


class Standbys:
    """The waiting jobs of one process; belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[Standby]] = {}
        self._inside: Counter[Key] = Counter()  # runs of this process that hold a slot
        self._quick: set[Key] = set()  # limits whose last run that ended here was short

    def entered(self, leave: Release) -> None:
        self._inside.update(ticket.document for ticket in limits_of(leave))

    def left(self, leave: Release, lasted: float) -> None:
        if len(self._quick) > MAX_KNOWN:
            self._quick.clear()
        for ticket in limits_of(leave):
            (self._quick.add if lasted < QUICK_SECONDS else self._quick.discard)(ticket.document)
            self._inside[ticket.document] -= 1
            if self._inside[ticket.document] <= 0:
                del self._inside[ticket.document]

    def wait(self, obstacle: Ticket, ask: Acquire, leave: Release) -> asyncio.Future[bool] | None:
        """Let a refused job wait; return None if that is not worth it, or enough jobs wait already."""
        if not isinstance(obstacle.limit, Limit) or not self.lacking(obstacle.document):
            return None
        standby = Standby(ask, leave, asyncio.get_running_loop().create_future())
        others = (other for other in self._waiting.get(obstacle.document, ()) if not other.pending.done())
        self._waiting[obstacle.document] = deque([*others, standby])  # drops those that have stopped waiting
        return standby.pending

    def lacking(self, key: Key) -> int:
        """Return how many more jobs could wait here."""
        if key not in self._quick or not self._inside[key]:
            return 0
        return max(0, MAX_STANDBYS - sum(not standby.pending.done() for standby in self._waiting.get(key, ())))

    def heirs(self, leaves: Iterable[Release]) -> list[Standby]:
        """Return, for each slot that becomes free, the job that has waited longest here."""
        found = (self._next(ticket.document) for leave in leaves for ticket in limits_of(leave))
        return [standby for standby in found if standby is not None]

    def dismiss(self, leaves: Iterable[Release]) -> None:
        """Refuse jobs that wait for a limit of which this process holds no slot any more."""
        for key in {ticket.document for leave in leaves for ticket in limits_of(leave)} - self._inside.keys():
            while (standby := self._next(key)) is not None:
                standby.answer(granted=False)

    def _next(self, key: Key) -> Standby | None:
        waiting = self._waiting.get(key)
        while waiting:
            if not (standby := waiting.popleft()).pending.done():
                return standby
        self._waiting.pop(key, None)
        return None


def limits_of(leave: Release) -> list[Ticket]:
    return [ticket for ticket in leave.tickets if isinstance(ticket.limit, Limit)]
