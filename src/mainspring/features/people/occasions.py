"""`app.occasions`: the coming messages, and the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any

from mainspring.clock import duration
from mainspring.errors import InvalidPerson
from mainspring.features.people.api import People
from mainspring.features.people.firing import OCCASIONS, OccasionEntry
from mainspring.features.people.plan import OccasionPlan, collection_of
from mainspring.features.people.storage import known_kinds
from mainspring.features.schedules.rules import PACKAGED
from mainspring.services import Services
from mainspring.stores.documents import Document, Key

WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A message that will be sent."""

    person: str
    kind: str
    on: date  # the local date that it is for
    due: datetime  # when it will be sent, in UTC
    tz: str

    @property
    def local(self) -> datetime:
        """Return `due` in the person's local time."""
        return self.due.astimezone(PACKAGED.get(self.tz).info)

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "on": self.on.isoformat(), "local": self.local.isoformat()}


class Occasions:
    """What will be sent to whom, and what became of it: `app.occasions`."""

    def __init__(self, services: Services, people: People) -> None:
        self._services = services
        self._people = people

    async def upcoming(
        self, ahead: timedelta = WEEK, *, kind: str | None = None, limit: int = 100
    ) -> Sequence[Upcoming]:
        """Return what will be sent within `ahead`, soonest first, including what is overdue."""
        wanted = [kind] if kind is not None else await known_kinds(self._services.store)
        found: list[Upcoming] = []
        for name in wanted:
            due = await self._services.store.due(collection_of(name), limit, ahead=duration(ahead))
            found += [_upcoming(plan) for plan in _readable(due.documents)]
        return sorted(found, key=lambda upcoming: (upcoming.due, upcoming.person, upcoming.kind))[:limit]

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
