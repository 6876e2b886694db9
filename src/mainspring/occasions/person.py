"""A person: who they are, how and when to reach them, and their occasions.

During an upgrade, versions of this program that know different fields read the same documents. A field of an occasion
says when or what to send: a version that does not know it leaves the whole person to those that do, and so it is with
values that it cannot read. Any other field of a person that it does not know is not its business; it writes it back as
it was. So a new field that says when belongs into the occasions, and is left out where it is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    JsonValue,
    ValidationError,
)

from mainspring.errors import InvalidPerson
from mainspring.occasions.occasion import Occasion
from mainspring.occasions.quiet import quiet_hours
from mainspring.schedule import PACKAGED

NO_ID = "{!r} cannot be an id; use up to 200 printable characters"
MOST_OCCASIONS = 30  # a person, plans and ledger are written at once, which DynamoDB does for up to 100 items


def is_id(value: str) -> bool:
    return 0 < len(value) <= 200 and value.isprintable()


def _id(value: str) -> str:
    if not is_id(value):
        raise ValueError(NO_ID.format(value))
    return value


def _zone(value: str) -> str:
    return PACKAGED.get(value).key


def _email(value: str) -> str:
    """What is surely wrong. Whether it exists, only sending tells."""
    name, at, host = value.rpartition("@")
    if not (name and at and host) or " " in value or not value.isprintable():
        msg = f"{value!r} is no e-mail address"
        raise ValueError(msg)
    return value


def _quiet(value: Any) -> Any:
    return str(quiet_hours(value)) if isinstance(value, str) else value


def _occasions(several: Sequence[Occasion]) -> Sequence[Occasion]:
    if len(several) < 2:  # as a rule
        return tuple(several)
    kinds = [one.kind for one in several]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        msg = f"two occasions are of kind {twice!r}; a person has one of each kind"
        raise ValueError(msg)
    if len(several) > MOST_OCCASIONS:
        msg = f"{len(several)} occasions; a person has up to {MOST_OCCASIONS}"
        raise ValueError(msg)
    return tuple(sorted(several, key=lambda one: one.kind))


AS_TUPLE = GetPydanticSchema(lambda _source, handler: handler.generate_schema(tuple[Occasion, ...]))
"""Pydantic reads and writes tuples by itself, but calls Python for each `Sequence`: a third of reading a person."""


class Person(BaseModel):
    """`Person(id="p1", first_name="Ana", zone="Pacific/Auckland", occasions=[Occasion(…)])`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: Annotated[str, AfterValidator(_id)]
    zone: Annotated[str, AfterValidator(_zone)]  # IANA
    first_name: str = ""
    last_name: str = ""
    email: Annotated[str, AfterValidator(_email)] | None = None
    addresses: dict[str, str] = Field(default_factory=dict)  # others: {"sms": "+64 …", "slack": "@ana"}
    locale: str | None = None  # such as en-NZ
    quiet: Annotated[str | None, BeforeValidator(_quiet)] = None  # local hours without messages: 22:00-08:00
    attributes: dict[str, JsonValue] = Field(default_factory=dict)  # whatever else you know
    occasions: Annotated[Sequence[Occasion], AS_TUPLE, AfterValidator(_occasions)] = ()

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.first_name, self.last_name)))

    def occasion(self, kind: str) -> Occasion | None:
        for one in self.occasions:
            if one.kind == kind:
                return one
        return None

    def address(self, channel: str) -> str | None:
        """Where to reach them: `person.address(occasion.channel or "email")`."""
        return self.addresses.get(channel, self.email if channel == "email" else None)

    def with_changes(self, **changes: Any) -> Person:
        """Checked as a whole, as if it were new."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return person_of({**given, **changes})

    # -- as a document --------------------------------------------------------------------------------

    def to_json(self, others: Mapping[str, Any]) -> str:
        """`others` are fields of its document that only newer versions know."""
        data = self.model_dump_json(exclude_none=True)
        return json.dumps({**others, **json.loads(data)}) if others else data

    @classmethod
    def from_json(cls, id: str, data: str) -> tuple[Person, Mapping[str, Any]]:
        """And the fields that are not known here."""
        with suppress(ValidationError):
            return cls.model_validate_json(data), {}
        try:
            given = json.loads(data)
            others = {name: given.pop(name) for name in given.keys() - cls.model_fields.keys()}
            return cls.model_validate(given), others
        except (ValueError, AttributeError) as error:
            why = _told(error) if isinstance(error, ValidationError) else repr(error)
            raise unreadable(id, why) from error


def person_of(data: Mapping[str, Any]) -> Person:
    try:
        return Person.model_validate(data)
    except ValidationError as error:
        msg = f"person {data.get('id')!r}: {_told(error)}"
        raise InvalidPerson(msg, _problems(error)) from error


def unreadable(id: str, why: str, what: str = "person") -> InvalidPerson:
    msg = f"{what} {id!r} cannot be read by this version of Mainspring; a newer one may have written it: {why}"
    return InvalidPerson(msg, [("", msg)])


def _told(error: ValidationError) -> str:
    return "; ".join(f"{place}: {reason}" for place, reason in _problems(error))


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    return [(".".join(map(str, one["loc"])), reason_of(one["msg"])) for one in error.errors()]


def reason_of(message: str) -> str:
    return message.removeprefix("Value error, ")
