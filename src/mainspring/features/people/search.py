"""Searches for people: the filters, and which documents a search reads.

There is a list of the people with each e-mail address, and a collection of the plans of each kind of occasion. A search
for an address or a kind reads those. There is no list per name or time zone, so any other search reads all people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mainspring.features.people.person import Person
from mainspring.features.people.plan import collection_of
from mainspring.features.people.storage import EMAILS, PEOPLE, group_of, plain


@dataclass(frozen=True, slots=True)
class Found:
    """A page of a search."""

    people: list[Person]
    cursor: str | None  # pass it to get the next page; None if this is the last
    unreadable: Mapping[str, str] = field(default_factory=dict)  # by id, why this version cannot read them


@dataclass(frozen=True, slots=True)
class Search:
    """Every field that is given must match."""

    email: str | None = None
    name: str | None = None  # the beginning of the first, the last or the whole name
    tz: str | None = None
    kind: str | None = None  # of an occasion
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def along(self) -> tuple[str, str]:
        """Return the collection and group that contain all possible matches."""
        if self.email is not None:
            return EMAILS, group_of(self.email)
        return (PEOPLE if self.kind is None else collection_of(self.kind)), ""

    @property
    def is_for_all(self) -> bool:
        return self == Search()

    def fits(self, person: Person) -> bool:
        return (
            (self.email is None or (person.email is not None and plain(person.email) == plain(self.email)))
            and (self.name is None or self._fits_name(person))
            and self.tz in {None, person.tz}
            and (self.kind is None or person.occasion(self.kind) is not None)
            and all(is_value(person.attributes.get(name), wanted) for name, wanted in self.attributes.items())
        )

    def _fits_name(self, person: Person) -> bool:
        wanted = plain(self.name or "")
        return any(plain(name).startswith(wanted) for name in (person.name, person.last_name) if name)


def is_value(value: Any, wanted: Any) -> bool:
    """Return whether a value matches. The text "3" also matches the number 3: CSV files and the CLI give texts."""
    return bool(value == wanted) or (isinstance(wanted, str) and value is not None and json.dumps(value) == wanted)
