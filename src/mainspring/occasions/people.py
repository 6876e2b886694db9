"""People: `app.people`. A person and the plans of all their occasions are written together, or not at all."""

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
from mainspring.jobs import whoami
from mainspring.occasions import kinds, ledger
from mainspring.occasions.occasion import Occasion
from mainspring.occasions.person import Person, is_id
from mainspring.occasions.plan import Plan, collection_of, ended, planned
from mainspring.occasions.rows import Problem, Report, Row, read_rows
from mainspring.occasions.search import PEOPLE, Found, Search, email_writes
from mainspring.schedule import PACKAGED
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Note, Write
from mainspring.stores.protocol import By, Filter, Store
from mainspring.tuning import tuned

if TYPE_CHECKING:
    from os import PathLike

    from mainspring.app import Mainspring

COLLECTION = PEOPLE
TRIES = 20  # of a change that others were quicker with
CHUNK = 1024  # people per write; SQLite writes a power of two of them in the fewest statements
PAGE = 500
LOOKED_AT = 10_000  # people, for a page of a search

Change = Callable[[Person | None], Person | None]  # from what is known to what shall be; None: nobody
Changes = Sequence[tuple[str, Change]]  # by the person's id
Candidate = tuple[str, Person | InvalidPerson | None]


class Became(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Stored:
    person: Person | InvalidPerson | None  # invalid: written by a newer version, and only such ones can read it
    version: str
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of the document that only newer versions know

    @classmethod
    def of(cls, document: Document) -> Stored:
        try:
            person, others = Person.from_json(document.key.id, document.data)
        except InvalidPerson as error:
            return cls(error, document.version)
        return cls(person, document.version, others)


NOBODY = Stored(None, ABSENT)


class Ahead(NamedTuple):
    """A chunk of changes that is being written."""

    ids: set[str]
    answers: asyncio.Task[list[Became | InvalidPerson]]


@dataclass(slots=True)
class Wanted:
    """What a change makes of a person as read."""

    id: str
    known: Stored
    new: Person | InvalidPerson | None
    changes_something: bool = field(init=False)
    kinds: set[str] = field(init=False)  # of the occasions before and after, if something changes

    def __post_init__(self) -> None:
        self.changes_something = not isinstance(self.new, InvalidPerson) and self.new != self.known.person
        both = (self.known.person, self.new) if self.changes_something else ()
        self.kinds = {one.kind for person in both if isinstance(person, Person) for one in person.occasions}

    @classmethod
    def of(cls, id: str, change: Change, known: Stored) -> Wanted:
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
    """Who there is. A change of zone, date or send time moves what is planned, in the same write."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._noted: tuple[Store | None, set[str]] = (None, set())

    # -- changing -------------------------------------------------------------------------------------

    async def put(self, person: Person) -> Person:
        """Make a person, or replace what is known of them."""
        await self.put_many([person])
        return person

    async def put_many(self, people: Iterable[Person]) -> list[Became]:
        """Each of them whole, in writes of hundreds. If it is interrupted, those that were written stay."""
        changes = ((person.id, _becomes(person)) for person in people)
        async with aclosing(self._apply_all(changes)) as chunks:
            return [_good(answer) async for answers in chunks for answer in answers]

    async def update(self, id: str, **changes: Any) -> Person:
        """`await app.people.update("p1", zone="America/Los_Angeles")`: the fields given, and no others."""
        return await self._change(id, lambda person: person.with_changes(**changes))

    async def put_occasion(self, id: str, occasion: Occasion) -> Person:
        """Add an occasion, or replace the one of the same kind."""

        def change(person: Person) -> Person:
            others = [one for one in person.occasions if one.kind != occasion.kind]
            return person.with_changes(occasions=[*others, occasion])

        return await self._change(id, change)

    async def remove_occasion(self, id: str, kind: str) -> Person:
        """Nothing is sent for it any more; a job that waits ends as cancelled."""
        return await self._change(
            id, lambda person: person.with_changes(occasions=[one for one in person.occasions if one.kind != kind])
        )

    async def delete(self, id: str, *, reason: str = "", actor: str | None = None) -> None:
        """Nothing is sent any more: plans go with the person, and jobs that wait are cancelled.

        Whoever dies in between leaves jobs that find nobody, and end as cancelled too.
        """
        who = actor or whoami()
        (became,) = await self.apply([(id, lambda _known: None)], by=By(who, reason))
        if _good(became) is Became.UNCHANGED:
            raise _not_found(id)
        where = Filter(target_type="person", target_id=id)
        await self._app.jobs.cancel_where(where, reason=reason or "the person was deleted", actor=who)

    async def _change(self, id: str, change: Callable[[Person], Person]) -> Person:
        changed: list[Person] = []

        def checked(known: Person | None) -> Person:
            if known is None:
                raise _not_found(id)
            changed.append(change(known))
            return changed[-1]

        (answer,) = await self.apply([(id, checked)])
        _good(answer)
        return changed[-1]

    # -- the one write --------------------------------------------------------------------------------

    async def _apply_all(
        self, changes: Iterable[tuple[str, Change]], *, dry_run: bool = False
    ) -> AsyncGenerator[list[Became | InvalidPerson], None]:
        """Any number of changes, in chunks; yield the answers of each chunk.

        While the store writes a chunk, the next one is prepared, unless both have a person in common: changes of one
        person take effect in the order given.
        """
        left, tuning, many = iter(changes), ExitStack(), False
        ahead: Ahead | None = None
        try:
            while chunk := list(islice(left, CHUNK)):
                if ahead is not None and not many:
                    many = True
                    tuning.enter_context(tuned())
                ids = {who for who, _ in chunk}
                if ahead is not None and not ids.isdisjoint(ahead.ids):
                    yield await ahead.answers
                    ahead = None
                before, ahead = ahead, Ahead(ids, asyncio.create_task(self.apply(chunk, dry_run=dry_run)))
                if before is not None:
                    yield await before.answers
            if ahead is not None:
                yield await ahead.answers
        except Exception:
            if ahead is not None:  # what came before the error is written
                await asyncio.wait([ahead.answers])
            raise
        finally:
            tuning.close()
            if ahead is not None:
                await _stop(ahead.answers)

    async def apply(
        self, changes: Changes, *, dry_run: bool = False, by: By | None = None
    ) -> list[Became | InvalidPerson]:
        """Each change on what is known when it is written: if others were quicker, it is made anew.

        Changes of one person take effect in the order given. One that cannot be is answered with the error. Deletions
        by somebody are noted in the audit log.
        """
        answers: dict[int, Became | InvalidPerson] = {}
        left = list(range(len(changes)))
        for _ in range(TRIES + len(changes)):
            if not left:
                return [answers[number] for number in range(len(changes))]
            batch = _first_of_each(left, changes)
            wanted, plans = await self._want([changes[number] for number in batch])
            written = set(batch) if dry_run else {batch[place] for place in await self._write(wanted, plans, by)}
            answers |= {number: one.became for number, one in zip(batch, wanted, strict=True) if number in written}
            left = [number for number in left if number not in answers]
        msg = f"others changed person {changes[left[0]][0]!r} again and again while this tried to; try again"
        raise StoreBusy(msg)

    async def _want(self, changes: Changes) -> tuple[list[Wanted], Mapping[Key, Plan]]:
        """And the plans that may have to move. Who has one that cannot be read here is left to newer versions."""
        known = await self._read([who for who, _ in changes])
        wanted = [Wanted.of(who, change, known[who]) for who, change in changes]
        plans, problems = await self._plans(wanted)
        if problems:
            wanted = [Wanted(one.id, one.known, problems.get(one.id, one.new)) for one in wanted]
        return wanted, plans

    async def _write(self, wanted: Sequence[Wanted], plans: Mapping[Key, Plan], by: By | None) -> set[int]:
        """The places of those that are done; of the others, somebody was quicker."""
        await self._note({kind for one in wanted for kind in one.kinds})
        now = self._app.now()
        places = [place for place, one in enumerate(wanted) if one.changes_something]
        bundles = [_bundle(wanted[place], plans, now, by) for place in places]
        answers = await self._app.store.write(bundles) if bundles else []
        refused = {place for place, answer in zip(places, answers, strict=True) if answer is None}
        return set(range(len(wanted))) - refused

    async def _read(self, ids: Iterable[str]) -> dict[str, Stored]:
        wanted = list(ids)
        found = await self._app.store.documents([_key(who) for who in wanted if is_id(who)])
        there = {one.key.id: Stored.of(one) for one in found}
        return {who: there.get(who, NOBODY) for who in wanted}

    async def _plans(self, wanted: Sequence[Wanted]) -> tuple[Mapping[Key, Plan], Mapping[str, InvalidPerson]]:
        """And, by person, what is wrong with those that cannot be read."""
        keys = [Key(collection_of(kind), "", one.id) for one in wanted for kind in one.kinds]
        plans: dict[Key, Plan] = {}
        problems: dict[str, InvalidPerson] = {}
        for one in await self._app.store.documents(keys) if keys else []:
            try:
                plans[one.key] = Plan.from_document(one)
            except InvalidPerson as error:
                problems[one.key.id] = error
        return plans, problems

    async def _note(self, found: set[str]) -> None:
        store, noted = self._noted
        if store is not self._app.store:  # tests put another in its place
            self._noted = self._app.store, noted = self._app.store, set()
        for kind in found - noted:
            await kinds.note(self._app.store, kind)
            noted.add(kind)

    # -- looking --------------------------------------------------------------------------------------

    async def get(self, id: str) -> Person:
        found = await self.get_or_none(id)
        if found is None:
            raise _not_found(id)
        return found

    async def get_or_none(self, id: str) -> Person | None:
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
        """Who fits all that is given, by id: `find(name="an", attributes={"team": "blue"})`. Case does not matter.

        By e-mail address, or by the kind of an occasion, this looks at those who have it. Else it looks at everybody,
        up to 10,000 people per page: such a page may hold few or none although there are more. Go on while there is a
        cursor. Whoever only a newer version can read is passed over; `Found.unreadable` names them.
        """
        zone = None if zone is None else PACKAGED.get(zone).key
        search = Search(email, name, zone, kind, attributes or {})
        people: list[Person] = []
        unreadable: dict[str, str] = {}
        for _ in range(LOOKED_AT // PAGE):
            page = await self._candidates(search, cursor, limit if search.is_for_all else PAGE)
            for who, person in page:
                if isinstance(person, InvalidPerson):
                    unreadable[who] = str(person)
                elif person is not None and search.fits(person):
                    people.append(person)
                if len(people) == limit:
                    return Found(people, who, unreadable)
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
        return [(who, stored.person) for who, stored in (await self._read([one.key.id for one in page])).items()]

    async def _page(self, after: str | None, count: int) -> Sequence[Candidate]:
        seen = None if after is None else ("", after)
        page = await self._app.store.browse(Listing(COLLECTION, "", seen, count))
        return [(one.key.id, Stored.of(one).person) for one in page]

    async def get_many(self, ids: Iterable[str]) -> Sequence[Person]:
        """Those of them that there are."""
        return [one for one in (await self.look_up(ids)).values() if isinstance(one, Person)]

    async def look_up(self, ids: Iterable[str]) -> Mapping[str, Person | InvalidPerson | None]:
        """By id. An InvalidPerson, which is returned and not raised, is one that only a newer version can read."""
        return {who: stored.person for who, stored in (await self._read(ids)).items()}

    async def list(self, *, limit: int = 100, after: str | None = None) -> list[Person]:
        """In the order of their ids, those after that one. Whoever only a newer version can read is left out."""
        people: list[Person] = []
        while len(people) < limit and (page := await self._page(after, limit - len(people))):
            people += [person for _, person in page if isinstance(person, Person)]
            after = page[-1][0]
        return people

    async def all(self, where: Callable[[Person], bool] = lambda _person: True) -> AsyncIterator[Person]:
        """One by one. This reads every person, a page at a time."""
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
        """Put the people of a CSV file; docs/occasions.md says which columns there are, and `columns` renames them.

        Rows that cannot be are reported, and the others imported. Importing a file again changes what is different.
        `on_progress` hears how many lines of the file are dealt with.
        """
        report = Report()
        rows, again = tee(read_rows(path, columns or {}, self._app.occasions.kinds, report))
        changes = ((row.id, row.change) for row in rows)
        async with aclosing(self._apply_all(changes, dry_run=dry_run)) as chunks:
            async for answers in chunks:
                dealt_with = list(islice(again, len(answers)))
                report.count(answers)
                report.problems += _problems(dealt_with, answers)
                on_progress(dealt_with[-1].line)
        report.problems.sort()
        return report


def _bundle(one: Wanted, plans: Mapping[Key, Plan], now: datetime, by: By | None) -> Bundle:
    """The person's version guards them all: whoever adds or removes an occasion writes the person too."""
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


def _note(one: Wanted, by: By | None) -> Note | None:
    """By the id alone: who asks to be forgotten does not stay in the log with name and address."""
    if by is None or one.became is not Became.DELETED:
        return None
    return Note(by, "person.delete", {"person": one.id})


def _plan_after(known: Plan | None, person: Person | None, kind: str, now: datetime) -> Plan | None:
    occasion = None if person is None else person.occasion(kind)
    if person is not None and occasion is not None:
        return planned(known, person, occasion, now)
    return known if known is None or known.gone else ended(known)


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it has ended, and wait for its end. Nobody hears of its error: another came before."""
    task.cancel()
    await asyncio.wait([task])
    task.cancelled() or task.exception()


def _problems(rows: Iterable[Row], answers: Iterable[Became | InvalidPerson]) -> Iterator[Problem]:
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, InvalidPerson):
            yield from (Problem(row.line, column, why) for column, why in answer.problems)


def _first_of_each(left: Sequence[int], changes: Changes) -> list[int]:
    """Of several changes of one person, the first: the next one is of what that has made."""
    first: dict[str, int] = {}
    for number in left:
        first.setdefault(changes[number][0], number)
    return list(first.values())


def _becomes(person: Person) -> Change:
    if not isinstance(person, Person):
        msg = f"{person!r} is no Person"
        raise ConfigurationError(msg)
    return lambda _known: person


def _good(answer: Became | InvalidPerson) -> Became:
    if isinstance(answer, InvalidPerson):
        raise answer
    return answer


def _key(id: str) -> Key:
    return Key(COLLECTION, "", id)


def _not_found(id: str) -> PersonNotFound:
    return PersonNotFound(f"there is no person {id!r}")
