"""Routes about people and their occasions. An id may contain slashes, so the routes with more behind it come first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import InvalidCursor, PersonNotFound
from mainspring.features.people.firing import OccasionEntry
from mainspring.features.people.person import MAX_OCCASIONS, Person, person_of
from mainspring.features.people.storage import PersonChange
from mainspring.json_data import plain
from mainspring.json_text import conditions, key_and_value
from mainspring.redaction import has_mark, restored
from mainspring.service.answers.people import PeoplePage, PersonOccasions, PersonView, UpcomingList
from mainspring.service.bodies import LONGEST, Body, Instant, Text
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.etags import IfMatch, IfNoneMatch, etag, expected
from mainspring.service.problems import Problem
from mainspring.service.redacted import check_searched, redaction_of
from mainspring.service.requests import Router, answer, app_of, caller_of, needs, next_link
from mainspring.service.tokens import Scope
from mainspring.stores.documents import ABSENT

router = Router(prefix="/v1")
PersonId = Annotated[str, Path(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
KindOfOccasion = Annotated[str, Path(max_length=50)]
Short = Annotated[str, StringConstraints(max_length=200)]
WEEK = 7 * 86_400
PLACE = "\n"  # between the time, the person and the kind of a message
PEOPLE: dict[str, Any] = {"tags": ["people"]}
OCCASIONS: dict[str, Any] = {"tags": ["occasions"]}


# -- what they take and answer --------------------------------------------------------------------


class OccasionFields(Body):
    date: Short = Field(description="1990-12-30, or 12-30 if the year is not known", examples=["1990-12-30"])
    at: Short = Field(default="09:00", description="the local time of the person")
    feb29: Literal["feb28", "mar1", "skip"] = Field(
        default="feb28", description="when 29 February is celebrated in other years"
    )
    late: Literal["send", "skip"] = Field(
        default="send", description="if it is put on the day itself, after its time: send at once, or next year"
    )
    grace: Short = Field(default="3d", description="how late it may be sent after an outage")
    template: Short | None = None
    channel: Short | None = None


class OccasionBody(OccasionFields):
    """An occasion that recurs each year."""

    kind: Short = Field(examples=["birthday"])


class ContactFields(Body):
    first_name: Short = ""
    last_name: Short = ""
    email: Annotated[str, StringConstraints(max_length=320)] | None = None
    addresses: dict[Short, Text] = Field(default={}, max_length=50, description='other channels: {"sms": "+64 …"}')
    locale: Short | None = Field(default=None, examples=["en-NZ"])
    quiet: Short | None = Field(default=None, description="local hours without messages", examples=["22:00-08:00"])
    attributes: dict[Short, Any] = Field(default={}, max_length=200, description="your own data")
    occasions: list[OccasionBody] = Field(default=[], max_length=MAX_OCCASIONS)


class PersonBody(ContactFields):
    """A whole person. What is left out gets its default."""

    tz: Short = Field(description="an IANA time zone", examples=["Pacific/Auckland"])


class PersonPatch(ContactFields):
    """Fields of a person to change. Those that are left out stay as they are."""

    tz: Short = Field(default="", description="an IANA time zone")


class PeopleQuery(Body):
    """Which people are listed. Every parameter that is given must match; case does not matter."""

    email: Short | None = None
    name: Short | None = Field(default=None, description="the beginning of the first, the last or the whole name")
    tz: Short | None = None
    kind: Short | None = Field(default=None, description="of an occasion")
    attribute: list[str] = Field(default=[], max_length=20, description="`name=value`, the value as JSON or as text")
    limit: int = Field(default=50, ge=1, le=500)
    cursor: Text | None = None


# -- people ---------------------------------------------------------------------------------------


def person_data(request: Request, person: Person) -> dict[str, Any]:
    data = person.to_data()
    return {**data, "attributes": redaction_of(request).value(data["attributes"])}


def with_secrets(request: Request, given: dict[str, Any], known: Person | None) -> dict[str, Any]:
    """Return fields of a person with the stored values for those that are sent back as they were shown."""
    if not has_mark(given.get("attributes")):
        return given
    old = None if known is None else known.model_dump(mode="json")["attributes"]
    return {**given, "attributes": restored(given["attributes"], old, redaction_of(request).of(None))}


def revision_of(person: Person | None) -> str | None:
    return None if person is None else sha256(person.model_dump_json().encode()).hexdigest()[:32]


def shown(request: Request, person: Person, status: int = 200) -> Response:
    return answer(person_data(request, person), status, etag(revision_of(person) or ""))


def existing(person_id: str, person: Person | None) -> Person:
    if person is None:
        msg = f"there is no person {person_id!r}"
        raise PersonNotFound(msg)
    return person


@router.get("/people", response_model=PeoplePage, summary="List people", **PEOPLE, **needs(Scope.READ))
async def list_people(request: Request, query: Annotated[PeopleQuery, Query()]) -> Response:
    """Return people by id. A page may have few people although there are more: go on while there is a cursor."""
    attributes = conditions(map(key_and_value, query.attribute))
    check_searched(request, attributes)
    where = query.model_dump(exclude={"limit", "cursor"})
    found = await app_of(request).people.find(
        email=query.email, name=query.name, tz=query.tz, kind=query.kind, attributes=attributes, limit=query.limit,
        cursor=last_of("people", query.cursor, where),
    )  # fmt: skip
    people, cursor = [person_data(request, person) for person in found.people], cursor_of("people", found.cursor, where)
    data = {"people": people, "cursor": cursor, "unreadable": dict(found.unreadable)}
    return answer(data, headers=next_link(request, cursor))


@router.get(
    "/people/{person_id:path}/occasions", response_model=PersonOccasions, summary="Show a person's occasions",
    **OCCASIONS, **needs(Scope.READ),
)  # fmt: skip
async def show_occasions(
    request: Request,
    person_id: PersonId,
    limit: Annotated[int, Query(ge=1, le=500, description="of entries in the ledger")] = 100,
    before: Annotated[Instant | None, Query(description="only entries before this")] = None,
) -> Response:
    """Return what will be sent to a person next, and what became of earlier occasions, newest first."""
    occasions = app_of(request).occasions
    upcoming = plain([each.to_data() for each in await occasions.next(person_id)])
    ledger = [entry_data(entry) for entry in await occasions.ledger(person_id, limit=limit, before=before)]
    return answer({"upcoming": upcoming, "ledger": ledger})


@router.put(
    "/people/{person_id:path}/occasions/{kind}", response_model=PersonView, summary="Add or replace an occasion",
    **OCCASIONS, **needs(Scope.OPERATE, tells=("ETag",)),
)  # fmt: skip
async def put_occasion(
    request: Request, person_id: PersonId, kind: KindOfOccasion, body: OccasionFields, if_match: IfMatch = None
) -> Response:
    """Add an occasion to a person, or replace the one of this kind."""
    given: dict[str, Any] = {"kind": kind, **body.model_dump()}
    return await edited(
        request, person_id, if_match, lambda person: {"occasions": [*person.occasions_besides(kind), given]}
    )


@router.delete(
    "/people/{person_id:path}/occasions/{kind}", response_model=PersonView, summary="Remove an occasion",
    **OCCASIONS, **needs(Scope.OPERATE, tells=("ETag",)),
)  # fmt: skip
async def remove_occasion(
    request: Request, person_id: PersonId, kind: KindOfOccasion, if_match: IfMatch = None
) -> Response:
    """Remove an occasion. Nothing is sent for it any more."""
    return await edited(request, person_id, if_match, lambda person: {"occasions": person.occasions_besides(kind)})


@router.get(
    "/people/{person_id:path}",
    response_model=PersonView,
    summary="Show a person",
    **PEOPLE,
    **needs(Scope.READ, tells=("ETag",)),
)
async def show_person(request: Request, person_id: PersonId) -> Response:
    """Return a person. The ETag changes with each change."""
    return shown(request, await app_of(request).people.get(person_id))


@router.put(
    "/people/{person_id:path}",
    response_model=PersonView,
    summary="Create or replace a person",
    responses={201: {"model": PersonView, "description": "the person was created"}},
    **PEOPLE,
    **needs(Scope.OPERATE, tells=("ETag",), may=("invalid_payload",)),
)
async def put_person(
    request: Request,
    person_id: PersonId,
    body: PersonBody,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create or replace a person. Plans of occasions move in the same write."""
    given = {"id": person_id, **body.model_dump()}
    person_of(given)  # what is wrong with it is said before anything is read

    def change(known: Person | None) -> Person:
        check(known, if_match, if_none_match)
        return person_of(with_secrets(request, given, known))

    person, became = await app_of(request).people.change(person_id, change)
    return shown(request, person, 201 if became is PersonChange.CREATED else 200)


