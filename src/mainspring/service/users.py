"""`/user`: people in the form of a user service with birthdays, in camel case.

A user is a person (`/v1/people`) with an occasion of the kind `birthday`, which is sent at 9 in the user's morning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import InvalidPerson
from mainspring.features.people.person import Person, person_of
from mainspring.ids import new_id
from mainspring.json_data import plain
from mainspring.service.answers.users import DAY, UserView
from mainspring.service.bodies import Body
from mainspring.service.etags import IfMatch, etag
from mainspring.service.people import PersonId, Short, check, existing, revision_of
from mainspring.service.problems import Problem
from mainspring.service.replay import KeyKind, known_effect
from mainspring.service.requests import Router, answer, app_of, caller_of, location, needs
from mainspring.service.tokens import Scope

router = Router(prefix="/user", tags=["users"])
BIRTHDAY = "birthday"
NAMES = {"firstName": "first_name", "lastName": "last_name", "timezone": "tz", "email": "email"}


Given = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Email = Annotated[str, StringConstraints(max_length=320)]


class NewUserBody(Body):
    """A new user."""

    firstName: Given  # noqa: N815 - as the document names it
    lastName: Short = ""  # noqa: N815
    birthday: Short | None = Field(default=None, description=DAY, examples=["1990-12-30"])
    timezone: Given = Field(description="an IANA time zone", examples=["America/New_York"])
    email: Email | None = None


class UserBody(Body):
    """Fields of a user to change. Those that are left out stay as they are."""

    firstName: Given = ""  # noqa: N815
    lastName: Short = ""  # noqa: N815
    birthday: Short | None = Field(default=None, description=f"{DAY}; null: nothing is sent any more")
    timezone: Given = Field(default="", description="an IANA time zone")
    email: Email | None = None


def user_data(person: Person) -> dict[str, Any]:
    birthday = person.occasion(BIRTHDAY)
    told = {name: getattr(person, field) for name, field in NAMES.items()}
    times = {"createdAt": plain(person.created_at), "updatedAt": plain(person.updated_at)}
    return {"id": person.id, **told, "birthday": None if birthday is None else birthday.date, **times}


def fields_of(given: dict[str, Any], known: Person | None = None) -> dict[str, Any]:
    """Return what a body says about a user as fields of a person. The birthday keeps its other settings."""
    fields = {NAMES[name]: value for name, value in given.items() if name in NAMES}
    if BIRTHDAY in given:
        fields["occasions"] = with_birthday(given[BIRTHDAY], known)
    return fields


def with_birthday(day: str | None, known: Person | None) -> list[Any]:
    others: list[Any] = [] if known is None else known.occasions_besides(BIRTHDAY)
    before = None if known is None else known.occasion(BIRTHDAY)
    if day is None:
        return others
    settings = {} if before is None else before.model_dump(exclude={"date"})
    return [*others, {"kind": BIRTHDAY, **settings, "date": day}]


@router.post(
    "",
    response_model=UserView,
    status_code=201,
    summary="Create a user",
    **needs(Scope.OPERATE, KeyKind.RESUMED, tells=("Location", "ETag")),
)
async def create_user(request: Request, body: NewUserBody) -> Response:
    """Create a user. If the birthday is today and it is past 9 in the user's morning, the message is sent at once."""
    if (begun := known_effect(request)) is not None:
        person = await app_of(request).people.get(begun["person"])
    else:
        person = await app_of(request).people.put(checked({"id": new_id(), **fields_of(body.model_dump())}))
    return shown(person, 201, location(request, f"/user/{person.id}"))


def shown(person: Person, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return answer(user_data(person), status, {**etag(revision_of(person) or ""), **(headers or {})})


@router.get("/{user_id}", response_model=UserView, summary="Show a user", **needs(Scope.READ, tells=("ETag",)))
async def show_user(request: Request, user_id: PersonId) -> Response:
    """Return a user, with the birthday on which a message is sent. The ETag changes with each change."""
    return shown(await app_of(request).people.get(user_id))


@router.put("/{user_id}", response_model=UserView, summary="Change a user", **needs(Scope.OPERATE, tells=("ETag",)))
async def change_user(request: Request, user_id: PersonId, body: UserBody, if_match: IfMatch = None) -> Response:
    """Change the given fields of a user. Another time zone or birthday moves the planned message."""
    given = body.model_dump(exclude_unset=True)

    def change(known: Person | None) -> Person:
        person = existing(user_id, known)
        check(known, if_match)
        return person.with_changes(**fields_of(given, person))

    try:
        return shown((await app_of(request).people.change(user_id, change))[0])
    except InvalidPerson as error:
        raise renamed(error) from None


@router.delete("/{user_id}", status_code=204, summary="Delete a user", **needs(Scope.OPERATE))
async def delete_user(request: Request, user_id: PersonId, if_match: IfMatch = None) -> Response:
    """Delete a user. Nothing is sent any more."""
    await app_of(request).people.delete(
        user_id, actor=caller_of(request).actor, check=lambda known: check(existing(user_id, known), if_match)
    )
    return Response(status_code=204)


def checked(data: dict[str, Any]) -> Person:
    try:
        return person_of(data)
    except InvalidPerson as error:
        raise renamed(error) from None


def renamed(error: InvalidPerson) -> Problem:
    """Return what is wrong with a user, by the names of these routes."""
    names = {field: name for name, field in NAMES.items()}
    lines = [(names.get(field, BIRTHDAY), why) for field, why in error.problems]
    errors = [{"pointer": f"/{name}", "code": "invalid", "detail": why} for name, why in lines]
    return Problem("invalid_request", "; ".join(f"{name}: {why}" for name, why in lines), errors)
