"""Live events: what happens to jobs, as it happens."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mainspring.client.connection import Connection
from mainspring.client.errors import ClientError, ServiceUnreachable, Unauthorized
from mainspring.client.exchange import LATER, Attempts
from mainspring.client.request import Answer, Request, path_of
from mainspring.client.sse import Decoder, Frame
from mainspring.client.steps import Item, Items, Open, Pause, Read, Step, Steps

PATH = "/v1/events"
SILENCE = 45.0  # seconds without a byte after which the connection counts as lost; the service sends some every 15 s
AFTER_END = 1.0  # seconds; if the service stops, another process may not be there yet


@dataclass(frozen=True, slots=True)
class Target:
    """The thing that a job is about."""

    type: str
    id: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. docs/changes.md lists the kinds and their data."""

    id: str  # the same for every reader: use it as an idempotency key
    at: datetime
    kind: str
    job_id: str | None
    task: str | None
    queue: str | None
    target: Target | None
    data: Mapping[str, Any]
    place: str = field(repr=False)  # `after=event.place` resumes behind this event


@dataclass(frozen=True, slots=True)
class Reset:
    """Events are missing here. Read what you need again; what follows is complete from here on."""

    reason: str  # `lost`: the place is too old, or of another store; `slow`: this reader was too slow
    place: str = field(repr=False)


class Follower:
    """Follows events over as many connections as it takes."""

    def __init__(self, connection: Connection, query: Mapping[str, Any], place: str | None) -> None:
        self.place = place
        self._connection, self._query = connection, query
        self._decoder = Decoder()
        self._has_moved = False

    def open(self, timeout: float = SILENCE) -> Steps[Answer]:
        """Connect, behind the last event that was received. The answer may be an error."""
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.place:
            headers["last-event-id"] = self.place
        self._decoder = Decoder()
        answer: Answer = yield Open(Request("GET", path_of(PATH, {}, self._query), headers, timeout=timeout))
        if answer.status == 200 and not answer.headers.get("content-type", "").startswith("text/event-stream"):
            msg = "it is not a stream of events"
            raise answer.unexpected(msg)
        return answer

    def frames(self) -> Steps[list[Frame] | None]:
        """Return the frames that came now; None at the end of the connection."""
        chunk: bytes | None = yield Read()
        return None if chunk is None else list(self._decoder.feed(chunk))

    def note(self, frame: Frame) -> None:
        """Remember the place."""
        if frame.place is not None:
            self.place = frame.place

    def follow(self) -> Items[Event | Reset]:
        """Yield events without end. A lost connection is resumed; raise if none works for `retry_for` seconds."""
        attempts = Attempts(self._connection)
        while True:
            self._has_moved, pause = False, None
            try:
                answer = yield from self.open()
                pause = (yield from self._read()) if answer.status == 200 else again(answer, attempts)
            except ServiceUnreachable as error:
                if not self._has_moved and (pause := attempts.pause()) is None:
                    raise error from None
            if self._has_moved:
                attempts = Attempts(self._connection)
            if pause:
                yield Pause(pause)

    def _read(self) -> Generator[Step | Item[Event | Reset], Any, float]:
        """Yield the events of one connection; return how long to wait before the next one."""
        while (frames := (yield from self.frames())) is not None:
            for frame in frames:
                item = item_of(frame, self.place)
                self.note(frame)
                self._has_moved |= frame.name != "hello"  # a connection that gives no more than that does not work
                if frame.name == "end":
                    return after_end(frame)
                if item is not None:
                    yield Item(item)
        if not self._has_moved:
            msg = f"{self._connection.url} ends each stream of events at once"
            raise ServiceUnreachable(msg, sent=True)
        return 0.0


def after_end(frame: Frame) -> float:
    """Return how long to wait after the service has ended a stream."""
    reason = frame.data["reason"]
    if reason == "revoked":
        raise Unauthorized(401, {"code": "unauthorized", "detail": "the token was revoked; the events have ended"})
    return 0.0 if reason == "lifetime" else AFTER_END


def again(answer: Answer, attempts: Attempts) -> float:
    """Return when to try again to open a stream; raise what the answer says if that does not help."""
    pause = attempts.pause(answer.retry_after) if answer.status in LATER else None
    if pause is None:
        raise answer.error()
    return pause


def item_of(frame: Frame, place: str | None) -> Event | Reset | None:
    """Return what a frame tells the caller; None if it only says how the stream is."""
    place = frame.place or place or ""
    if frame.name in {"", "hello", "end"}:
        return None
    if frame.name == "reset":
        return Reset(frame.data["reason"], place)
    try:
        return event_of(frame.data, place)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"cannot read an event of the kind {frame.name!r}: {error!r}"
        raise ClientError(msg) from None


def event_of(data: Mapping[str, Any], place: str) -> Event:
    target = data["target"]
    return Event(
        id=data["id"],
        at=datetime.fromisoformat(data["at"]),
        kind=data["kind"],
        job_id=data["job_id"],
        task=data["task"],
        queue=data["queue"],
        target=None if target is None else Target(target["type"], target["id"]),
        data=data["data"],
        place=place,
    )
