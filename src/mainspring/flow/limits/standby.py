"""Jobs that a limit has refused and that stay in their worker for a moment.

Where runs are short, a place that becomes free is handed to one of them by the very write that frees it. Otherwise the
next job would have to be suspended, called, claimed and admitted first. They wait only while a run of this process
holds a place: nobody would tell them of another's.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.flow.limits.decisions import Acquire, Release
from mainspring.flow.limits.limit import Limit, Ticket
from mainspring.stores.documents import Key

MOST = 8  # for one limit, in one process
QUICK = 0.1  # seconds that runs last, so that it is worth to wait
MOST_KNOWN = 10_000  # limits whose runs are known to be quick


@dataclass(frozen=True, slots=True, eq=False)
class Standby:
    ask: Acquire
    leave: Release  # for when it has run
    soon: asyncio.Future[bool]  # cancelled: it waits here no longer

    def answer(self, *, granted: bool) -> None:
        if not self.soon.done():
            self.soon.set_result(granted)


class Standbys:
    """Of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[Standby]] = {}
        self._inside: Counter[Key] = Counter()  # runs of ours that hold a place
        self._quick: set[Key] = set()  # the last run that ended here was short

    def entered(self, leave: Release) -> None:
        self._inside.update(ticket.document for ticket in limits_of(leave))

    def left(self, leave: Release, lasted: float) -> None:
        if len(self._quick) > MOST_KNOWN:
            self._quick.clear()
        for ticket in limits_of(leave):
            (self._quick.add if lasted < QUICK else self._quick.discard)(ticket.document)
            self._inside[ticket.document] -= 1
            if self._inside[ticket.document] <= 0:
                del self._inside[ticket.document]

    def wait(self, obstacle: Ticket, ask: Acquire, leave: Release) -> asyncio.Future[bool] | None:
        """None: it is not worth it, or there are enough."""
        if not isinstance(obstacle.gate.limit, Limit) or not self.lacking(obstacle.document):
            return None
        one = Standby(ask, leave, asyncio.get_running_loop().create_future())
        others = (other for other in self._waiting.get(obstacle.document, ()) if not other.soon.done())
        self._waiting[obstacle.document] = deque([*others, one])  # a run may be long, and many go away meanwhile
        return one.soon

    def lacking(self, key: Key) -> int:
        """How many more could wait here."""
        if key not in self._quick or not self._inside[key]:
            return 0
        return max(0, MOST - sum(not one.soon.done() for one in self._waiting.get(key, ())))

    def heirs(self, leaves: Iterable[Release]) -> list[Standby]:
        """For each place that becomes free the one that has waited longest here."""
        found = (self._next(ticket.document) for leave in leaves for ticket in limits_of(leave))
        return [one for one in found if one is not None]

    def dismiss(self, leaves: Iterable[Release]) -> None:
        """Those that wait for a place of which we hold none any more."""
        for key in {ticket.document for leave in leaves for ticket in limits_of(leave)} - self._inside.keys():
            while (one := self._next(key)) is not None:
                one.answer(granted=False)

    def _next(self, key: Key) -> Standby | None:
        waiting = self._waiting.get(key)
        while waiting:
            if not (one := waiting.popleft()).soon.done():
                return one
        self._waiting.pop(key, None)
        return None


def limits_of(leave: Release) -> list[Ticket]:
    return [ticket for ticket in leave.tickets if isinstance(ticket.gate.limit, Limit)]
