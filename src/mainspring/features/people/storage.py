"""The documents of people: the people, the lists by e-mail address, and the kinds of occasions that have plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from mainspring.errors import InvalidPerson
from mainspring.features.people.person import Person
from mainspring.features.schedules.rules import tzdata_version
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Store

PEOPLE = "people"
EMAILS = "people.email"
KINDS = "occasion_kinds"
MAX_KINDS = 1000  # that are read


# -- people ---------------------------------------------------------------------------------------------


def person_key(id: str) -> Key:
    return Key(PEOPLE, "", id)


@dataclass(frozen=True, slots=True)
class StoredPerson:
    """A person as read from the store."""

    person: Person | InvalidPerson | None  # invalid: only newer versions can read it
    version: str
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of the document that only newer versions know

    @classmethod
    def from_document(cls, document: Document) -> StoredPerson:
        try:
            person, others = Person.from_json(document.key.id, document.data)
        except InvalidPerson as error:
            return cls(error, document.version)
        return cls(person, document.version, others)


NO_PERSON = StoredPerson(None, ABSENT)


# -- lists by e-mail address ------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a text as it is compared: without case and surrounding spaces."""
    return text.casefold().strip()


def group_of(email: str) -> str:
    """Return a hash of an address: its length is fixed, and no address is left in a key."""
    return sha256(plain(email).encode()).hexdigest()[:32]


def email_writes(id: str, before: Person | None, after: Person | None) -> list[Write]:
    """Return the changes of the e-mail lists. Write them with the person, whose version fences them."""
    old, new = email_key(id, before), email_key(id, after)
    if old == new:
        return []
    return [*([Write(old, None)] if old else []), *([Write(new, "{}")] if new else [])]


def email_key(id: str, person: Person | None) -> Key | None:
    return None if person is None or person.email is None else Key(EMAILS, group_of(person.email), id)


# -- kinds of occasions -----------------------------------------------------------------------------------


async def known_kinds(store: Store) -> list[str]:
    """Return the kinds of occasions that the store may have plans for."""
    return [document.key.id for document in await store.browse(Listing(KINDS, "", None, MAX_KINDS))]


async def note_kind(store: Store, kind: str) -> None:
    """Record a kind. Call this before the first plan of the kind is written."""
    data = json.dumps({"tzdata": tzdata_version()})
    await store.write([Bundle((Write(_kind_key(kind), data, expected=ABSENT),))])


async def kind_tzdata(store: Store, kind: str) -> str | None:
    """Return the oldest tzdata that plans of a kind were made with."""
    found = await store.documents([_kind_key(kind)])
    return str(json.loads(found[0].data)["tzdata"]) if found else None


async def mark_kind(store: Store, kind: str, tzdata: str) -> None:
    """Record that all plans of a kind use this tzdata. If another process is faster, it writes the same.

    Fields that only newer versions know are kept.
    """
    for found in await store.documents([_kind_key(kind)]):
        data = json.dumps({**json.loads(found.data), "tzdata": tzdata})
        await store.write([Bundle((Write(_kind_key(kind), data, expected=found.version),))])


def _kind_key(kind: str) -> Key:
    return Key(KINDS, "", kind)
