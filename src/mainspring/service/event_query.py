"""Which events a client asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mainspring.service.bodies import Body, Name
from mainspring.service.event_frames import Names
from mainspring.service.guard import Caller
from mainspring.service.live import Wish
from mainspring.service.separation import changes_for
from mainspring.stores.feed import ChangeFilter, ChangeKind, parse_cursor

MOST_VALUES = 200  # of one field of a filter
GivenNames = Literal[Names.KIND, Names.JOB]
Place = Annotated[str, StringConstraints(max_length=10_000)]


class EventFilter(Body):
    """Selects events. Every field that is given must match; a list matches any of its values, `tag` all of them."""

    kind: list[ChangeKind] = Field(default=[], max_length=MOST_VALUES)
    queue: list[Name] = Field(default=[], max_length=MOST_VALUES)
    task: list[Name] = Field(default=[], max_length=MOST_VALUES)
    job: list[Name] = Field(default=[], max_length=MOST_VALUES, description="ids of jobs")
    tag: list[Name] = Field(default=[], max_length=MOST_VALUES, description="all of them")
    target_type: Name | None = None
    target_id: Annotated[str, StringConstraints(min_length=1, max_length=1_000)] | None = None

    def to_filter(self) -> ChangeFilter:
        return ChangeFilter(
            kinds=tuple(self.kind),
            queues=tuple(self.queue),
            tasks=tuple(self.task),
            jobs=tuple(self.job),
            tags=tuple(self.tag),
            target_type=self.target_type,
            target_id=self.target_id,
        )


class EventQuery(EventFilter):
    """What `GET /v1/events` takes."""

    last_event_id: Place | None = Field(
        default=None, description="the id of the last event that was received; the header Last-Event-ID wins"
    )
    names: GivenNames = Field(default=Names.KIND, description="`job`: events are called job:created and so on")


class Subscribe(Body):
    """The first message on a WebSocket."""

    subscribe: Annotated[str, StringConstraints(pattern="^events$")] = Field(description="always `events`")
    filter: EventFilter = EventFilter()
    since: Place | None = Field(default=None, description="the id of the last event that was received")
    names: GivenNames = Names.KIND
    token: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="for browsers, which cannot send the Authorization header"
    )


def wish_of(caller: Caller, asked: EventFilter, after: str | None, names: Names) -> Wish:
    """Return what a client wants and may have. Raises ConfigurationError if its filter or its cursor is invalid."""
    return Wish(changes_for(caller, asked.to_filter()), parse_cursor(after or None), names)
