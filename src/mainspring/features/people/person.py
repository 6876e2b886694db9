"""A person: name, time zone, how and when to reach them, and their occasions.

During an upgrade, versions of this program that know different fields read the same documents. A field of an occasion
says when or what to send. A version that does not know such a field, or cannot read a value, leaves the whole person to
versions that can. Any other field of a person that it does not know, it writes back unchanged. So a new field that says
when to send belongs in the occasions, and is written only if it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack

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

from mainspring.errors import InvalidPerson, InvalidSchedule
from mainspring.features.people.occasion import Occasion
from mainspring.features.schedules.rules import PACKAGED
from mainspring.features.schedules.rules.hours import Hours
from mainspring.features.schedules.rules.parse import times_of_day, write_time
from mainspring.json_data import plain

INVALID_ID = "{!r} cannot be an id; use up to 200 printable characters"
MAX_OCCASIONS = 30  # a person, their plans and ledger are one write, which has up to 100 items in DynamoDB


def is_id(value: str) -> bool:
    return 0 < len(value) <= 200 and value.isprintable()


def _id(value: str) -> str:
    if not is_id(value):
        raise ValueError(INVALID_ID.format(value))
    return value


def _checked_tz(value: str) -> str:
    return PACKAGED.get(value).key


def _email(value: str) -> str:
    """Refuse what cannot be an e-mail address. Only sending shows whether the address exists."""
    name, at, host = value.rpartition("@")
    if not (name and at and host) or " " in value or not value.isprintable():
        msg = f"{value!r} is not an e-mail address"
        raise ValueError(msg)
    return value


def _quiet(value: Any) -> Any:
    return str(quiet_hours(value)) if isinstance(value, str) else value


def _occasions(several: Sequence[Occasion]) -> Sequence[Occasion]:
    if len(several) < 2:  # the usual case
        return tuple(several)
    kinds = [occasion.kind for occasion in several]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        msg = f"two occasions are of kind {twice!r}; a person can have one of each kind"
        raise ValueError(msg)
    if len(several) > MAX_OCCASIONS:
        msg = f"{len(several)} occasions; a person can have up to {MAX_OCCASIONS}"
        raise ValueError(msg)
    return tuple(sorted(several, key=lambda occasion: occasion.kind))


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Local hours in which a person gets no messages: `22:00-08:00`."""

    start: time
    end: time  # excluded

    def __str__(self) -> str:
        return f"{write_time(self.start)}-{write_time(self.end)}"

    @property
    def others(self) -> Hours:
        """Return the hours in which messages may be sent."""
        return Hours(self.end, self.start)


@lru_cache(maxsize=1024)
def quiet_hours(text: str) -> QuietHours:
    first, dash, last = text.partition("-")
    try:
        (start,), (end,) = times_of_day(first.strip()), times_of_day(last.strip())
    except InvalidSchedule:
        dash, start, end = "", time(), time()
    if not dash:
        msg = f"{text!r} are not quiet hours; write 22:00-08:00"
        raise ValueError(msg)
    if start == end:
        msg = f"{text!r} covers the whole day; leave some time in which messages may be sent"
        raise ValueError(msg)
    return QuietHours(start, end)


AS_TUPLE = GetPydanticSchema(lambda _source, handler: handler.generate_schema(tuple[Occasion, ...]))
"""Pydantic handles tuples natively, but calls Python for each `Sequence`: a third of the time to read a person."""
TIMES = {"created_at", "updated_at"}
FIXED = {"id", *TIMES}  # the fields that no caller can change


class Times(NamedTuple):
    """When a person was first written and last changed."""

    created_at: datetime | None  # None: by a version that did not record it
    updated_at: datetime


class PersonFields(TypedDict, total=False):
    """The fields of a person that can be changed: all but the id and the times, which the application sets."""

    tz: str
    first_name: str
    last_name: str
    email: str | None
    addresses: dict[str, str]
    locale: str | None
    quiet: str | None
    attributes: dict[str, JsonValue]
    occasions: Sequence[Occasion]


