"""Which requests are repeated, when, and with what: the steps of a call, without a network."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from mainspring.client import ServiceUnavailable, ServiceUnreachable, SystemHalted, UnexpectedAnswer
from mainspring.client.api import Api
from mainspring.client.connection import Connection
from mainspring.client.errors import InvalidRequest, NotFound
from mainspring.client.models import EnqueuedView
from mainspring.client.operation import Resource
from mainspring.client.request import Answer, Request
from mainspring.client.resources.flow import Batches
from mainspring.client.resources.jobs import Jobs
from mainspring.client.resources.schedules import Schedules
from mainspring.client.steps import Done, Pause, Send, resume
from tests.client.serving import Pauses

DONE = Answer(201, {}, b'{"id": "j1", "created": true}')
LOST = ServiceUnreachable("the connection broke", sent=True)
NEVER_SENT = ServiceUnreachable("there is no connection", sent=False)
JOB: Any = {"task": "welcome"}


def problem(status: int, code: str, **headers: str) -> Answer:
    body = {"code": code, "status": status, "detail": "it says why", "request_id": "r1"}
    return Answer(status, headers, json.dumps(body).encode())


class Script:
    """Answers the requests of a call one after the other, in no time."""

    def __init__(self, *outcomes: Answer | Exception, retry_for: float = 30.0) -> None:
        self.outcomes, self.pauses, self.sent = list(outcomes), Pauses(), list[Request]()
        self.connection = Connection("http://service", 10.0, retry_for, clock=self.pauses.clock)

    def run(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        steps = method.steps(Resource[Any](self), *args, **kwargs)
        step = resume(steps)
        while not isinstance(step, Done):
            if isinstance(step, Pause):
                self.pauses.wait(step.seconds)
                step = resume(steps)
                continue
            assert isinstance(step, Send)
            self.sent.append(step.request)
            outcome = self.outcomes.pop(0)
            given = {"error": outcome} if isinstance(outcome, Exception) else {"outcome": outcome}
            step = resume(steps, **given)
        return step.value


def test_a_repeated_enqueue_has_the_same_key_and_the_same_bytes() -> None:
    script = Script(LOST, NEVER_SENT, problem(503, "store_unavailable"), Answer(502, {}, b"<html>"), DONE)
    assert script.run(Api.enqueue, "welcome", {"at": {3, 1, 2}}) == EnqueuedView(id="j1", created=True)
    assert len(script.sent) == 5
    assert len(set(map(repr, script.sent))) == 1
    assert len(script.sent[0].headers["idempotency-key"]) == 32


def test_each_call_has_a_key_of_its_own() -> None:
    script = Script(DONE, DONE, DONE)
    for _ in range(2):
        script.run(Api.enqueue, "welcome")
    script.run(Api.enqueue, "welcome", idempotency_key="order-7")
    first, second, third = (request.headers["idempotency-key"] for request in script.sent)
    assert first != second
    assert third == "order-7"


def test_pauses_grow_and_end_in_time() -> None:
    script = Script(*[NEVER_SENT] * 50, retry_for=30.0)
    with pytest.raises(ServiceUnreachable, match="is the service running"):
        script.run(Api.enqueue, "welcome")
    assert sum(script.pauses.seen) < 30.0
    assert 7 <= len(script.sent) <= 20
    assert script.pauses.seen[0] <= 0.1
    assert max(script.pauses.seen) <= 5.0


def test_retry_for_zero_tries_once() -> None:
    script = Script(NEVER_SENT, retry_for=0.0)
    with pytest.raises(ServiceUnreachable):
        script.run(Api.enqueue, "welcome")
    assert len(script.sent) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed(status: int) -> None:
    script = Script(problem(status, "store_unavailable", **{"retry-after": "5"}), DONE)
    script.run(Api.enqueue, "welcome")
    (pause,) = script.pauses.seen
    assert 5 <= pause <= 5.2


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True)
    script = Script(problem(503, "store_unavailable", **{"retry-after": later}), DONE)
    script.run(Api.enqueue, "welcome")
    assert 5 < script.pauses.seen[0] < 9


def test_a_retry_after_beyond_the_time_left_is_told_at_once() -> None:
    script = Script(problem(503, "system_halted", **{"retry-after": "30"}))
    with pytest.raises(SystemHalted) as caught:
        script.run(Api.enqueue, "welcome")
    assert caught.value.retry_after == 30
    assert script.pauses.seen == []


def test_a_creation_is_repeated_under_its_key() -> None:
    script = Script(NEVER_SENT, LOST, problem(503, "store_unavailable"), Answer(201, {}, b'{"id": "b1", "jobs": []}'))
    assert script.run(Batches.create, [JOB]).id == "b1"
    assert len({request.headers["idempotency-key"] for request in script.sent}) == 1


def test_a_change_of_what_was_read_is_not_repeated_once_it_was_sent() -> None:
    script = Script(LOST)
    with pytest.raises(ServiceUnreachable, match="not safe to repeat") as caught:
        script.run(Schedules.put, "s", "every 90s", JOB, if_match='"1"')
    assert caught.value.sent
    assert len(script.sent) == 1
    script = Script(problem(503, "store_unavailable"))
    with pytest.raises(ServiceUnavailable):
        script.run(Schedules.put, "s", "every 90s", JOB, if_match='"1"')


def test_a_deletion_whose_answer_was_lost_has_succeeded() -> None:
    assert Script(LOST, problem(404, "not_found")).run(Jobs.delete, "j1") is None
    with pytest.raises(NotFound):
        Script(NEVER_SENT, problem(404, "not_found")).run(Jobs.delete, "j1")


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500])
def test_a_refusal_is_final(status: int) -> None:
    script = Script(problem(status, "some_code"))
    with pytest.raises(Exception, match="it says why"):
        script.run(Api.enqueue, "welcome")
    assert len(script.sent) == 1


def test_an_answer_of_something_else_is_told_as_such() -> None:
    for answer in (Answer(200, {}, b"<html>a proxy</html>"), Answer(200, {}, b'{"id": 7}'), Answer(302, {}, b"moved")):
        with pytest.raises(UnexpectedAnswer, match="check that the URL is the service's"):
            Script(answer).run(Api.enqueue, "welcome")


def test_an_answer_that_cannot_be_read_is_not_shown_if_it_may_have_secrets() -> None:
    from mainspring.client.resources.system import Tokens

    answer = Answer(201, {"content-type": "application/json"}, b'{"text": "msk_secret"}')
    with pytest.raises(UnexpectedAnswer, match="token: Field required") as caught:
        Script(answer).run(Tokens.create, "ci", ["read"])
    assert "msk_secret" not in str(caught.value)


def test_fields_that_a_newer_service_adds_are_ignored() -> None:
    newer = Answer(201, {}, b'{"id": "j1", "created": true, "new": 1}')
    assert Script(newer).run(Api.enqueue, "welcome").id == "j1"


def test_a_claim_may_wait_longer_than_a_timeout() -> None:
    from mainspring.client.resources.leases import Leases

    script = Script(Answer(200, {}, b"{}"))
    with pytest.raises(UnexpectedAnswer):
        script.run(Leases.claim, "w1", wait=30.0)
    assert script.sent[0].timeout == 40.0


def test_a_signal_with_an_id_has_no_key_besides() -> None:
    script = Script(
        *[Answer(201, {}, b'{"id": "s", "key": "k", "payload": null, "sent_at": "2027-03-01T08:00:00Z"}')] * 2
    )
    script.run(Api.signal, "k", id="one")
    script.run(Api.signal, "k")
    assert [("idempotency-key" in request.headers) for request in script.sent] == [False, True]


def test_a_body_that_is_not_an_object_is_still_an_error() -> None:
    with pytest.raises(InvalidRequest):
        Script(Answer(422, {}, b"{}")).run(Api.enqueue, "welcome")


def test_a_redirect_is_told_and_not_followed() -> None:
    with pytest.raises(UnexpectedAnswer, match=r"it leads to https://jobs\.example/"):
        Script(Answer(307, {"location": "https://jobs.example/"}, b"")).run(Api.enqueue, "welcome")


def test_bad_health_is_told_from_a_problem() -> None:
    from mainspring.client.resources.system import Health

    script = Script(Answer(503, {"content-type": "application/json"}, b'{"status": "unavailable"}'))
    assert script.run(Health.ready).status == "unavailable"
    down = Answer(503, {"content-type": "application/problem+json"}, b'{"code": "store_unavailable"}')
    with pytest.raises(ServiceUnavailable):
        Script(*[down] * 100).run(Health.ready)
