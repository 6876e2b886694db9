"""`app.occasions`: the coming messages, and the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any

from mainspring.clock import Millis, duration, to_millis
from mainspring.errors import InvalidPerson
from mainspring.features.people.api import People
from mainspring.features.people.firing import OCCASIONS, OccasionEntry
from mainspring.features.people.plan import OccasionPlan, collection_of
from mainspring.features.people.storage import known_kinds
from mainspring.features.schedules.rules import PACKAGED
from mainspring.services import Services
from mainspring.stores.documents import Document, Key

WEEK = timedelta(days=7)

Place = tuple[Millis, str, str]
"""The place of a message in the list of all: when it is due, the person and the kind."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A message that will be sent."""

    person: str
    kind: str
    on: date  # the local date that it is for
    due: datetime  # when it will be sent, in UTC
    tz: str

    @property
    def place(self) -> Place:
        """Its place in the list of all messages."""
        return to_millis(self.due), self.person, self.kind

    @property
    def local(self) -> datetime:
        """Return `due` in the person's local time."""
        return self.due.astimezone(PACKAGED.get(self.tz).info)

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "on": self.on.isoformat(), "local": self.local.isoformat()}


@dataclass(frozen=True, slots=True)
class UpcomingPage:
    """Messages that will be sent, soonest first."""

    messages: Sequence[Upcoming]
    last: Place | None  # pass it as `after` to get the next page; None: this was the last


class Occasions:
    """What will be sent to whom, and what became of it: `app.occasions`."""

    def __init__(self, services: Services, people: People) -> None:
        self._services = services
        self._people = people

    async def upcoming(
        self, ahead: timedelta = WEEK, *, kind: str | None = None, limit: int = 100
    ) -> Sequence[Upcoming]:
        """Return what will be sent within `ahead`, soonest first, including what is overdue."""
        return (await self.page(ahead, kind=kind, limit=limit)).messages

    async def page(
        self, ahead: timedelta = WEEK, *, kind: str | None = None, limit: int = 100, after: Place | None = None
    ) -> UpcomingPage:
        """Return a page of what will be sent. Pass `last` of the page before as `after`.

        It reads from the soonest on, so a page takes the longer, the later it is.
        """
        wanted = [kind] if kind is not None else await known_kinds(self._services.store)
        size, complete, found = limit + 1, False, list[Upcoming]()
        while len(found) <= limit and not complete:
            before, complete = await self._soonest(wanted, ahead, size)
            found = [upcoming for upcoming in before if after is None or upcoming.place > after]
            size *= 2
        return UpcomingPage(found[:limit], found[limit - 1].place if len(found) > limit else None)

    async def _soonest(self, kinds: Sequence[str], ahead: timedelta, size: int) -> tuple[list[Upcoming], bool]:
        """Return the soonest messages in order, at least `size` of each kind, and whether these are all.

        Many messages may be due at the same time, and a store returns these in any order. If it has not returned all of
        them, they are left out.
        """
        found: list[Upcoming] = []
        horizon: Millis | None = None  # from there on, messages may be missing
        for name in kinds:
            due = await self._services.store.due(collection_of(name), size, ahead=duration(ahead))
            found += [_upcoming(plan) for plan in _readable(due.documents)]
            if len(due.documents) == size and (last := due.documents[-1].due_at) is not None:
                horizon = last if horizon is None else min(horizon, last)
        known = found if horizon is None else [each for each in found if to_millis(each.due) < horizon]
        return sorted(known, key=lambda upcoming: upcoming.place), horizon is None

    async def next(self, person: str) -> Sequence[Upcoming]:
        """Return the next message of each occasion of one person, soonest first."""
        found = await self._people.get(person)
        keys = [Key(collection_of(occasion.kind), "", person) for occasion in found.occasions]
        plans = _readable(await self._services.store.documents(keys))
        return sorted((_upcoming(plan) for plan in plans if plan.next is not None), key=lambda upcoming: upcoming.due)

    async def ledger(self, person: str, *, limit: int = 100, before: datetime | None = None) -> Sequence[OccasionEntry]:
        """Return what became of a person's occasions, newest first."""
        found = await self._services.store.browse(OCCASIONS.page(person, limit, before))
        return [OccasionEntry.from_document(document) for document in found]


def _readable(documents: Iterable[Document]) -> Iterator[OccasionPlan]:
    """Yield the plans that this version can read. Newer versions handle the others."""
    for document in documents:
        with suppress(InvalidPerson):
            yield OccasionPlan.from_document(document)


def _upcoming(plan: OccasionPlan) -> Upcoming:
    assert plan.next is not None  # noqa: S101 - a plan without one is never due
    return Upcoming(plan.person, plan.kind, plan.next.on, plan.next.due, plan.times.tz)
