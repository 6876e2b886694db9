"""People and their occasions, and users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from typing_extensions import Unpack

from mainspring.client.inputs import (
    Length,
    OccasionOptions,
    PersonChanges,
    PersonFields,
    UserFields,
    given,
    payload_conditions,
)
from mainspring.client.models import PeoplePage, Person, PersonOccasions, PersonView, UpcomingList, UpcomingView, User
from mainspring.client.operation import Given, Resource, S, listing, operation
from mainspring.client.request import seconds
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items

WEEK = 7 * 86_400.0


class People(Resource[S]):
    """People to whom messages are sent on their occasions."""

    @operation("GET", "/v1/people", PeoplePage)
    def page(
        self,
        *,
        email: str | None = None,
        name: str | None = None,
        tz: str | None = None,
        kind: str | None = None,
        attribute: Mapping[str, Any] | None = None,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> Given:
        """Return one page of people, by id. A page may have few people although there are more."""
        where = {"email": email, "name": name, "tz": tz, "kind": kind, "attribute": payload_conditions(attribute or {})}
        return Given(query={**where, "limit": limit, "cursor": cursor})

    @listing
    def list(
        self,
        *,
        email: str | None = None,
        name: str | None = None,
        tz: str | None = None,
        kind: str | None = None,
        attribute: Mapping[str, Any] | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Items[PersonView]:
        """Iterate over all people that match, by id."""
        where = {"email": email, "name": name, "tz": tz, "kind": kind, "attribute": attribute, "limit": page_size}
        return all_pages(People.page, self, lambda page: page.people, where)

    @operation("GET", "/v1/people/{person_id}", Person)
    def get(self, person_id: str) -> Given:
        """Return a person. Its `etag` changes with each change."""
        return Given({"person_id": person_id})

    @operation("PUT", "/v1/people/{person_id}", Person)
    def put(
        self,
        person_id: str,
        tz: str,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        **fields: Unpack[PersonFields],
    ) -> Given:
        """Create or replace a person. With `if_match` or `if_none_match="*"`, nothing unseen is overwritten."""
        headers = {"if-match": if_match, "if-none-match": if_none_match}
        return Given({"person_id": person_id}, body={**fields, "tz": tz}, headers=headers)

    @operation("PATCH", "/v1/people/{person_id}", Person)
    def change(self, person_id: str, *, if_match: str | None = None, **changes: Unpack[PersonChanges]) -> Given:
        """Change some fields of a person. Another time zone moves the plans of all occasions."""
        return Given({"person_id": person_id}, body=dict(changes), headers={"if-match": if_match})

    @operation("DELETE", "/v1/people/{person_id}", type(None))
    def delete(self, person_id: str, *, reason: str = "", if_match: str | None = None) -> Given:
        """Delete a person and their plans, and cancel their waiting jobs."""
        return Given({"person_id": person_id}, {"reason": reason}, headers={"if-match": if_match})

    @operation("GET", "/v1/people/{person_id}/occasions", PersonOccasions)
    def occasions(self, person_id: str, *, limit: int = 100, before: datetime | None = None) -> Given:
        """Return what will be sent to a person next, and what became of earlier occasions."""
        return Given({"person_id": person_id}, {"limit": limit, "before": before})

    @operation("PUT", "/v1/people/{person_id}/occasions/{kind}", Person)
    def put_occasion(
        self, person_id: str, kind: str, date: str, *, if_match: str | None = None, **options: Unpack[OccasionOptions]
    ) -> Given:
        """Add an occasion to a person, or replace the one of this kind."""
        path, body = {"person_id": person_id, "kind": kind}, {**options, "date": date}
        return Given(path, body=body, headers={"if-match": if_match})

    @operation("DELETE", "/v1/people/{person_id}/occasions/{kind}", Person)
    def remove_occasion(self, person_id: str, kind: str, *, if_match: str | None = None) -> Given:
        """Remove an occasion. Nothing is sent for it any more."""
        return Given({"person_id": person_id, "kind": kind}, headers={"if-match": if_match})

    @operation("GET", "/v1/occasions", UpcomingList)
    def upcoming_page(
        self, *, ahead: Length = WEEK, kind: str | None = None, limit: int = PAGE_SIZE, cursor: str | None = None
    ) -> Given:
        """Return one page of what will be sent to whom."""
        return Given(query={"ahead": seconds(ahead), "kind": kind, "limit": limit, "cursor": cursor})

    @listing
    def upcoming(
        self, *, ahead: Length = WEEK, kind: str | None = None, page_size: int = PAGE_SIZE
    ) -> Items[UpcomingView]:
        """Iterate over what will be sent to whom, soonest first, with what is overdue."""
        where = {"ahead": ahead, "kind": kind, "limit": page_size}
        return all_pages(People.upcoming_page, self, lambda page: page.upcoming, where)


class Users(Resource[S]):
    """People in the form of a user service with birthdays, in camel case."""

    @operation("POST", "/user", User)
    def create(
        self,
        firstName: str,  # noqa: N803 - as the route names it
        timezone: str,
        *,
        lastName: str = "",  # noqa: N803
        birthday: str | None = None,
        email: str | None = None,
    ) -> Given:
        """Create a user."""
        options = given({"birthday": birthday, "email": email})
        return Given(body={"firstName": firstName, "lastName": lastName, "timezone": timezone, **options})

    @operation("GET", "/user/{user_id}", User)
    def get(self, user_id: str) -> Given:
        """Return a user."""
        return Given({"user_id": user_id})

    @operation("PUT", "/user/{user_id}", User)
    def change(self, user_id: str, *, if_match: str | None = None, **changes: Unpack[UserFields]) -> Given:
        """Change the given fields of a user."""
        return Given({"user_id": user_id}, body=dict(changes), headers={"if-match": if_match})

    @operation("DELETE", "/user/{user_id}", type(None))
    def delete(self, user_id: str, *, if_match: str | None = None) -> Given:
        """Delete a user. Nothing is sent any more."""
        return Given({"user_id": user_id}, headers={"if-match": if_match})