def check(known: Person | None, if_match: str | None, if_none_match: str | None = None) -> None:
    """Raise Problem if the person is not the one that the caller has read."""
    if expected(revision_of(known), if_match, if_none_match) == ABSENT and known is not None:
        raise Problem("precondition_failed", f"there is already a person {known.id!r}")


@router.patch(
    "/people/{person_id:path}",
    response_model=PersonView,
    summary="Change a person",
    **PEOPLE,
    **needs(Scope.OPERATE, tells=("ETag",), may=("invalid_payload",)),
)
async def patch_person(request: Request, person_id: PersonId, body: PersonPatch, if_match: IfMatch = None) -> Response:
    """Change some fields of a person. Another time zone moves the plans of all occasions."""
    given = body.model_dump(exclude_unset=True)
    return await edited(request, person_id, if_match, lambda person: with_secrets(request, given, person))


async def edited(
    request: Request, person_id: str, if_match: str | None, fields: Callable[[Person], dict[str, Any]]
) -> Response:
    """Change some fields of a person, unless it is not the one that the caller has read."""

    def change(known: Person | None) -> Person:
        person = existing(person_id, known)
        check(known, if_match)
        return person.with_changes(**fields(person))

    return shown(request, (await app_of(request).people.change(person_id, change))[0])


