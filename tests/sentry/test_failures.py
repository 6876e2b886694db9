"""Failed runs as events of Sentry."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration

from mainspring import Cancel, ConfigurationError, Discard, Mainspring, Retry, Snooze, Status
from mainspring.errors import Failure
from mainspring.job import Claim, Move, Outcome
from mainspring.observer import RunEnd
from mainspring.redaction import DEFAULT, Redaction
from mainspring.sentry import instrument
from mainspring.sentry.failures import MAX_PAYLOAD_CHARS, FailedRun, event_of, frames_of, scrubbed, shown_payload
from mainspring.testing import manual
from mainspring.testing.clock import ManualClock
from mainspring.testing.fakes import FakeSentry
from mainspring.trace import EXAMPLE
from tests.conformance.scenario import by_silence

SECRET = "".join(map(chr, range(65, 80)))  # not in the source, whose lines are part of events
TRACEBACK = """\
Traceback (most recent call last):
  File "/app/earlier.py", line 3, in early
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/handlers.py", line 94, in handle
    profile = self.slack.profile(user.slack_id)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/site-packages/slack/client.py", line 7, in profile
SlackError: user_not_found
"""


def events(sentry: FakeSentry) -> list[dict[str, Any]]:
    sentry_sdk.flush(10)
    return sentry.events


async def test_a_job_that_gives_up_is_one_event(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(queue="mail", retry=Retry.fixed(5, max_attempts=2))
    async def welcome(guest: str, password: str) -> None:
        sentry_sdk.add_breadcrumb(message="asked for the guest")
        sentry_sdk.set_tag("tenant", "7")
        raise LookupError(f"no guest {guest}")

    async with manual(app) as kit:
        job = await welcome.enqueue("Ada", password=SECRET)
        await kit.drain()
        assert events(sentry) == []
        await kit.time.advance(seconds=6)
        failure = (await job.get()).failure
    (event,) = events(sentry)
    assert failure is not None
    assert (event["level"], event["transaction"]) == ("error", "welcome")
    assert event["fingerprint"] == ["welcome", failure.fingerprint]
    assert event["tags"] == {
        "task": "welcome",
        "queue": "mail",
        "attempt": "2",
        "job_id": job.id,
        "outcome": "dead_letter",
        "tenant": "7",
    }
    assert event["extra"]["payload"]["guest"] == "Ada"
    assert SECRET not in str(event)
    assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["asked for the guest"]
    (value,) = event["exception"]["values"]
    assert (value["type"], value["value"]) == ("LookupError", "no guest Ada")
    last = value["stacktrace"]["frames"][-1]
    assert (last["function"], "vars" in last) == ("welcome", False)
    assert "raise LookupError" in last["context_line"]


async def test_a_group_of_exceptions_is_reported_as_it_was_raised(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def parallel() -> None:
        raise ExceptionGroup("several", [LookupError("first"), OSError("second")])

    async with manual(app) as kit:
        await parallel.enqueue()
        await kit.drain()
    (event,) = events(sentry)
    assert {value["type"] for value in event["exception"]["values"]} == {"ExceptionGroup", "LookupError", "OSError"}


async def test_each_failure_can_be_reported(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, failures="each", local_variables=True)

    @app.task(retry=Retry.fixed(5, max_attempts=2))
    def work(n: int) -> None:
        raise ValueError(n)

    async with manual(app) as kit:
        await work.enqueue(7)
        await kit.time.advance(seconds=6)
    found = events(sentry)
    assert [(each["level"], each["tags"]["outcome"]) for each in found] == [
        ("warning", "retry"),
        ("error", "dead_letter"),
    ]
    assert len({each["event_id"] for each in found}) == 2
    assert len({tuple(each["fingerprint"]) for each in found}) == 1
    assert found[0]["exception"]["values"][-1]["stacktrace"]["frames"][-1]["vars"] == {"n": "7"}


@pytest.mark.parametrize(("end", "reported"), [(Snooze(60), 0), (Cancel("no"), 0), (Discard("hopeless"), 1)])
async def test_ends_that_are_not_failures_are_not_reported(
    app: Mainspring, sentry: FakeSentry, end: Exception, reported: int
) -> None:
    instrument(app, failures="each")

    @app.task()
    async def work() -> None:
        raise end

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    assert len(events(sentry)) == reported


async def test_a_failure_of_another_program_is_reported_too(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def far(n: int) -> None: ...

    async with manual(app):
        job = await far.using(trace={"sentry-trace": f"{EXAMPLE[3:35]}-00f067aa0ba902b7-1"}).enqueue(7)
        (lease,) = await app.leases.claim("js-worker")
        await lease.fail(Failure("TypeError", "x is undefined", "at far.js:7"))
    (event,) = events(sentry)
    (value,) = event["exception"]["values"]
    assert (value["type"], value["value"], "stacktrace" in value) == ("TypeError", "x is undefined", False)
    assert (event["tags"]["job_id"], event["contexts"]["job"]["worker"]) == (job.id, "js-worker")
    assert event["contexts"]["trace"]["trace_id"] == EXAMPLE[3:35]
    assert event["extra"] == {"payload": {"n": 7}, "traceback": "at far.js:7"}


async def test_a_timeout_has_its_message_and_place(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1, timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        job = await slow.enqueue()
        with pytest.raises(Exception, match="timeout"):
            await job.result(10)
    (event,) = events(sentry)
    (value,) = event["exception"]["values"]
    assert (value["type"], value["value"]) == ("TimeoutError", "ran longer than its timeout of 0.01 s")
    assert "slow" in [frame["function"] for frame in value["stacktrace"]["frames"]]


async def test_redact_decides_what_sentry_sees(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, redact=lambda payload: dict.fromkeys(payload, "…"))

    @app.task(max_attempts=1)
    async def work(iban: str) -> None:
        raise LookupError

    async with manual(app) as kit:
        await work.enqueue(SECRET)
        await kit.drain()
    (event,) = events(sentry)
    assert event["extra"]["payload"] == {"iban": "…"}
    assert SECRET not in str(event)


async def test_the_rules_of_the_application_hold_for_payloads_and_messages(sentry: FakeSentry) -> None:
    app = Mainspring("memory://", redact=Redaction(tasks={"work": ("/card/number",)}))
    instrument(app)

    @app.task(max_attempts=1)
    async def work(card: dict[str, str], password: str) -> None:
        try:
            raise KeyError(password)
        except KeyError as error:
            msg = f"cannot charge {card['number']}"
            raise LookupError(msg) from error

    async with manual(app) as kit:
        await work.enqueue({"number": SECRET, "name": "Ada"}, f"{SECRET}2")
        await kit.drain()
    (event,) = events(sentry)
    assert event["extra"]["payload"]["card"] == {"number": "[redacted]", "name": "Ada"}
    assert [each["value"] for each in event["exception"]["values"]] == ["'[redacted]'", "cannot charge [redacted]"]
    assert SECRET not in str(event)


def test_a_redaction_that_fails_leaves_the_payload_out(caplog: pytest.LogCaptureFixture) -> None:
    assert shown_payload('{"a": 1}', lambda payload: payload["b"]) == "<left out: its redaction failed>"
    assert "redaction_failed" in caplog.text


def test_a_long_payload_is_left_out() -> None:
    text = f'"{"x" * MAX_PAYLOAD_CHARS}"'
    assert shown_payload(text, lambda payload: payload) == "<50,002 characters of JSON>"


@pytest.mark.parametrize("payload", [{"a": [{"token": "x1"}]}, [[{"password": "x1"}]], {"secret": "x1"}])
def test_values_with_secret_names_are_removed_at_any_depth(payload: Any) -> None:
    assert "x1" not in str(scrubbed(DEFAULT, "work", payload))


def test_frames_are_read_from_the_last_traceback() -> None:
    assert [(f["function"], f["lineno"], f["context_line"], f["in_app"]) for f in frames_of(TRACEBACK)] == [
        ("handle", 94, "profile = self.slack.profile(user.slack_id)", True),
        ("profile", 7, None, False),
    ]


def test_a_dead_letter_without_a_failure_has_a_message() -> None:
    run = FailedRun(
        "k", "j1", "work", "default", 1, 1, 0, "w1", "{}", None, is_final=True, failure=None, reason="buried"
    )
    event, _ = event_of(run, DEFAULT, None, local_variables=False)
    assert (event["message"], event["fingerprint"]) == ("work buried", ["work", "buried"])


async def test_the_log_line_of_a_dead_letter_is_not_a_second_event(app: Mainspring, sentry: FakeSentry) -> None:
    sentry_sdk.init(dsn=sentry.dsn, default_integrations=False, integrations=[LoggingIntegration()])
    instrument(app)

    @app.task(max_attempts=1)
    async def work() -> None:
        logging.getLogger("user").error("my own line")
        raise LookupError

    async with manual(app) as kit:
        await work.enqueue()
        await kit.drain()
    found = events(sentry)
    assert [each.get("logger") for each in found] == ["user", "mainspring"]
    assert found[0]["tags"]["task"] == "work"


async def test_without_a_client_nothing_happens(app: Mainspring) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def work() -> None:
        raise LookupError

    async with manual(app) as kit:
        job = await work.enqueue()
        await kit.drain()
        assert (await job.get()).trace == {}


def test_an_application_is_instrumented_once(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match='failures is \'all\'; give "final" or "each"'):
        instrument(app, failures="all")  # type: ignore[arg-type]
    instrument(app)
    with pytest.raises(ConfigurationError, match="reports to Sentry already"):
        instrument(app)


async def test_a_job_that_ends_with_a_dead_worker_is_reported_by_the_one_that_notices(sentry: FakeSentry) -> None:
    clock = ManualClock()
    app = Mainspring("memory://", clock=clock)
    instrument(app)

    @app.task()
    async def far(n: int) -> None: ...

    async with app:
        await app.schedules.put("far", "every 1h", far.prepare(7))
        job = await app.jobs.get((await app.schedules.trigger("far")).id)
        await app.leases.claim("dead")
        (takeover,) = await by_silence(app.store, clock, "dead")
        app.runtime.observers.taken_over(job, takeover)
        assert events(sentry) == []
        assert list(sentry.runs.values()) == ["in_progress"]
        for _ in range(2):  # as if two processes told it
            app.runtime.observers.taken_over(job, replace(takeover, status=Status.DEAD_LETTER, crashes=3))
    (event,) = events(sentry)
    assert (event["contexts"]["job"]["worker"], event["contexts"]["job"]["crashes"]) == ("dead", 3)
    assert event["extra"]["payload"] == {"n": 7}
    assert list(sentry.runs.values()) == ["error"]


async def test_a_run_whose_claim_was_lost_is_not_reported(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, failures="each")
    (observer,) = app.runtime.observers.all
    claim = Claim("j1", 1, "work", "default", "{}", 2, 0, 1, 0, 0, 0, 0)
    outcome = Outcome("j1", 1, Move.DEAD, failure=Failure("LookupError", "x"))
    observer.ended(RunEnd(claim, outcome, None, None, "w1"))
    assert events(sentry) == []
