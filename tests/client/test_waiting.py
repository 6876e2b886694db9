"""Waiting for the end of a job."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from mainspring.client import Forbidden, NotFound, ServiceUnreachable
from mainspring.client.connection import Connection
from mainspring.client.operation import Resource
from mainspring.client.request import Answer
from mainspring.client.resources.jobs import Jobs
from mainspring.client.steps import Done, Open, Pause, Read, Send, resume
from mainspring.errors import JobFailed
from tests.client.serving import SOON, Pauses, Service, connected
from tests.client.test_events import HELLO, STREAM, change, frame
from tests.client.test_exchange import LOST, NEVER_SENT, problem

# -- with a service -------------------------------------------------------------------------------


def test_wait_returns_the_job_when_it_has_ended(kind: str, working: Service) -> None:
    with connected(kind, working.url) as client:
        job_id = client.enqueue("welcome", {"guest": "Ada"}, delay=timedelta(milliseconds=200)).id
        job = client.jobs.wait(job_id, timeout=SOON)
        assert (job.id, job.status, job.result) == (job_id, "completed", "welcome, Ada")
        assert client.jobs.wait(job_id).status == "completed"
        assert client.jobs.result(job_id, timedelta(seconds=SOON)) == "welcome, Ada"


def test_result_raises_what_the_job_died_of(kind: str, working: Service) -> None:
    with connected(kind, working.url) as client:
        job_id = client.enqueue("fail", {"why": "no luck"}).id
        with pytest.raises(JobFailed, match="no luck") as caught:
            client.jobs.result(job_id, timeout=SOON)
    assert caught.value.failure is not None
    assert (caught.value.failure.type, caught.value.status) == ("ValueError", "dead_letter")


def test_wait_ends_in_time(client: Any) -> None:
    job_id = client.enqueue("welcome", {"guest": "Ada"}).id
    with pytest.raises(TimeoutError, match=r"is pending after 0\.2 s"):
        client.jobs.wait(job_id, timeout=0.2)
    with pytest.raises(TimeoutError):
        client.jobs.wait(job_id, timeout=0)


def test_a_job_that_is_not_there_is_not_waited_for(client: Any) -> None:
    with pytest.raises(NotFound):
        client.jobs.wait("01a1e97f-aaed-75b2-ab53-9e8f6949155c", timeout=SOON)


# -- without a network ----------------------------------------------------------------------------


def job(status: str) -> Answer:
    moment = "2027-03-01T08:00:00.000Z"
    data: dict[str, Any] = dict.fromkeys(
        ("started_at", "finished_at", "expires_at", "start_by", "timeout_at", "worker", "timeout", "dedupe_key",
         "target", "progress", "result", "failure", "fingerprint", "waits_for", "payload", "replay_of")
    )  # fmt: skip
    data |= {"id": "j1", "task": "t", "queue": "q", "status": status, "priority": "normal", "reason": "", "version": ""}
    data |= {
        "run_at": moment,
        "created_at": moment,
        "updated_at": moment,
        "attempts": 0,
        "max_attempts": 1,
        "crashes": 0,
    }
    data |= {"revision": "0-pending-0", "tags": [], "headers": {}, "planned_steps": [], "cancel_requested": False}
    return Answer(200, {}, json.dumps(data).encode())


class Script:
    """Gives a wait the outcomes of its steps. An outcome that is a tuple takes so many seconds."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.pauses, self.seen = list(outcomes), Pauses(), list[str]()
        self.connection = Connection("http://service", 10.0, 30.0, clock=self.pauses.clock)
        self.timeouts: list[float | None] = []

    def wait(self, timeout: float | None = None) -> Any:
        steps: Any = Jobs.wait.steps(Resource[Any](self), "j1", timeout)
        step = resume(steps)
        while not isinstance(step, Done):
            self.seen.append(type(step).__name__)
            assert isinstance(step, Open | Read | Send | Pause)
            if isinstance(step, Pause):
                self.pauses.wait(step.seconds)
                step = resume(steps)
                continue
            if isinstance(step, Open):
                self.timeouts.append(step.request.timeout)
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, tuple):
                outcome, seconds = outcome
                self.pauses.now += seconds
            given = {"error": outcome} if isinstance(outcome, Exception) else {"outcome": outcome}
            step = resume(steps, **given)
        assert self.outcomes == []
        return step.value.status


def test_a_finished_job_needs_no_stream() -> None:
    script = Script(job("cancelled"))
    assert script.wait() == "cancelled"


def test_a_job_that_ends_before_the_stream_begins_is_noticed() -> None:
    assert Script(job("running"), STREAM, HELLO, job("completed")).wait() == "completed"


def test_nothing_is_asked_for_while_nothing_happens() -> None:
    alive = b": still here\nid: 7\n\n"
    script = Script(job("pending"), STREAM, HELLO, job("pending"), alive, alive, change("9"), job("completed"))
    assert script.wait() == "completed"
    assert script.seen == ["Send", "Open", "Read", "Send", "Read", "Read", "Read", "Send"]


def test_a_lost_stream_is_resumed() -> None:
    script = Script(
        job("pending"), STREAM, HELLO, job("running"), LOST, job("running"), STREAM, HELLO, job("running"), None,
        STREAM, HELLO, job("completed"),
    )  # fmt: skip
    assert script.wait() == "completed"
    assert script.pauses.seen == []


def test_the_end_of_a_stream_and_a_reset_are_not_the_end_of_the_wait() -> None:
    script = Script(
        job("pending"), STREAM, HELLO, job("running"), frame("end", "4", reason="lifetime"), job("running"), STREAM,
        frame("reset", "5", reason="lost"), job("completed"),
    )  # fmt: skip
    assert script.wait() == "completed"


def test_without_a_stream_the_job_is_looked_at_again_and_again() -> None:
    no = problem(429, "too_many_streams", **{"retry-after": "30"})
    script = Script(job("pending"), no, job("pending"), no, job("pending"), no, job("completed"))
    assert script.wait() == "completed"
    assert script.pauses.seen == [1.0, 1.0]


def test_a_token_that_may_not_read_ends_the_wait() -> None:
    with pytest.raises(Forbidden):
        Script(problem(403, "forbidden")).wait()
    with pytest.raises(Forbidden):
        Script(job("pending"), problem(403, "forbidden")).wait()


def test_a_service_that_stays_away_ends_the_wait() -> None:
    with pytest.raises(ServiceUnreachable):
        Script(job("pending"), STREAM, HELLO, job("pending"), LOST, *[NEVER_SENT] * 100).wait()


def test_reads_become_shorter_towards_the_end() -> None:
    alive = b": still here\nid: 7\n\n"
    script = Script(
        job("pending"), STREAM, HELLO, job("pending"), (alive, 15), STREAM, HELLO, job("pending"), (LOST, 25),
        job("pending"),
    )  # fmt: skip
    with pytest.raises(TimeoutError):
        script.wait(40.0)
    assert script.timeouts == [40.0, 25.0]


def test_a_wait_without_a_timeout_still_notices_a_dead_connection() -> None:
    script = Script(job("pending"), STREAM, HELLO, job("completed"))
    script.wait()
    assert script.timeouts == [45.0]
