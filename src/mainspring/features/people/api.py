"""`app.people`: create, change, delete and find people. A person and all their plans are one write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice, tee
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.errors import ConfigurationError, InvalidPerson, PersonNotFound, StoreBusy
from mainspring.features.people import kinds, ledger
from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import Person, is_id
from mainspring.features.people.plan import Plan, collection_of, ended, planned
from mainspring.features.people.rows import Problem, Report, Row, read_rows
from mainspring.features.people.search import PEOPLE, Found, Search, email_writes
from mainspring.features.schedules.rules import PACKAGED
from mainspring.services import whoami
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Note, Write
from mainspring.stores.protocol import By, Filter, Store
from mainspring.tuning import tuned

if TYPE_CHECKING:
    from os import PathLike

    from mainspring.app import Mainspring

COLLECTION = PEOPLE
MAX_TRIES = 20  # of a change while other processes change the same person
CHUNK = 1024  # people per write; SQLite writes a power of two of them in the fewest statements
PAGE = 500
MAX_SCANNED = 10_000  # people per page of a search

Change = Callable[[Person | None], Person | None]  # from the stored person to the new one; None: no such person
Changes = Sequence[tuple[str, Change]]  # by the person's id
Candidate = tuple[str, Person | InvalidPerson | None]


class Became(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Stored:
    """A person as read from the store."""

    person: Person | InvalidPerson | None  # invalid: only newer versions can read it
    version: str
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of the document that only newer versions know

    @classmethod
    def of(cls, document: Document) -> Stored:
        try:
            person, others = Person.from_json(document.key.id, document.data)
        except InvalidPerson as error:
            return cls(error, document.version)
        return cls(person, document.version, others)


NO_PERSON = Stored(None, ABSENT)


class PendingChunk(NamedTuple):
    """A chunk of changes that is being written, and its answers."""

    ids: set[str]
    answers: asyncio.Task[list[Became | InvalidPerson]]


@dataclass(slots=True)
class WantedChange:
    """The result of a change to a person as read from the store."""

    id: str
    known: Stored
    new: Person | InvalidPerson | None
    changes_something: bool = field(init=False)
    kinds: set[str] = field(init=False)  # of all occasions before and after, if something changes

    def __post_init__(self) -> None:
        self.changes_something = not isinstance(self.new, InvalidPerson) and self.new != self.known.person
        both = (self.known.person, self.new) if self.changes_something else ()
        self.kinds = {occasion.kind for person in both if isinstance(person, Person) for occasion in person.occasions}

    @classmethod
    def of(cls, id: str, change: Change, known: Stored) -> WantedChange:
        if isinstance(known.person, InvalidPerson):
            return cls(id, known, known.person)
        try:
            return cls(id, known, change(known.person))
        except InvalidPerson as error:
            return cls(id, known, error)

    @property
    def became(self) -> Became | InvalidPerson:
        if isinstance(self.new, InvalidPerson):
            return self.new
        if not self.changes_something:
            return Became.UNCHANGED
        if self.new is None:
            return Became.DELETED
        return Became.CREATED if self.known.person is None else Became.UPDATED


class People:
    """The people of an application. A change of zone, date or send time moves the plans in the same write."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._noted: tuple[Store | None, set[str]] = (None, set())

    # -- changing -------------------------------------------------------------------------------------

    async def put(self, person: Person) -> Person:
        """Create or replace a person."""
        await self.put_many([person])
        return person

    async def put_many(self, people: Iterable[Person]) -> list[Became]:
        """Create or replace many people, in chunks. If this is interrupted, the people written so far stay."""
        changes = ((person.id, _becomes(person)) for person in people)
        async with aclosing(self._apply_all(changes)) as chunks:
            return [_raise_if_invalid(answer) async for answers in chunks for answer in answers]

    async def update(self, id: str, **changes: Any) -> Person:
        """Change only the given fields: `await app.people.update("p1", zone="America/Los_Angeles")`."""
        return await self._change(id, lambda person: person.with_changes(**changes))

    async def put_occasion(self, id: str, occasion: Occasion) -> Person:
        """Add an occasion, or replace the one of the same kind."""

        def change(person: Person) -> Person:
            others = [other for other in person.occasions if other.kind != occasion.kind]
            return person.with_changes(occasions=[*others, occasion])

        return await self._change(id, change)

    async def remove_occasion(self, id: str, kind: str) -> Person:
        """Remove an occasion. Nothing is sent for it any more; its waiting job is cancelled when it runs."""
        return await self._change(
            id, lambda person: person.with_changes(occasions=[one for one in person.occasions if one.kind != kind])
        )

    async def delete(self, id: str, *, reason: str = "", actor: str | None = None) -> None:
        """Delete a person and their plans, and cancel their waiting jobs.

        If this process dies before it has cancelled the jobs, they are cancelled when they run and find no person.
        """
        by = By(actor or whoami(), reason)
        (became,) = await self.apply([(id, lambda _known: None)], by=by)
        if _raise_if_invalid(became) is Became.UNCHANGED:
            raise _not_found(id)
        where = Filter(target_type="person", target_id=id)
        await self._app.jobs.cancel_where(where, reason=reason or "the person was deleted", actor=by.actor)

    async def _change(self, id: str, change: Callable[[Person], Person]) -> Person:
        changed: list[Person] = []

        def checked(known: Person | None) -> Person:
            if known is None:
                raise _not_found(id)
            changed.append(change(known))
            return changed[-1]

        (answer,) = await self.apply([(id, checked)])
        _raise_if_invalid(answer)
        return changed[-1]

    # -- writing --------------------------------------------------------------------------------------

    async def _apply_all(
        self, changes: Iterable[tuple[str, Change]], *, dry_run: bool = False
    ) -> AsyncGenerator[list[Became | InvalidPerson], None]:
        """Apply any number of changes, in chunks; yield the answers of each chunk.

        While the store writes a chunk, the next one is prepared. If both contain the same person, the next one waits,
        so that changes of one person take effect in the order given.
        """
        remaining, tuning, many = iter(changes), ExitStack(), False
        ahead: PendingChunk | None = None
        try:
            while chunk := list(islice(remaining, CHUNK)):
                if ahead is not None and not many:
                    many = True
                    tuning.enter_context(tuned())
                ids = {person_id for person_id, _ in chunk}
                if ahead is not None and not ids.isdisjoint(ahead.ids):
                    yield await ahead.answers
                    ahead = None
                before, ahead = ahead, PendingChunk(ids, asyncio.create_task(self.apply(chunk, dry_run=dry_run)))
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
    ) -> list[Became | InvalidPerson]:
        """Apply each change to the person as stored. If another process changes the person meanwhile, repeat it.

        Changes of one person take effect in the order given. The answer to an invalid change is its error. With `by`,
        deletions are recorded in the audit log.
        """
        answers: dict[int, Became | InvalidPerson] = {}
        remaining = list(range(len(changes)))
        for _ in range(MAX_TRIES + len(changes)):
            if not remaining:
                return [answers[number] for number in range(len(changes))]
            batch = _first_of_each(remaining, changes)
            wanted, plans = await self._want([changes[number] for number in batch])
            written = set(batch) if dry_run else {batch[place] for place in await self._write(wanted, plans, by)}
            answers |= {
                number: change.became for number, change in zip(batch, wanted, strict=True) if number in written
            }
            remaining = [number for number in remaining if number not in answers]
        msg = f"other processes changed person {changes[remaining[0]][0]!r} during each attempt to change it; try again"
        raise StoreBusy(msg)

    async def _want(self, changes: Changes) -> tuple[list[WantedChange], Mapping[Key, Plan]]:
        """Return the changes, and the plans that they may affect. An unreadable plan makes a change invalid."""
        known = await self._read([person_id for person_id, _ in changes])
        wanted = [WantedChange.of(person_id, change, known[person_id]) for person_id, change in changes]
        plans, problems = await self._plans(wanted)
        if problems:
            wanted = [WantedChange(change.id, change.known, problems.get(change.id, change.new)) for change in wanted]
        return wanted, plans

    async def _write(self, wanted: Sequence[WantedChange], plans: Mapping[Key, Plan], by: By | None) -> set[int]:
        """Write the changes; return the indexes of those that are done. Another process changed the other people."""
        await self._note({kind for change in wanted for kind in change.kinds})
        now = self._app.now()
        places = [place for place, change in enumerate(wanted) if change.changes_something]
        bundles = [_bundle(wanted[place], plans, now, by) for place in places]
        answers = await self._app.store.write(bundles) if bundles else []
        refused = {place for place, answer in zip(places, answers, strict=True) if answer is None}
        return set(range(len(wanted))) - refused

    async def _read(self, ids: Iterable[str]) -> dict[str, Stored]:
        wanted = list(ids)
        found = await self._app.store.documents([_key(person_id) for person_id in wanted if is_id(person_id)])
        there = {document.key.id: Stored.of(document) for document in found}
        return {person_id: there.get(person_id, NO_PERSON) for person_id in wanted}

    async def _plans(self, wanted: Sequence[WantedChange]) -> tuple[Mapping[Key, Plan], Mapping[str, InvalidPerson]]:
        """Return the plans of these people by key, and the errors of unreadable plans by person."""
        keys = [Key(collection_of(kind), "", change.id) for change in wanted for kind in change.kinds]
        plans: dict[Key, Plan] = {}
        problems: dict[str, InvalidPerson] = {}
        for document in await self._app.store.documents(keys) if keys else []:
            try:
                plans[document.key] = Plan.from_document(document)
            except InvalidPerson as error:
                problems[document.key.id] = error
        return plans, problems

    async def _note(self, found: set[str]) -> None:
        store, noted = self._noted
        if store is not self._app.store:  # a test has replaced the store
            self._noted = self._app.store, noted = self._app.store, set()
        for kind in found - noted:
            await kinds.note(self._app.store, kind)
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
        zone: str | None = None,
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
        zone = None if zone is None else PACKAGED.get(zone).key
        search = Search(email, name, zone, kind, attributes or {})
        people: list[Person] = []
        unreadable: dict[str, str] = {}
        for _ in range(MAX_SCANNED // PAGE):
            page = await self._candidates(search, cursor, limit if search.is_for_all else PAGE)
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
        if collection == COLLECTION:
            return await self._page(after, count)
        seen = None if after is None else (group, after)
        page = await self._app.store.browse(Listing(collection, group, seen, count))
        found = await self._read([document.key.id for document in page])
        return [(person_id, stored.person) for person_id, stored in found.items()]

    async def _page(self, after: str | None, count: int) -> Sequence[Candidate]:
        seen = None if after is None else ("", after)
        page = await self._app.store.browse(Listing(COLLECTION, "", seen, count))
        return [(document.key.id, Stored.of(document).person) for document in page]

    async def get_many(self, ids: Iterable[str]) -> Sequence[Person]:
        """Return the people with these ids, without those that do not exist or cannot be read."""
        return [person for person in (await self.look_up(ids)).values() if isinstance(person, Person)]

    async def look_up(self, ids: Iterable[str]) -> Mapping[str, Person | InvalidPerson | None]:
        """Return people by id. An InvalidPerson is returned, not raised, for one that only a newer version can read."""
        return {person_id: stored.person for person_id, stored in (await self._read(ids)).items()}

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
        while page := await self.list(limit=PAGE, after=seen):
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
        rows, again = tee(read_rows(path, columns or {}, self._app.occasions.kinds, report))
        changes = ((row.id, row.change) for row in rows)
        async with aclosing(self._apply_all(changes, dry_run=dry_run)) as chunks:
            async for answers in chunks:
                done = list(islice(again, len(answers)))
                report.count(answers)
                report.problems += _problems(done, answers)
                on_progress(done[-1].line)
        report.problems.sort()
        return report


def _bundle(one: WantedChange, plans: Mapping[Key, Plan], now: datetime, by: By | None) -> Bundle:
    """Return the writes of one change. The person's version fences them all: each change writes the person too."""
    person = one.new if isinstance(one.new, Person) else None
    data = None if person is None else person.to_json(one.known.others)
    known_as = one.known.person if isinstance(one.known.person, Person) else None
    writes = [Write(_key(one.id), data, expected=one.known.version)]
    writes += email_writes(one.id, known_as, person)
    for kind in sorted(one.kinds):
        known = plans.get(Key(collection_of(kind), "", one.id)) if plans else None
        after = _plan_after(known, person, kind, now)
        if after is not None and after is not known:
            writes.append(after.write(now))
            writes += [entry.write(one.id) for entry in ledger.passed_over(known, after, now)]
    return Bundle(tuple(writes), note=_note(one, by))


def _note(one: WantedChange, by: By | None) -> Note | None:
    """Return the audit note of a deletion. It has only the id, so that no name or address stays in the log."""
    if by is None or one.became is not Became.DELETED:
        return None
    return Note(by, "person.delete", {"person": one.id})


def _plan_after(known: Plan | None, person: Person | None, kind: str, now: datetime) -> Plan | None:
    occasion = None if person is None else person.occasion(kind)
    if person is not None and occasion is not None:
        return planned(known, person, occasion, now)
    return known if known is None or known.gone else ended(known)


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it has ended, and wait for it. Its error is ignored, as another one is being raised."""
    task.cancel()
    await asyncio.wait([task])
    task.cancelled() or task.exception()


def _problems(rows: Iterable[Row], answers: Iterable[Became | InvalidPerson]) -> Iterator[Problem]:
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, InvalidPerson):
            yield from (Problem(row.line, column, why) for column, why in answer.problems)


def _first_of_each(remaining: Sequence[int], changes: Changes) -> list[int]:
    """Return the first change of each person. The next change of a person is applied to the result of the first."""
    first: dict[str, int] = {}
    for number in remaining:
        first.setdefault(changes[number][0], number)
    return list(first.values())


def _becomes(person: Person) -> Change:
    if not isinstance(person, Person):
        msg = f"{person!r} is not a Person"
        raise ConfigurationError(msg)
    return lambda _known: person


def _raise_if_invalid(answer: Became | InvalidPerson) -> Became:
    if isinstance(answer, InvalidPerson):
        raise answer
    return answer


def _key(id: str) -> Key:
    return Key(COLLECTION, "", id)


def _not_found(id: str) -> PersonNotFound:
    return PersonNotFound(f"there is no person {id!r}")
