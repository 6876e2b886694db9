"""Checks that each person has a plan for each occasion and an entry in the list of their e-mail address.

A person, plans and entry are one write, so they can be separated only by other means, such as an interrupted copy or a
manual edit. What is missing is restored in a write that is fenced by the person's version, so a concurrent change comes
either before or after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from mainspring.features.people.firing import OCCASIONS, OccasionEntry
from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import Person
from mainspring.features.people.plan import OccasionPlan, Times, collection_of, planned
from mainspring.features.people.storage import EMAILS, PEOPLE, StoredPerson, email_key, note_kind, person_key
from mainspring.features.schedules.firing import Became
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.paging import pages

LEDGER_ENTRIES_READ = 100  # newest entries of a person's ledger, to find what was sent


@dataclass(slots=True)
class Lack:
    """Counts of what is missing for the people that were checked."""

    people: int = 0  # checked
    unlisted: int = 0  # people without an entry in the list of their e-mail address
    unplanned: int = 0  # occasions without a plan
    strays: int = 0  # list entries of people who do not have that address; only `mend` looks for them

    def __bool__(self) -> bool:
        return bool(self.unlisted or self.unplanned or self.strays)


@dataclass(frozen=True, slots=True)
class PersonLack:
    """A person and what is missing for them."""

    document: Document
    person: Person
    email: Key | None
    occasions: Sequence[Occasion]

    @property
    def plans(self) -> list[Key]:
        return [Key(collection_of(occasion.kind), "", self.person.id) for occasion in self.occasions]

    def without(self, there: Collection[Key]) -> PersonLack:
        unplanned = [occasion for occasion, plan in zip(self.occasions, self.plans, strict=True) if plan not in there]
        return replace(self, email=None if self.email in there else self.email, occasions=unplanned)

    def __bool__(self) -> bool:
        return self.email is not None or bool(self.occasions)


async def look(services: Services, most: int) -> Lack:
    """Check up to about `most` people, in the order of their ids; return what is missing."""
    lack = Lack()
    async for page in pages(services.store, PEOPLE):
        _count(lack, page, await _lacking(services, page))
        if lack.people >= most:
            break
    return lack


async def mend(services: Services) -> Lack:
    """Restore what is missing for all people, and remove stray list entries; return what was wrong."""
    lack = Lack()
    async for page in pages(services.store, PEOPLE):
        found = await _lacking(services, page)
        _count(lack, page, found)
        await _put_back(services, found)
    async for page in pages(services.store, EMAILS, None):
        strays = await _strays(services, page)
        lack.strays += len(strays)
        await services.store.write(
            [Bundle((Write(document.key, None, expected=document.version),)) for document in strays]
        )
    return lack


def _count(lack: Lack, page: Sequence[Document], found: Iterable[PersonLack]) -> None:
    lack.people += len(page)
    for missing in found:
        lack.unlisted += missing.email is not None
        lack.unplanned += len(missing.occasions)


# -- what is missing ---------------------------------------------------------------------------------------


async def _lacking(services: Services, page: Sequence[Document]) -> list[PersonLack]:
    """Return what is missing for the people on a page. People that only a newer version can read are left to it."""
    should = [
        _whole(document, person)
        for document in page
        if isinstance(person := StoredPerson.from_document(document).person, Person)
    ]
    wanted = [key for lack in should for key in (lack.email, *lack.plans) if key is not None]
    there = {document.key for document in await services.store.documents(wanted)} if wanted else set()
    return [lack for whole in should if (lack := whole.without(there))]


def _whole(document: Document, person: Person) -> PersonLack:
    return PersonLack(document, person, email_key(person.id, person), person.occasions)


async def _strays(services: Services, page: Sequence[Document]) -> list[Document]:
    people = {
        document.key.id: StoredPerson.from_document(document).person
        for document in await services.store.documents(_people_of(page))
    }
    return [
        document
        for document in page
        if (person := people.get(document.key.id)) is None
        or (isinstance(person, Person) and email_key(person.id, person) != document.key)
    ]


def _people_of(page: Sequence[Document]) -> list[Key]:
    return [person_key(person_id) for person_id in {document.key.id for document in page}]


# -- putting it back ---------------------------------------------------------------------------------------


async def _put_back(services: Services, found: Sequence[PersonLack]) -> None:
    for kind in {occasion.kind for lack in found for occasion in lack.occasions}:
        await note_kind(services.store, kind)
    bundles = [await _bundle(services, lack) for lack in found]
    if bundles:
        await services.store.write(bundles)


async def _bundle(services: Services, lack: PersonLack) -> Bundle:
    now, person = services.now(), lack.person
    writes = [Write(lack.document.key, lack.document.data, expected=lack.document.version)]
    writes += [Write(lack.email, "{}")] if lack.email is not None else []
    sent = await _sent(services, person.id) if lack.occasions else {}
    for occasion in lack.occasions:
        times = Times.of(person, occasion)
        before = OccasionPlan(person.id, occasion.kind, times, sent=sent.get(occasion.kind), gone=True)
        writes.append(planned(before, person, occasion, now).write(now))
    return Bundle(tuple(writes))


async def _sent(services: Services, person: str) -> dict[str, date]:
    """Return, by kind, the last date for which a message was sent, so that it is not sent again."""
    newest = await services.store.browse(OCCASIONS.page(person, LEDGER_ENTRIES_READ, None))
    entries = [OccasionEntry.from_document(document) for document in reversed(newest)]
    return {entry.kind: entry.on for entry in entries if entry.became is Became.FIRED}
