"""What routes about people and their occasions answer."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import Field

from mainspring.service.schedule_views import EntryView
from mainspring.service.views import Moment, View

CREATED = "when it was first written; null: by a version that did not record it"
UPDATED = "when it was last changed; null: not since it was written by such a version"


class OccasionView(View):
    kind: str
    date: str
    at: str
    feb29: str
    late: str
    grace: str
    template: str | None
    channel: str | None


class PersonView(View):
    """A person."""

    id: str
    tz: str
    first_name: str
    last_name: str
    email: str | None
    addresses: dict[str, str]
    locale: str | None
    quiet: str | None
    attributes: dict[str, Any]
    occasions: list[OccasionView]
    created_at: Moment | None = Field(description=CREATED)
    updated_at: Moment | None = Field(description=UPDATED)


class PeoplePage(View):
    people: list[PersonView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")
    unreadable: dict[str, str] = Field(description="people that only a newer version can read, and why")


class UpcomingView(View):
    """A message that will be sent."""

    person: str
    kind: str
    on: date = Field(description="the local date that it is for")
    due: Moment
    local: str = Field(description="the same in the local time of the person")
    tz: str


class UpcomingList(View):
    upcoming: list[UpcomingView]
    cursor: str | None = Field(description="pass it as `cursor` to get the next page; null: this was the last")


class OccasionEntryView(EntryView):
    kind: str
    on: date


class PersonOccasions(View):
    """What will be sent to a person, and what became of earlier occasions."""

    upcoming: list[UpcomingView]
    ledger: list[OccasionEntryView]
