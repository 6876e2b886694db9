"""`app.people`: create, change, delete and find people. A person and all their plans are one write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from itertools import islice, tee
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from mainspring.errors import ConfigurationError, InvalidPerson, PersonNotFound, StoreBusy
from mainspring.features.delivery.options import LocalHours
from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import Person, PersonFields, is_id, quiet_hours
from mainspring.features.people.plan import OccasionPlan, collection_of
from mainspring.features.people.rows import Problem, Report, Row, read_rows
from mainspring.features.people.search import Found, Search
from mainspring.features.people.storage import (
    NO_PERSON,
    PEOPLE,
    Change,
    Changes,
    PersonChange,
    StoredPerson,
    WantedChange,
    bundle_of,
    first_of_each,
    note_kind,
    person_key,
)
from mainspring.features.schedules.rules import PACKAGED
from mainspring.services import Services, whoami
from mainspring.stores.documents import By, Key, Listing
from mainspring.stores.protocol import Filter, Store
from mainspring.tuning import tuned

if TYPE_CHECKING:
    from os import PathLike

MAX_TRIES = 20  # of a change while other processes change the same person
PEOPLE_PER_WRITE = 1024  # SQLite writes a power of two of them in the fewest statements
PEOPLE_PER_PAGE = 500
MAX_SCANNED = 10_000  # people per page of a search

CancelWhere = Callable[..., Awaitable[object]]  # see `app.jobs.cancel_where`
Candidate = tuple[str, Person | InvalidPerson | None]


class PendingWrite(NamedTuple):
    """A group of changes that is being written, and its answers."""

    ids: set[str]
    answers: asyncio.Task[list[PersonChange | InvalidPerson]]


class People:
    """The people of an application. A change of time zone, date or send time moves the plans in the same write."""

    def __init__(self, services: Services, cancel_where: CancelWhere, kinds: Callable[[], Sequence[str]]) -> None:
        """`kinds` returns the kinds of occasions that the application has handlers for."""
        self._services = services
        self._cancel_where = cancel_where
        self._kinds = kinds
        self._noted: tuple[Store | None, set[str]] = (None, set())

    # -- changing -------------------------------------------------------------------------------------

    async def put(self, person: Person) -> Person:
        """Create or replace a person. Return it as stored, with the times at which it was created and last changed."""
        return (await self.change(person.id, _becomes(person)))[0]

    async def put_many(self, people: Iterable[Person]) -> list[PersonChange]:
        """Create or replace many people, in groups. If this is interrupted, the people written so far stay."""
        changes = ((person.id, _becomes(person)) for person in people)
        async with aclosing(self._apply_all(changes)) as groups:
            return [_raise_if_invalid(answer) async for answers in groups for answer in answers]

    async def update(self, id: str, **changes: Unpack[PersonFields]) -> Person:
        """Change only the given fields: `await app.people.update("p1", tz="America/Los_Angeles")`."""
        return await self._change(id, lambda person: person.with_changes(**changes))

    async def put_occasion(self, id: str, occasion: Occasion) -> Person:
        """Add an occasion, or replace the one of the same kind."""
        return await self._change(
            id, lambda person: person.with_changes(occasions=[*person.occasions_besides(occasion.kind), occasion])
        )

    async def remove_occasion(self, id: str, kind: str) -> Person:
        """Remove an occasion. Nothing is sent for it any more; its waiting job is cancelled when it runs."""
        return await self._change(id, lambda person: person.with_changes(occasions=person.occasions_besides(kind)))

    async def delete(
        self,
        id: str,
        *,
        reason: str = "",
        actor: str | None = None,
        check: Callable[[Person | None], None] = lambda _known: None,
    ) -> None:
        """Delete a person and their plans, and cancel their waiting jobs.

        `check` gets the person as stored. If it raises an error, nothing is deleted.

        If this process dies before it has cancelled the jobs, they are cancelled when they run and find no person.
        """
        by = By(actor or whoami(), reason)
        (became,) = await self.apply([(id, check)], by=by)
        if _raise_if_invalid(became) is PersonChange.UNCHANGED:
            raise _not_found(id)
        where = Filter(target_type="person", target_id=id)
        await self._cancel_where(where, reason=reason or "the person was deleted", actor=by.actor)

    async def _change(self, id: str, change: Callable[[Person], Person]) -> Person:
        def checked(known: Person | None) -> Person:
            if known is None:
                raise _not_found(id)
            return change(known)

        return (await self.change(id, checked))[0]

    async def change(self, id: str, change: Callable[[Person | None], Person]) -> tuple[Person, PersonChange]:
        """Change a person as stored, or create it; return what is stored now, and what the change did.

        If another process changes the person at the same time, `change` is called again.
        """
        (wanted,) = await self._apply([(id, change)])
        became = _raise_if_invalid(wanted.became)
        assert wanted.stored is not None  # noqa: S101 - `change` returns a person
        return wanted.stored, became

    # -- writing --------------------------------------------------------------------------------------

    async def _apply_all(
        self, changes: Iterable[tuple[str, Change]], *, dry_run: bool = False
    ) -> AsyncGenerator[list[PersonChange | InvalidPerson], None]:
        """Apply any number of changes, in groups; yield the answers of each group.

        While the store writes a group, the next one is prepared. If both contain the same person, the next one waits,
        so that changes of one person take effect in the order given.
        """
        remaining, tuning, many = iter(changes), ExitStack(), False
        ahead: PendingWrite | None = None
        try:
            while group := list(islice(remaining, PEOPLE_PER_WRITE)):
                if ahead is not None and not many:
                    many = True
                    tuning.enter_context(tuned())
                ids = {person_id for person_id, _ in group}
                if ahead is not None and not ids.isdisjoint(ahead.ids):
                    yield await ahead.answers
                    ahead = None
                before, ahead = ahead, PendingWrite(ids, asyncio.create_task(self.apply(group, dry_run=dry_run)))
                if before is not None:
                    yield await before.answers
            if ahead is not None:
                yield await ahead.answers
        except Exception:
            if ahead is not None:  # finish writing what came before the error
                await asyncio.wait([ahead.answers])
            raise
        finally:
            tuning.close()
            if ahead is not None:
                await _stop(ahead.answers)

    async def apply(
        self, changes: Changes, *, dry_run: bool = False, by: By | None = None
    ) -> list[PersonChange | InvalidPerson]:
        """Apply each change to the person as stored. If another process changes the person meanwhile, repeat it.

        Changes of one person take effect in the order given. The answer to an invalid change is its error. With `by`,
        deletions are recorded in the audit log.
        """
        return [change.became for change in await self._apply(changes, dry_run=dry_run, by=by)]

    async def _apply(self, changes: Changes, *, dry_run: bool = False, by: By | None = None) -> list[WantedChange]:
        answers: dict[int, WantedChange] = {}
        remaining = list(range(len(changes)))
        for _ in range(MAX_TRIES + len(changes)):
            if not remaining:
                return [answers[number] for number in range(len(changes))]
            numbers = first_of_each(remaining, changes)
            wanted, plans = await self._want([changes[number] for number in numbers])
            written = set(numbers) if dry_run else {numbers[place] for place in await self._write(wanted, plans, by)}
            answers |= {number: change for number, change in zip(numbers, wanted, strict=True) if number in written}
            remaining = [number for number in remaining if number not in answers]
        msg = f"other processes changed person {changes[remaining[0]][0]!r} during each attempt to change it; try again"
        raise StoreBusy(msg)

    async def _want(self, changes: Changes) -> tuple[list[WantedChange], Mapping[Key, OccasionPlan]]:
        """Return the changes, and the plans that they may affect. An unreadable plan makes a change invalid."""
        known, now = await self._read([person_id for person_id, _ in changes]), self._services.now()
        wanted = [WantedChange.of(person_id, change, known[person_id], now) for person_id, change in changes]
        plans, problems = await self._plans(wanted)
        if problems:
            wanted = [
                WantedChange(change.id, change.known, problems.get(change.id, change.new), now) for change in wanted
            ]
        return wanted, plans

    async def _write(
        self, wanted: Sequence[WantedChange], plans: Mapping[Key, OccasionPlan], by: By | None
    ) -> set[int]:
        """Write the changes; return the indexes of those that are done. Another process changed the other people."""
        await self._note({kind for change in wanted for kind in change.kinds})
        places = [place for place, change in enumerate(wanted) if change.changes_something]
        bundles = [bundle_of(wanted[place], plans, by) for place in places]
        answers = await self._services.store.write(bundles) if bundles else []
        refused = {place for place, answer in zip(places, answers, strict=True) if answer is None}
        return set(range(len(wanted))) - refused

    async def _read(self, ids: Iterable[str]) -> dict[str, StoredPerson]:
        wanted = list(ids)
        found = await self._services.store.documents(
            [person_key(person_id) for person_id in wanted if is_id(person_id)]
        )
        there = {document.key.id: StoredPerson.from_document(document) for document in found}
        return {person_id: there.get(person_id, NO_PERSON) for person_id in wanted}

    async def _plans(
        self, wanted: Sequence[WantedChange]
    ) -> tuple[Mapping[Key, OccasionPlan], Mapping[str, InvalidPerson]]:
        """Return the plans of these people by key, and the errors of unreadable plans by person."""
        keys = [Key(collection_of(kind), "", change.id) for change in wanted for kind in change.kinds]
        plans: dict[Key, OccasionPlan] = {}
        problems: dict[str, InvalidPerson] = {}
        for document in await self._services.store.documents(keys) if keys else []:
            try:
                plans[document.key] = OccasionPlan.from_document(document)
            except InvalidPerson as error:
                problems[document.key.id] = error
        return plans, problems

    async def _note(self, found: set[str]) -> None:
        store, noted = self._noted
        if store is not self._services.store:  # a test has replaced the store
            self._noted = self._services.store, noted = self._services.store, set()
        for kind in found - noted:
            await note_kind(self._services.store, kind)
            noted.add(kind)

    # -- reading --------------------------------------------------------------------------------------

    async def get(self, id: str) -> Person:
        """Return a person. Raise PersonNotFound if there is none with this id."""
        found = await self.get_or_none(id)
        if found is None:
            raise _not_found(id)
        return found

    async def get_or_none(self, id: str) -> Person | None:
        """Return a person, or None. Raise InvalidPerson if only a newer version can read it."""
        found = (await self._read([id]))[id].person
        if isinstance(found, InvalidPerson):
            raise found
        return found

    async def find(
        self,
        *,
        email: str | None = None,
        name: str | None = None,
        tz: str | None = None,
        kind: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Found:
        """Return the people that match all filters, by id: `find(name="an", attributes={"team": "blue"})`.

        Case is ignored. A search by e-mail address or by the kind of an occasion reads only people who have it. Any
        other search reads everybody, up to 10,000 people per page, so a page may contain few or no people although
        there are more. Continue while there is a cursor. People that only a newer version can read are left out;
        `Found.unreadable` names them.
        """
        tz = None if tz is None else PACKAGED.get(tz).key
        search = Search(email, name, tz, kind, attributes or {})
        people: list[Person] = []
        unreadable: dict[str, str] = {}
        for _ in range(MAX_SCANNED // PEOPLE_PER_PAGE):
            page = await self._candidates(search, cursor, limit if search.is_for_all else PEOPLE_PER_PAGE)
            for person_id, person in page:
                if isinstance(person, InvalidPerson):
                    unreadable[person_id] = str(person)
                elif person is not None and search.fits(person):
                    people.append(person)
                if len(people) == limit:
                    return Found(people, person_id, unreadable)
            if not page:
                return Found(people, None, unreadable)
            cursor = page[-1][0]
        return Found(people, cursor, unreadable)

    async def _candidates(self, search: Search, after: str | None, count: int) -> Sequence[Candidate]:
        collection, group = search.along
        if collection == PEOPLE:
            return await self._page(after, count)
        seen = None if after is None else (group, after)
        page = await self._services.store.browse(Listing(collection, group, seen, count))
        found = await self._read([document.key.id for document in page])
        return [(person_id, stored.person) for person_id, stored in found.items()]

    async def _page(self, after: str | None, count: int) -> Sequence[Candidate]:
        seen = None if after is None else ("", after)
        page = await self._services.store.browse(Listing(PEOPLE, "", seen, count))
        return [(document.key.id, StoredPerson.from_document(document).person) for document in page]

    async def get_many(self, ids: Iterable[str]) -> Sequence[Person]:
        """Return the people with these ids, without those that do not exist or cannot be read."""
        return [person for person in (await self.look_up(ids)).values() if isinstance(person, Person)]

    async def look_up(self, ids: Iterable[str]) -> Mapping[str, Person | InvalidPerson | None]:
        """Return people by id. An InvalidPerson is returned, not raised, for one that only a newer version can read."""
        return {person_id: stored.person for person_id, stored in (await self._read(ids)).items()}

    async def hours(self, ids: Iterable[str]) -> dict[str, LocalHours | InvalidPerson]:
        """Return when people with quiet hours may get messages, by id. All other people are left out."""
        found: dict[str, LocalHours | InvalidPerson] = {}
        for person_id, person in (await self.look_up(ids)).items():
            if isinstance(person, InvalidPerson):
                found[person_id] = person
            elif person is not None and person.quiet is not None:
                found[person_id] = LocalHours(quiet_hours(person.quiet).others, PACKAGED.get(person.tz))
        return found

    async def list(self, *, limit: int = 100, after: str | None = None) -> list[Person]:
        """Return people in the order of their ids. Those that only a newer version can read are left out."""
        people: list[Person] = []
        while len(people) < limit and (page := await self._page(after, limit - len(people))):
            people += [person for _, person in page if isinstance(person, Person)]
            after = page[-1][0]
        return people

    async def all(self, where: Callable[[Person], bool] = lambda _person: True) -> AsyncIterator[Person]:
        """Yield the people for which `where` is true. This reads every person, a page at a time."""
        seen: str | None = None
        while page := await self.list(limit=PEOPLE_PER_PAGE, after=seen):
            for person in filter(where, page):
                yield person
            seen = page[-1].id

    # -- from files -----------------------------------------------------------------------------------

    async def import_csv(
        self,
        path: str | PathLike[str],
        *,
        columns: dict[str, str] | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _lines: None,
    ) -> Report:
        """Put the people of a CSV file. docs/occasions.md lists the columns; `columns` renames yours to them.

        Invalid rows are reported, and the others are imported. Importing a file again changes only what is different.
        `on_progress` is called with the number of the last line that is done.
        """
        report = Report()
        rows, again = tee(read_rows(path, columns or {}, self._kinds(), report))
        changes = ((row.id, row.change) for row in rows)
        async with aclosing(self._apply_all(changes, dry_run=dry_run)) as groups:
            async for answers in groups:
                done = list(islice(again, len(answers)))
                report.count(answers)
                report.problems += _problems(done, answers)
                on_progress(done[-1].line)
        report.problems.sort()
        return report


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it has ended, and wait for it. Its error is ignored, as another one is being raised."""
    task.cancel()
    await asyncio.wait([task])
    task.cancelled() or task.exception()


def _problems(rows: Iterable[Row], answers: Iterable[PersonChange | InvalidPerson]) -> Iterator[Problem]:
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, InvalidPerson):
            yield from (Problem(row.line, column, why) for column, why in answer.problems)


def _becomes(person: Person) -> Callable[[Person | None], Person]:
    if not isinstance(person, Person):
        msg = f"{person!r} is not a Person"
        raise ConfigurationError(msg)
    return lambda _known: person


def _raise_if_invalid(answer: PersonChange | InvalidPerson) -> PersonChange:
    if isinstance(answer, InvalidPerson):
        raise answer
    return answer


def _not_found(id: str) -> PersonNotFound:
    return PersonNotFound(f"there is no person {id!r}")
