"""Events as clients get them: frames of server-sent events, and JSON messages of a WebSocket.

A frame has an `id`, with which a client resumes; a name; and data. Frames of one change are made once, however many
clients get them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic_core import to_json

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.json_data import plain
from mainspring.redaction import DEFAULT, Redaction
from mainspring.stores.feed import Change, ChangeKind
from mainspring.stores.protocol import TakeoverCause

TIMES = ("run_at", "started_at", "timeout_at")  # milliseconds in the feed


class Names(StrEnum):
    """How changes are called."""

    KIND = "kind"  # `completed`, with our fields
    JOB = "job"  # `job:completed`, with fields in camel case; only changes of jobs and workers that have such a name
    PUBLIC = "public"  # `completed`, with the few fields that holders of public tokens may see


JOB_NAMES: Mapping[ChangeKind, str] = {
    ChangeKind.CREATED: "job:created",
    ChangeKind.STARTED: "job:started",
    ChangeKind.PROGRESSED: "job:progress",
    ChangeKind.COMPLETED: "job:completed",
    ChangeKind.RETRYING: "job:retrying",
    ChangeKind.STALLED: "job:stalled",
    ChangeKind.DEAD_LETTERED: "job:dead_letter",
    ChangeKind.CANCELLED: "job:cancelled",
    ChangeKind.WORKER_JOINED: "worker:started",
    ChangeKind.WORKER_LEFT: "worker:stopped",
    ChangeKind.WORKER_DIED: "worker:stopped",
}
CRASHED = "job:crashed"  # instead of `job:stalled`, if the run did not last too long, but its worker died
CAMEL = {
    "worker": "workerId",
    "max_attempts": "maxAttempts",
    "error_type": "errorType",
    "error_code": "errorCode",
    "run_at": "runAt",
    "started_at": "startedAt",
    "timeout_at": "timeoutAt",
}
PUBLIC_KINDS = (  # without starts: a page must not make all workers record them
    ChangeKind.CREATED,
    ChangeKind.PROGRESSED,
    ChangeKind.RETRYING,
    ChangeKind.SNOOZED,
    ChangeKind.RELEASED,
    ChangeKind.SUSPENDED,
    ChangeKind.RESUMED,
    ChangeKind.COMPLETED,
    ChangeKind.DEAD_LETTERED,
    ChangeKind.CANCELLED,
    ChangeKind.RETRIED,
    ChangeKind.DELETED,
)


class Event:
    """A change on its way to clients. Its frames are made at the first use, and shared by all clients."""

    __slots__ = ("_made", "change", "has_place", "redaction")

    def __init__(self, change: Change, redaction: Redaction = DEFAULT, *, has_place: bool = True) -> None:
        self.change = change
        self.redaction = redaction
        self.has_place = has_place  # False: it was held back, so a client that resumes after it would go back
        self._made: dict[tuple[Names, bool], bytes] = {}

    def sse(self, names: Names) -> bytes:
        """Return it for server-sent events; nothing if it has no such name."""
        if (found := self._made.get((names, False))) is None:
            frame = frame_of(self, names)
            found = self._made[names, False] = b"" if frame is None else frame.sse()
        return found

    def message(self, names: Names) -> bytes:
        """Return it for a WebSocket; nothing if it has no such name."""
        if (found := self._made.get((names, True))) is None:
            frame = frame_of(self, names)
            found = self._made[names, True] = b"" if frame is None else frame.message()
        return found


Parcel = Sequence[Event]
"""Events that go to a client together."""


class Frame:
    """What is sent at once: `id` None leaves the client's place as it is."""

    __slots__ = ("data", "event", "id")

    def __init__(self, event: str, data: bytes, id: str | None) -> None:
        self.event = event
        self.data = data
        self.id = id

    def sse(self) -> bytes:
        place = b"" if self.id is None else b"id: %b\n" % self.id.encode()
        return b"%bevent: %b\ndata: %b\n\n" % (place, self.event.encode(), self.data)

    def message(self) -> bytes:
        place = b"null" if self.id is None else b'"%b"' % self.id.encode()
        return b'{"event":"%b","id":%b,"data":%b}' % (self.event.encode(), place, self.data)


def frame_of(event: Event, names: Names) -> Frame | None:
    change = event.change
    place = change.cursor if event.has_place else None
    data = event.redaction.value(change.data, change.task)
    if names is Names.PUBLIC:
        return Frame(change.kind, to_json(public_data(change, data)), place) if change.kind in PUBLIC_KINDS else None
    if names is Names.KIND:
        return Frame(change.kind, to_json(change_data(change, data)), place)
    name = name_of(change)
    return None if name is None else Frame(name, to_json(named_data(change, data)), place)


def name_of(change: Change) -> str | None:
    """Return the name that libraries of other languages use; None if they have none for it."""
    if change.kind is ChangeKind.STALLED and change.data.get("cause") == TakeoverCause.CRASHED:
        return CRASHED
    return JOB_NAMES.get(change.kind)


def change_data(change: Change, data: Mapping[str, Any]) -> dict[str, Any]:
    target = change.target
    return {
        "id": change.id,
        "at": plain(change.at),
        "kind": change.kind.value,
        "job_id": change.job_id,
        "task": change.task,
        "queue": change.queue,
        "target": None if target is None else {"type": target[0], "id": target[1]},
        "data": {name: moment(value) if name in TIMES else value for name, value in data.items()},
    }


def public_data(change: Change, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not about the inside of the system: neither errors nor reasons, workers, queues or tasks."""
    about = {"job_id": change.job_id, "kind": change.kind.value, "at": plain(change.at)}
    if change.kind is not ChangeKind.PROGRESSED:
        return about
    return {**about, **{name: data.get(name) for name in ("fraction", "note")}}


def moment(value: Millis | None) -> Any:
    return None if value is None else plain(to_datetime(value))


def named_data(change: Change, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields under the names that libraries of other languages use."""
    named = {CAMEL.get(name, name): moment(value) if name in TIMES else value for name, value in data.items()}
    about = {"id": change.id, "at": plain(change.at)}
    if change.kind is ChangeKind.WORKER_JOINED:
        return {**named, **about}
    if change.kind in {ChangeKind.WORKER_LEFT, ChangeKind.WORKER_DIED}:
        return {**named, **about, "reason": "stopped" if change.kind is ChangeKind.WORKER_LEFT else "died"}
    return {**job_data(change, data, named), **about}


def job_data(change: Change, data: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if change.kind is ChangeKind.RETRYING:
        due = data.get("run_at")
        more["delayMs"] = None if due is None else max(0, due - to_millis(change.at))
        more["reason"] = data.get("cause", "error")
    return {**named, "jobId": change.job_id, "type": change.task, "queue": change.queue, **more}