@router.delete("/people/{person_id:path}", status_code=204, summary="Delete a person", **PEOPLE, **needs(Scope.OPERATE))
async def delete_person(
    request: Request,
    person_id: PersonId,
    reason: Annotated[str, Query(max_length=2_000)] = "",
    if_match: IfMatch = None,
) -> Response:
    """Delete a person and their plans, and cancel their waiting jobs."""
    await app_of(request).people.delete(
        person_id, reason=reason, actor=caller_of(request).actor,
        check=lambda known: check(existing(person_id, known), if_match),
    )  # fmt: skip
    return Response(status_code=204)


# -- occasions ------------------------------------------------------------------------------------


@router.get(
    "/occasions", response_model=UpcomingList, summary="List coming occasions", **OCCASIONS, **needs(Scope.READ)
)
async def list_occasions(
    request: Request,
    ahead: Annotated[float, Query(ge=0, le=LONGEST, description="seconds from now")] = WEEK,
    kind: Annotated[str | None, Query(max_length=50)] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    cursor: Annotated[str | None, Query(max_length=2_000)] = None,
) -> Response:
    """Return what will be sent to whom, soonest first, with what is overdue."""
    where = {"ahead": ahead, "kind": kind}
    after = place_of(last_of("occasions", cursor, where))
    occasions = app_of(request).occasions
    page = await occasions.page(timedelta(seconds=ahead), kind=kind, limit=limit, after=after)
    following = cursor_of("occasions", None if page.last is None else PLACE.join(map(str, page.last)), where)
    data = {"upcoming": plain([each.to_data() for each in page.messages]), "cursor": following}
    return answer(data, headers=next_link(request, following))


def place_of(text: str | None) -> tuple[int, str, str] | None:
    """Return the place of the message with which a page ended."""
    if text is None:
        return None
    due, _, rest = text.partition(PLACE)
    person, _, kind = rest.rpartition(PLACE)
    if not due.isdecimal():
        msg = f"{text!r} is not a cursor of occasions"
        raise InvalidCursor(msg)
    return int(due), person, kind


def entry_data(entry: OccasionEntry) -> dict[str, Any]:
    return {**plain(entry), "kind": entry.kind, "on": entry.on.isoformat()}
