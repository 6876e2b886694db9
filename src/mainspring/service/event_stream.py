"""`GET /v1/events`: changes of the feed as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from mainspring.errors import MainspringError
from mainspring.service.event_frames import Frame, Names, Parcel
from mainspring.service.event_query import EventQuery, wish_of
from mainspring.service.guard import Caller
from mainspring.service.live import Live, Wish
from mainspring.service.problems import Problem, problem_of
from mainspring.service.requests import Router, caller_of, needs
from mainspring.service.tokens import Scope

CHUNK = 16_384  # bytes that are sent at once, so that a client which does not read is noticed
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
router = Router(prefix="/v1", tags=["events"])
EXAMPLE = """retry: 2000
id: MS0yNDgw
event: hello
data: {"at":"2027-03-01T08:00:00.000Z","resumed":false}

id: MS0yNDgx
event: progressed
data: {"id":"1-2481","at":"2027-03-01T08:00:01.250Z","kind":"progressed","job_id":"01983d5c","task":"render",\
"queue":"renders","target":null,"data":{"fraction":0.5,"note":"frame 9"}}

"""
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the events",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
    }
}


def live_of(app: Any) -> Live:
    live: Live = app.state.live
    return live


@router.get(
    "/events",
    summary="Follow events",
    response_class=Response,
    responses=ANSWER,
    **needs(Scope.READ, projects=True, may=("too_many_streams",)),
)
async def follow_events(request: Request, query: Annotated[EventQuery, Query()]) -> Response:
    """Send changes of jobs, queues, workers and schedules as they happen, in order, as server-sent events.

    The first event is `hello`. To resume, send the last id as the header `Last-Event-ID` (browsers do) or as
    `last_event_id`. If events are missing since then, the event `reset` says so.
    """
    wish = wish_of(caller_of(request), query, request.headers.get("last-event-id") or query.last_event_id, query.names)
    return EventResponse(live_of(request.app), caller_of(request), wish)


class EventResponse(Response):
    """The answer that does not end by itself. It says what is wrong before it begins."""

    def __init__(self, live: Live, caller: Caller, wish: Wish) -> None:
        super().__init__()
        self._live, self._caller, self._wish = live, caller, wish

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        del scope
        is_complete = False
        try:
            async with while_connected(receive), self._live.stream(self._caller, self._wish) as stream:
                await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
                is_complete = await stream.run(SseWire(send), self._live.now())
        except MainspringError as error:
            raise problem_of(error) from None
        if is_complete:  # otherwise the client has gone, or has stopped reading
            await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Run the block until its end, or until the client goes."""
    presence = asyncio.timeout(None)
    try:
        async with presence:
            listener = asyncio.create_task(wait_for_disconnect(receive, presence))
            try:
                yield
            finally:
                listener.cancel()
    except TimeoutError:
        if not presence.expired():
            raise


async def wait_for_disconnect(receive: Receive, presence: asyncio.Timeout) -> None:
    """Read on, as a server must to notice that a client goes. What the client sends means nothing."""
    with suppress(Problem):  # it sends more than a request may have
        while not (await receive())["type"].endswith(".disconnect"):
            pass
    presence.reschedule(asyncio.get_running_loop().time())


class SseWire:
    """Sends frames as server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def hello(self, frame: Frame, retry: float) -> None:
        await self._write(b"retry: %d\n%b" % (round(retry * 1000), frame.sse()))

    async def send(self, frame: Frame) -> None:
        await self._write(frame.sse())

    async def send_parcels(self, parcels: Sequence[Parcel], names: Names) -> bool:
        was_sent = False
        for chunk in chunks(event.sse(names) for parcel in parcels for event in parcel):
            if was_sent:
                await asyncio.sleep(0)  # the frames of thousands of events take long to make, and others wait
            await self._write(chunk)
            was_sent = True
        return was_sent

    async def keep_alive(self, place: str) -> None:
        """Send a comment, and the place: it moves on even if no event matches."""
        await self._write(b": still here\nid: %b\n\n" % place.encode())

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def chunks(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join frames into pieces of about CHUNK bytes."""
    pile: list[bytes] = []
    size = 0
    for frame in frames:
        pile.append(frame)
        size += len(frame)
        if size >= CHUNK:
            yield b"".join(pile)
            pile, size = [], 0
    if size:
        yield b"".join(pile)
