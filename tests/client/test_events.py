"""Live events: nothing is lost or repeated when connections break, and gaps are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from mainspring.client import Event, InvalidRequest, Reset, ServiceUnreachable, Unauthorized, UnexpectedAnswer
from mainspring.client.connection import Connection
from mainspring.client.events import Follower
from mainspring.client.request import Answer, Request
from mainspring.client.steps import Item, Open, Pause, Read, resume
from tests.client.serving import Loop, Pauses, Proxy, Service, connected, served, without_sleep
from tests.client.test_exchange import LOST, problem

STREAM = Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, b"")


# -- with a service -------------------------------------------------------------------------------


def place_now(client: Any) -> str:
    """The place from which all later events come."""
    client.enqueue("welcome", {"guest": "first"}, queue=(queue := uuid4().hex))
    follower = Follower(client.runner.connection, {"queue": queue}, None)

    def hello() -> Any:
        yield from follower.open()
        while follower.place is None:
            for frame in (yield from follower.frames()) or ():
                follower.note(frame)
        return follower.place

    from mainspring.client.operation import Procedure

    steps: Any = Procedure(lambda _resource: hello())
    found: str = client._called(steps.__get__(client._target, type(client._target)))()
    return found


def enqueue(client: Any, queue: str, count: int) -> list[str]:
    jobs: list[Any] = [{"task": "welcome", "payload": {"guest": str(n)}, "queue": queue} for n in range(count)]
    return [result.id for result in client.enqueue_many(jobs).results]


def take(events: Iterator[Any], count: int) -> list[Any]:
    found = [next(events) for _ in range(count)]
    events.close()  # type: ignore[attr-defined]
    return found


def test_events_come_in_order_and_by_filter(client: Any) -> None:
    queue, place = uuid4().hex, place_now(client)
    made = enqueue(client, queue, 3)
    client.jobs.cancel(made[1], reason="enough")
    found = take(client.events(after=place, queue=queue, kind=["created", "cancelled"]), 4)
    assert [(event.kind, event.job_id) for event in found] == [
        *(("created", job_id) for job_id in made),
        ("cancelled", made[1]),
    ]
    assert isinstance(found[3], Event)
    assert (found[3].task, found[3].queue, found[3].data["reason"]) == ("welcome", queue, "enough")
    assert found[3].at.tzinfo is not None


def test_an_event_tells_where_to_go_on(client: Any) -> None:
    queue, place = uuid4().hex, place_now(client)
    made = enqueue(client, queue, 1) + enqueue(client, queue, 1) + enqueue(client, queue, 1)
    first = take(client.events(after=place, queue=queue), 1)[0]
    assert [event.job_id for event in take(client.events(after=first.place, queue=queue), 2)] == made[1:]


@pytest.mark.parametrize("size", [1_000, 1_500, 3_000])
def test_broken_connections_lose_and_repeat_nothing(kind: str, client: Any, proxy: Proxy, size: int) -> None:
    queue, place = uuid4().hex, place_now(client)
    made = [job_id for _ in range(12) for job_id in enqueue(client, queue, 1)]
    proxy.cut_after = size
    with connected(kind, proxy.url) as far:
        without_sleep(far)
        found = take(far.events(after=place, queue=queue), 12)
    assert [event.job_id for event in found] == made
    assert proxy.connections > 1


def test_a_place_of_another_store_is_a_reset(kind: str, loop: Loop, client: Any) -> None:
    with served(loop) as other, connected(kind, other.url) as elsewhere:
        enqueue(elsewhere, "mail", 5)
        place = place_now(elsewhere)
    queue = uuid4().hex
    events = client.events(after=place, queue=queue)
    assert isinstance(first := next(events), Reset)
    assert first.reason == "lost"
    made = enqueue(client, queue, 1)
    assert next(events).job_id == made[0]
    events.close()


def test_a_place_that_is_not_one_is_refused(client: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        next(client.events(after="nonsense"))
    assert caught.value.code == "invalid_cursor"


def test_a_stream_that_is_not_read_to_its_end_is_closed(kind: str, service: Service) -> None:
    with connected(kind, service.url) as client:
        queue, place = uuid4().hex, place_now(client)
        enqueue(client, queue, 2)
        take(client.events(after=place, queue=queue), 1)
        pool = client.runner.streams._transport._pool
        assert not [each for each in pool.connections if not each.is_idle()]


# -- without a network ----------------------------------------------------------------------------


def frame(name: str, place: str | None, **data: Any) -> bytes:
    head = "" if place is None else f"id: {place}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def change(place: str | None, name: str = "completed", **more: Any) -> bytes:
    about: dict[str, Any] = {
        "at": "2027-03-01T08:00:02.752Z",
        "job_id": "j1",
        "task": "t",
        "queue": "q",
        "target": None,
        "data": {},
    }
    return frame(name, place, id=f"change-{place}", kind=name, **about | more)


HELLO = frame("hello", "h", at="2027-03-01T08:00:00.000Z", resumed=False)


class Script:
    """Gives a follower the outcomes of its steps. An outcome that is a tuple takes so many seconds."""

    def __init__(self, *outcomes: Any, place: str | None = None) -> None:
        self.outcomes, self.pauses, self.opened = list(outcomes), Pauses(), list[Request]()
        self.connection = Connection("http://service", 10.0, 30.0, clock=self.pauses.clock)
        self.follower = Follower(self.connection, {}, place)

    def items(self, count: int) -> list[Any]:
        """Return so many items; fewer if the script ends before."""
        steps, found = self.follower.follow(), list[Any]()
        step = resume(steps)
        while len(found) < count:
            if isinstance(step, Item):
                found.append(step.value)
                step = resume(steps)
            elif isinstance(step, Pause):
                self.pauses.wait(step.seconds)
                step = resume(steps)
            else:
                assert isinstance(step, Open | Read)
                if isinstance(step, Open):
                    self.opened.append(step.request)
                outcome = self.outcomes.pop(0)
                if isinstance(outcome, tuple):
                    outcome, seconds = outcome
                    self.pauses.now += seconds
                given = {"error": outcome} if isinstance(outcome, Exception) else {"outcome": outcome}
                step = resume(steps, **given)
        steps.close()
        return found

    @property
    def places(self) -> list[str | None]:
        return [request.headers.get("last-event-id") for request in self.opened]


def test_it_resumes_behind_the_last_event_that_was_whole() -> None:
    half = change("3")[:-10]
    script = Script(STREAM, HELLO + change("1"), change("2") + half, LOST, STREAM, HELLO, change("3"))
    assert [event.id for event in script.items(3)] == ["change-1", "change-2", "change-3"]
    assert script.places == [None, "2"]


def test_a_sign_of_life_moves_the_place_on_and_a_report_without_id_does_not() -> None:
    late = change(None, "progressed")
    script = Script(STREAM, HELLO, b": still here\nid: 7\n\n", late, None, STREAM, HELLO + change("8"))
    first, second = script.items(2)
    assert (first.kind, first.place, second.place) == ("progressed", "7", "8")
    assert script.places == [None, "7"]


def test_the_end_of_a_stream_is_not_the_end() -> None:
    script = Script(
        STREAM, HELLO, frame("end", "4", reason="lifetime"), STREAM, HELLO, frame("end", "5", reason="closing"),
        STREAM, change("6"),
    )  # fmt: skip
    assert len(script.items(1)) == 1
    assert script.places == [None, "4", "5"]
    assert script.pauses.seen == [1.0]


def test_a_reset_is_an_item() -> None:
    script = Script(
        STREAM, HELLO, frame("reset", "9", reason="slow"), frame("end", "9", reason="slow"), STREAM, change("10")
    )
    reset, event = script.items(2)
    assert reset == Reset("slow", "9")
    assert event.place == "10"
    assert script.places == [None, "9"]


def test_a_revoked_token_ends_it() -> None:
    with pytest.raises(Unauthorized, match="revoked"):
        Script(STREAM, HELLO, frame("end", "4", reason="revoked")).items(1)


def test_a_refused_stream_is_asked_for_again_when_that_helps() -> None:
    later = problem(429, "too_many_streams", **{"retry-after": "7"})
    script = Script(later, problem(503, "store_unavailable"), STREAM, change("1"))
    assert len(script.items(1)) == 1
    assert script.pauses.seen[0] >= 7
    with pytest.raises(Unauthorized):
        Script(problem(401, "unauthorized")).items(1)
    with pytest.raises(UnexpectedAnswer, match="stream of events"):
        Script(Answer(200, {"content-type": "text/html"}, b"")).items(1)


def test_a_service_that_stays_away_is_told() -> None:
    script = Script(STREAM, HELLO + change("1"), *[LOST] * 100)
    with pytest.raises(ServiceUnreachable):
        script.items(2)
    assert sum(script.pauses.seen) < 30


@pytest.mark.parametrize("end", [None, LOST])
def test_connections_that_break_at_once_are_not_tried_for_ever(end: Any) -> None:
    script = Script(*[STREAM, HELLO, end] * 100)
    with pytest.raises(ServiceUnreachable):
        script.items(1)
    assert 5 < len(script.opened) < 30
    assert sum(script.pauses.seen) < 30


def test_a_connection_that_dies_in_silence_leaves_all_the_time_to_come_back() -> None:
    script = Script(STREAM, HELLO + change("1"), (LOST, 45.0), *[LOST] * 6, STREAM, change("2"))
    assert len(script.items(2)) == 2


def test_each_connection_that_works_begins_the_time_anew() -> None:
    away = [LOST] * 6
    script = Script(*away, STREAM, change("1"), *away, STREAM, change("2"), *away, STREAM, change("3"))
    assert len(script.items(3)) == 3


def test_a_target_is_read() -> None:
    (event,) = Script(STREAM, change("1", target={"type": "guest", "id": "7"})).items(1)
    assert (event.target.type, event.target.id) == ("guest", "7")
