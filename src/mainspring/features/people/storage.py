"""The documents of people: the people, the lists by e-mail address, and the kinds of occasions that have plans.

`bundle_of` is what a change of a person writes: the person, their plans and their e-mail list entry, in one bundle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from mainspring.errors import InvalidPerson
from mainspring.features.people.firing import OCCASIONS, passed_over
from mainspring.features.people.person import Person, Times
from mainspring.features.people.plan import OccasionPlan, collection_of, ended, planned
from mainspring.features.schedules.rules import tzdata_version
from mainspring.stores.documents import ABSENT, Became, Bundle, By, Document, Key, Listing, Note, Write, current_once
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


# -- changes of people -------------------------------------------------------------------------------------

Change = Callable[[Person | None], Person | None]  # from the stored person to the new one; None: no such person
Changes = Sequence[tuple[str, Change]]  # by the person's id


class PersonChange(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(slots=True)
class WantedChange:
    """The result of a change to a person as read from the store."""

    id: str
    known: StoredPerson
    new: Person | InvalidPerson | None
    now: datetime
    changes_something: bool = field(init=False)
    kinds: set[str] = field(init=False)  # of all occasions before and after, if something changes

    def __post_init__(self) -> None:
        self.changes_something = not isinstance(self.new, InvalidPerson) and self.new != self.known.person
        both = (self.known.person, self.new) if self.changes_something else ()
        self.kinds = {occasion.kind for person in both if isinstance(person, Person) for occasion in person.occasions}

    @classmethod
    def of(cls, id: str, change: Change, known: StoredPerson, now: datetime) -> WantedChange:
        if isinstance(known.person, InvalidPerson):
            return cls(id, known, known.person, now)
        try:
            return cls(id, known, change(known.person), now)
        except InvalidPerson as error:
            return cls(id, known, error, now)

    @property
    def times(self) -> Times:
        """Return the times of the changed person."""
        return Times(self.known.person.created_at if isinstance(self.known.person, Person) else self.now, self.now)

    @property
    def stored(self) -> Person | None:
        """Return the person as stored after the change."""
        if not self.changes_something or not isinstance(self.new, Person):
            return self.known.person if isinstance(self.known.person, Person) else None
        return self.new.model_copy(update=self.times._asdict())

    @property
    def became(self) -> PersonChange | InvalidPerson:
        if isinstance(self.new, InvalidPerson):
            return self.new
        if not self.changes_something:
            return PersonChange.UNCHANGED
        if self.new is None:
            return PersonChange.DELETED
        return PersonChange.CREATED if self.known.person is None else PersonChange.UPDATED


def bundle_of(change: WantedChange, plans: Mapping[Key, OccasionPlan], by: By | None) -> Bundle:
    """Return the writes of one change. The person's version fences them all: each change writes the person too."""
    person, now = change.new if isinstance(change.new, Person) else None, change.now
    data = None if person is None else person.to_json(change.known.others, change.times)
    known_as = change.known.person if isinstance(change.known.person, Person) else None
    became = _became(change.known.person, person)
    writes = [Write(person_key(change.id), data, expected=change.known.version, recorded=True, became=became)]
    writes += email_writes(change.id, known_as, person)
    for kind in sorted(change.kinds):
        known = plans.get(Key(collection_of(kind), "", change.id)) if plans else None
        after = _plan_after(known, person, kind, now)
        if after is not None and after is not known:
            writes.append(after.write(now, _became(_lasting(known), _lasting(after))))
            writes += [entry.write(OCCASIONS, change.id) for entry in passed_over(known, after, now)]
    return Bundle(tuple(writes), note=_note(change, by), once=current_once(person=change.id))


def _became(before: object | None, after: object | None) -> Became:
    if after is None:
        return "deleted"
    return "created" if before is None else "updated"


def _lasting(plan: OccasionPlan | None) -> OccasionPlan | None:
    """Return the plan of an occasion that exists; None if its plan only remembers what was sent."""
    return None if plan is None or plan.gone else plan


def _note(change: WantedChange, by: By | None) -> Note | None:
    """Return the audit note of a deletion. It has only the id, so that no name or address stays in the log."""
    if by is None or change.became is not PersonChange.DELETED:
        return None
    return Note(by, "person.delete", {"person": change.id})


def _plan_after(known: OccasionPlan | None, person: Person | None, kind: str, now: datetime) -> OccasionPlan | None:
    occasion = None if person is None else person.occasion(kind)
    if person is not None and occasion is not None:
        return planned(known, person, occasion, now)
    return known if known is None or known.gone else ended(known)


def first_of_each(remaining: Sequence[int], changes: Changes) -> list[int]:
    """Return the first change of each person. The next change of a person is applied to the result of the first."""
    first: dict[str, int] = {}
    for number in remaining:
        first.setdefault(changes[number][0], number)
    return list(first.values())