class Person(BaseModel):
    """`Person(id="p1", first_name="Ana", tz="Pacific/Auckland", occasions=[Occasion(…)])`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: Annotated[str, AfterValidator(_id)]
    tz: Annotated[str, AfterValidator(_checked_tz)]  # IANA
    first_name: str = ""
    last_name: str = ""
    email: Annotated[str, AfterValidator(_email)] | None = None
    addresses: dict[str, str] = Field(default_factory=dict)  # other channels: {"sms": "+64 …", "slack": "@ana"}
    locale: str | None = None  # such as en-NZ
    quiet: Annotated[str | None, BeforeValidator(_quiet)] = None  # local hours without messages: 22:00-08:00
    attributes: dict[str, JsonValue] = Field(default_factory=dict)  # your own data
    occasions: Annotated[Sequence[Occasion], AS_TUPLE, AfterValidator(_occasions)] = ()
    created_at: datetime | None = None  # when it was first written. A write ignores the value given; None: not written
    updated_at: datetime | None = None  # when it was last changed, in the same way

    def __eq__(self, other: object) -> bool:
        """Compare all fields but the times, so that a person that you make equals the same person as stored."""
        if not isinstance(other, Person):
            return NotImplemented
        return self.__dict__ == {**other.__dict__, "created_at": self.created_at, "updated_at": self.updated_at}

    __hash__ = None  # type: ignore[assignment] # it contains dicts

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.first_name, self.last_name)))

    def occasion(self, kind: str) -> Occasion | None:
        for occasion in self.occasions:
            if occasion.kind == kind:
                return occasion
        return None

    def occasions_besides(self, kind: str) -> list[Occasion]:
        """Return the occasions of other kinds."""
        return [occasion for occasion in self.occasions if occasion.kind != kind]

    def address(self, channel: str) -> str | None:
        """Return the address for a channel: `person.address(occasion.channel or "email")`."""
        return self.addresses.get(channel, self.email if channel == "email" else None)

    def with_changes(self, **changes: Unpack[PersonFields]) -> Person:
        """Return a copy with these fields changed. The whole copy is validated, like a new person."""
        if wrong := sorted(FIXED & changes.keys()):
            problems = [(name, "this cannot be changed; leave it out") for name in wrong]
            msg = f"person {self.id!r}: {'; '.join(f'{name}: {why}' for name, why in problems)}"
            raise InvalidPerson(msg, problems)
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return person_of({**given, **changes})

    def to_data(self) -> dict[str, Any]:
        """Return the person as JSON data, as the command line and the service show it."""
        times = {"created_at": plain(self.created_at), "updated_at": plain(self.updated_at)}
        return {**self.model_dump(mode="json"), **times}

    # -- as a document --------------------------------------------------------------------------------

    def to_json(self, others: Mapping[str, Any], times: Times) -> str:
        """Return the document's text with these times. `others` are fields that only newer versions know."""
        data = self.model_dump_json(exclude_none=True, exclude=TIMES).removesuffix("}") + _ending(times)
        return json.dumps({**others, **json.loads(data)}) if others else data

    @classmethod
    def from_json(cls, id: str, data: str) -> tuple[Person, Mapping[str, Any]]:
        """Return the person, and the fields that this version does not know."""
        with suppress(ValidationError):
            return cls.model_validate_json(data), {}
        try:
            given = json.loads(data)
            others = {name: given.pop(name) for name in given.keys() - cls.model_fields.keys()}
            return cls.model_validate(given), others
        except (ValueError, AttributeError) as error:
            why = _summary(error) if isinstance(error, ValidationError) else repr(error)
            raise unreadable(id, why) from error


@lru_cache(maxsize=16)
def _ending(times: Times) -> str:
    """Return the end of a document. An import has the same times for many people, and Pydantic would take longer."""
    shown = {name: plain(time) for name, time in times._asdict().items() if time is not None}
    return f",{json.dumps(shown).removeprefix('{')}"


def person_of(data: Mapping[str, Any]) -> Person:
    try:
        return Person.model_validate(data)
    except ValidationError as error:
        msg = f"person {data.get('id')!r}: {_summary(error)}"
        raise InvalidPerson(msg, _problems(error)) from error


def unreadable(id: str, why: str, what: str = "person") -> InvalidPerson:
    msg = f"{what} {id!r} cannot be read by this version of Mainspring; a newer one may have written it: {why}"
    return InvalidPerson(msg, [("", msg)])


def _summary(error: ValidationError) -> str:
    return "; ".join(f"{place}: {reason}" for place, reason in _problems(error))


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    return [(".".join(map(str, detail["loc"])), reason_of(detail["msg"])) for detail in error.errors()]


def reason_of(message: str) -> str:
    return message.removeprefix("Value error, ")
