"""Has everybody what belongs to them: a plan for each occasion, and a place in the list of their e-mail address?

All of that is written together, so only others can part it: a copy that was cut short, or somebody's hand. What is
missing is put back under the person's version, so that a change at the same time comes before it, or after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

from mainspring.occasions import kinds, ledger
from mainspring.occasions.ledger import Became, Entry
from mainspring.occasions.occasion import Occasion
from mainspring.occasions.people import Stored
from mainspring.occasions.person import Person
from mainspring.occasions.plan import Plan, collection_of, planned
from mainspring.occasions.search import EMAILS, PEOPLE, email_key
from mainspring.occasions.times import Times
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write

if TYPE_CHECKING:
    from mainspring.app import Mainspring

PAGE = 500
LINES = 100  # of a person's ledger, for what was sent


@dataclass(slots=True)
class Lack:
    """What is missing, of those who were looked at."""

    people: int = 0
    unlisted: int = 0  # who is not in the list of their address
    unplanned: int = 0  # occasions without a plan
    strays: int = 0  # entries of lists for people who do not have that address; only mending looks for them

    def __bool__(self) -> bool:
        return bool(self.unlisted or self.unplanned or self.strays)


@dataclass(frozen=True, slots=True)
class Lacking:
    """Somebody, and what they lack."""

    document: Document
    person: Person
    email: Key | None
    occasions: Sequence[Occasion]

    @property
    def plans(self) -> list[Key]:
        return [Key(collection_of(one.kind), "", self.person.id) for one in self.occasions]

    def without(self, there: Collection[Key]) -> Lacking:
        left = [one for one, plan in zip(self.occasions, self.plans, strict=True) if plan not in there]
        return replace(self, email=None if self.email in there else self.email, occasions=left)

    def __bool__(self) -> bool:
        return self.email is not None or bool(self.occasions)


async def look(app: Mainspring, most: int) -> Lack:
    """At so many people, by id."""
    lack = Lack()
    async for page in _pages(app, PEOPLE, ""):
        _count(lack, page, await _lacking(app, page))
        if lack.people >= most:
            break
    return lack


async def mend(app: Mainspring) -> Lack:
    """All people and all lists; what is told was missing before."""
    lack = Lack()
    async for page in _pages(app, PEOPLE, ""):
        found = await _lacking(app, page)
        _count(lack, page, found)
        await _put_back(app, found)
    async for page in _pages(app, EMAILS, None):
        strays = await _strays(app, page)
        lack.strays += len(strays)
        await app.store.write([Bundle((Write(one.key, None, expected=one.version),)) for one in strays])
    return lack


async def _pages(app: Mainspring, collection: str, group: str | None) -> AsyncIterator[Sequence[Document]]:
    seen: tuple[str, str] | None = None
    while page := await app.store.browse(Listing(collection, group, seen, PAGE)):
        yield page
        seen = page[-1].key.group, page[-1].key.id


def _count(lack: Lack, page: Sequence[Document], found: Iterable[Lacking]) -> None:
    lack.people += len(page)
    for one in found:
        lack.unlisted += one.email is not None
        lack.unplanned += len(one.occasions)


# -- what is missing ---------------------------------------------------------------------------------------


async def _lacking(app: Mainspring, page: Sequence[Document]) -> list[Lacking]:
    """Whom only a newer version can read is left to it."""
    should = [_whole(one, person) for one in page if isinstance(person := Stored.of(one).person, Person)]
    wanted = [key for one in should for key in (one.email, *one.plans) if key is not None]
    there = {one.key for one in await app.store.documents(wanted)} if wanted else set()
    return [lack for one in should if (lack := one.without(there))]


def _whole(document: Document, person: Person) -> Lacking:
    return Lacking(document, person, email_key(person.id, person), person.occasions)


async def _strays(app: Mainspring, page: Sequence[Document]) -> list[Document]:
    people = {one.key.id: Stored.of(one).person for one in await app.store.documents(_people_of(page))}
    return [
        one
        for one in page
        if (person := people.get(one.key.id)) is None
        or (isinstance(person, Person) and email_key(person.id, person) != one.key)
    ]


def _people_of(page: Sequence[Document]) -> list[Key]:
    return [Key(PEOPLE, "", who) for who in {one.key.id for one in page}]


# -- putting it back ---------------------------------------------------------------------------------------


async def _put_back(app: Mainspring, found: Sequence[Lacking]) -> None:
    for kind in {occasion.kind for one in found for occasion in one.occasions}:
        await kinds.note(app.store, kind)
    bundles = [await _bundle(app, one) for one in found]
    if bundles:
        await app.store.write(bundles)


async def _bundle(app: Mainspring, one: Lacking) -> Bundle:
    now = app.now()
    writes = [Write(one.document.key, one.document.data, expected=one.document.version)]
    writes += [Write(one.email, "{}")] if one.email is not None else []
    sent = await _sent(app, one.person.id) if one.occasions else {}
    for occasion in one.occasions:
        times = Times.of(one.person, occasion)
        before = Plan(one.person.id, occasion.kind, times, sent=sent.get(occasion.kind), gone=True)
        writes.append(planned(before, one.person, occasion, now).write(now))
    return Bundle(tuple(writes))


async def _sent(app: Mainspring, person: str) -> dict[str, date]:
    """By kind, the last date for which something was sent: it is not sent again."""
    newest = await app.store.browse(Listing(ledger.COLLECTION, person, None, LINES, backwards=True))
    entries = [Entry.from_document(line) for line in reversed(newest)]
    return {entry.kind: entry.on for entry in entries if entry.became is Became.SENT}
