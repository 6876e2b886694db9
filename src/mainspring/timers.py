"""Runs the timers of all features: finds the documents that are due, and lets their timers fire them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.clock import SKEW, Millis
from mainspring.errors import SystemHalted
from mainspring.feature import DUE_PAGE_SIZE, Features, Timer
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document, Listing, Write

log = get_log("mainspring.timers")

TURN_SECONDS = 0.1  # how long a timer may fire while other timers wait for their turn
HALTED_RETRY: Millis = 5_000  # until the next try, while the system is halted and accepts no new jobs
LOOK_AGAIN: Millis = 1_000  # until the next look, if the clock went back during this one
NEWER_FIRST: Millis = 20_000  # how long documents that this version cannot read are left to newer workers
UNREADABLE_DELAY: Millis = 60_000  # if no such worker has fired them by then, they are put off by this


async def leave_to_newer(
    services: Services, documents: Sequence[Document], now: Millis, page_size: int = DUE_PAGE_SIZE
) -> Millis | None:
    """Leave documents that this version cannot read to newer workers; return when to check whether one has fired them.

    If no newer worker seems to exist, put them off. Put off a whole page of them, too: others would wait behind it.
    """
    if not documents:
        return None
    chances = {document.key: (document.due_at or now) + NEWER_FIRST for document in documents}
    over = [document for document in documents if chances[document.key] <= now or len(documents) == page_size]
    writes = [Write(each.key, each.data, expected=each.version, due_at=now + UNREADABLE_DELAY) for each in over]
    if writes:
        await services.store.write([Bundle((write,)) for write in writes])
    return min((chances[document.key] for document in documents if document not in over), default=None)


async def fire_planned(services: Services, timer: Timer) -> None:
    """Fire everything that is planned for later, if that does no harm: a wrong clock may have planned it far ahead."""
    after = None
    while page := await services.store.browse(Listing(timer.collection, None, after, DUE_PAGE_SIZE)):
        after = page[-1].key[1:]
        if planned := [document for document in page if document.due_at is not None]:
            await timer.fire(planned, services.store.clock.now())


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one look at what is due."""

    fired: bool  # there may be more that is due now
    next_at: Millis | None  # when to look again, unless something fired
    full: bool = False  # a whole page was due


class Timers:
    """All timers of an application."""

    def __init__(self, services: Services, features: Features) -> None:
        self._services = services
        self._features = features
        self._refused = False

    def _timers(self, *, schedules: bool = True) -> list[Timer]:
        """Return all timers; without `schedules`, leave schedules and occasions to other workers."""
        every = [timer for feature in self._features.all for timer in feature.timers]
        return every if schedules else [timer for timer in every if not timer.is_schedule]

    async def refresh(self, *, schedules: bool = True) -> None:
        for timer in self._timers(schedules=schedules):
            await timer.refresh()

    async def recover(self) -> None:
        for timer in self._timers():
            await timer.recover()

    async def clock_went_back(self, by: Millis) -> None:
        for feature in self._features.all:
            await feature.clock_went_back(by)

    async def run_due(self, *, schedules: bool = True) -> Millis | None:
        """Fire everything that is due; return when the next document is due, if there is one.

        The timers take turns, so that a million birthdays do not hold up a schedule. A timer that had nothing to do is
        skipped for one turn, as it was asked a moment ago, but never for two in a row.
        """
        moments: dict[str, Millis | None] = {}
        turn = timers = self._timers(schedules=schedules)
        while True:
            steps = [(timer, await self._take_turn(timer)) for timer in turn]
            moments |= {timer.collection: step.next_at for timer, step in steps}
            busy = [timer for timer, step in steps if step.fired]
            if not busy:
                return min((moment for moment in moments.values() if moment is not None), default=None)
            turn = busy if turn is timers else timers

    async def _take_turn(self, timer: Timer) -> Step:
        """Fire one page of due documents after another, as long as the turn lasts and the pages are full."""
        until = time.monotonic() + TURN_SECONDS
        while True:
            step = await self._step(timer)
            if not (step.fired and step.full) or time.monotonic() >= until:
                return step

    async def _step(self, timer: Timer) -> Step:
        due = await self._services.store.due(timer.collection, timer.page_size)
        if not due.documents:
            return Step(fired=False, next_at=due.next_at)
        if due.now > self._services.store.clock.now() + SKEW:  # the clock went back meanwhile: perhaps nothing is due
            return Step(fired=False, next_at=self._services.store.clock.now() + LOOK_AGAIN)
        try:
            again = await timer.fire(due.documents, due.now)
        except SystemHalted as error:
            if not self._refused:
                log.warning("timers_wait", collection=timer.collection, reason=str(error))
            self._refused = True
            return Step(fired=False, next_at=due.now + HALTED_RETRY)
        self._refused = False
        next_at = again if due.next_at is None else min(again or due.next_at, due.next_at)
        return Step(fired=again is None, full=len(due.documents) == timer.page_size, next_at=next_at)
