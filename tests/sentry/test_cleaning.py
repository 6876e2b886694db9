"""A planted secret is in nothing that Sentry gets: log lines, breadcrumbs, requests, variables, spans."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration

from mainspring import Chunk, Mainspring, Redaction
from mainspring.job import Claim
from mainspring.sentry import cleaning, in_child, instrument, instrument_by_setting
from mainspring.testing import manual
from mainspring.testing.fakes import FakeSentry
from tests.cli.waiting import wait_until

SECRET = "".join(map(chr, range(65, 80)))  # not in the source, whose lines are part of events
RULES = Redaction(rules=("iban",), tasks={"charge": ("/card/number",)})
log = logging.getLogger("shop")


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://", redact=RULES)


@contextmanager
def client_of(sentry: FakeSentry, **options: Any) -> Iterator[None]:
    """A client that reports log lines, and everything of requests and variables, unless the options say otherwise."""
    own = {"default_integrations": False, "integrations": [LoggingIntegration()], "shutdown_timeout": 0}
    sentry_sdk.init(dsn=sentry.dsn, traces_sample_rate=1.0, **{**own, **options})
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        yield
    sentry_sdk.flush(10)


def sent(sentry: FakeSentry) -> str:
    """Everything that Sentry got, of whatever kind."""
    sentry_sdk.flush(10)
    bodies = [
        gzip.decompress(each.body) if each.headers.get("content-encoding") == "gzip" else each.body
        for each in sentry.received
    ]
    return b"\n".join(bodies).decode()


async def test_lines_of_a_handler_have_no_values_of_its_payload(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def log_in(password: str) -> None:
        log.warning("logging in with %s", password)
        log.error("cannot log in with %s", password, extra={"password": password})
        sentry_sdk.add_breadcrumb(message=f"asked with {password}", data={"url": f"/?q={password}", "password": "x"})
        raise LookupError(password)

    with client_of(sentry):
        async with manual(app) as kit:
            await log_in.enqueue(SECRET)
            await kit.drain()
    line, failed = sentry.events
    assert line["logentry"]["formatted"] == "cannot log in with [redacted]"
    assert line["logentry"]["params"] == ["[redacted]"]
    crumbs = [crumb["message"] for crumb in failed["breadcrumbs"]["values"]]
    assert crumbs == ["logging in with [redacted]", "cannot log in with [redacted]", "asked with [redacted]"]
    assert SECRET not in sent(sentry)


async def test_lines_of_a_chunk_have_no_values_of_any_of_its_payloads(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1, chunk=Chunk(2))
    async def log_in(items: list[dict[str, str]]) -> None:
        log.warning("logging in with %s", [item["iban"] for item in items])
        raise LookupError(" and ".join(item["iban"] for item in items))

    with client_of(sentry):
        async with manual(app) as kit:
            await log_in.enqueue_many([{"iban": SECRET}, {"iban": f"{SECRET}2"}])
            await kit.drain()
    assert len(sentry.events) == 2
    assert SECRET not in sent(sentry)


async def test_rules_of_the_application_hold_everywhere(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)
    card = {"card": {"number": SECRET}}
    with client_of(sentry, include_local_variables=True), sentry_sdk.isolation_scope() as scope:
        scope.set_extra("order", {"iban": SECRET, **card})
        scope.set_context("order", card)
        scope.set_tag("iban", SECRET)
        sentry_sdk.add_breadcrumb(message=f"charged {SECRET}", data=card)
        sentry_sdk.capture_message(f"cannot charge {SECRET}")
        with sentry_sdk.start_span(op="db", name=f"iban={SECRET}") as span:
            span.set_data("iban", SECRET)
    (event,) = sentry.events
    assert event["message"] == "cannot charge [redacted]"  # the same value is under a secret key elsewhere
    assert event["extra"]["order"] == {"iban": "[redacted]", "card": {"number": "[redacted]"}}
    assert SECRET not in sent(sentry)


async def test_a_request_that_an_integration_adds_is_cleaned(app: Mainspring, sentry: FakeSentry) -> None:
    """Integrations add it by an event processor of the request's scope, which runs after all others."""
    instrument(app)

    def add_request(event: Any, _hint: Any) -> Any:
        data = {"task": "charge", "payload": {"card": {"number": SECRET}, "password": f"{SECRET}2"}}
        headers = {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET}
        about = {"url": "http://x/", "query_string": f"token={SECRET}", "headers": headers, "cookies": {"ms": SECRET}}
        return {**event, "request": {**about, "data": data}}

    def fail(password: str) -> None:
        number = {"card": {"number": password}}
        raise RuntimeError(f"no card {number}")

    with client_of(sentry, include_local_variables=True), sentry_sdk.isolation_scope() as scope:
        scope.add_event_processor(add_request)
        try:
            fail(SECRET)
        except RuntimeError:
            sentry_sdk.capture_exception()
    (event,) = sentry.events
    assert event["request"]["data"]["task"] == "charge"
    frame = event["exception"]["values"][0]["stacktrace"]["frames"][-1]
    assert frame["vars"] == {"password": "[redacted]", "number": {"card": {"number": "[redacted]"}}}
    assert SECRET not in sent(sentry)


def test_a_line_with_a_secret_has_no_parameters(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)
    with client_of(sentry):
        log.error("password=%s of %s", SECRET, "ada")
        log.error("hello, %s", "ada")
    first, second = (event["logentry"] for event in sentry.events)
    assert (first["formatted"], first["params"]) == ("password=[redacted] of ada", ["[redacted]", "[redacted]"])
    assert (second["formatted"], second["params"]) == ("hello, ada", ["ada"])


def test_logs_that_are_sent_as_logs_are_cleaned(app: Mainspring, sentry: FakeSentry) -> None:
    with client_of(sentry, enable_logs=True):
        instrument(app)
        log.warning("password=%s", SECRET, extra={"iban": SECRET})
    assert "password=[redacted]" in sent(sentry)
    assert SECRET not in sent(sentry)


def test_hooks_of_the_program_come_first(app: Mainspring, sentry: FakeSentry) -> None:
    """What they add is cleaned too, and what they drop is not sent. It does not matter which call comes first."""

    def before_send(event: Any, _hint: Any) -> Any:
        return None if event["message"] == "drop it" else {**event, "extra": {"iban": SECRET}}

    def before_breadcrumb(crumb: Any, _hint: Any) -> Any:
        return {**crumb, "message": f"password={SECRET}"}

    instrument(app)
    with client_of(sentry, before_send=before_send, before_breadcrumb=before_breadcrumb):
        sentry_sdk.capture_message("drop it")
        sentry_sdk.add_breadcrumb(message="x")
        sentry_sdk.capture_message("send it")
    (event,) = sentry.events
    assert event["extra"] == {"iban": "[redacted]"}
    assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["password=[redacted]"]
    assert SECRET not in sent(sentry)


def test_what_cannot_be_cleaned_is_not_sent(
    app: Mainspring, sentry: FakeSentry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError

    instrument(app)
    monkeypatch.setattr(cleaning, "Cleaner", broken)
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        sentry_sdk.add_breadcrumb(message=SECRET)
        sentry_sdk.capture_message(SECRET)
        assert not scope._breadcrumbs
    assert SECRET not in sent(sentry)


def test_a_child_process_has_the_rules_of_its_parent(sentry: FakeSentry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent may have more of them than the code, from settings."""
    monkeypatch.setattr("mainspring.sentry.parents", [])
    monkeypatch.setattr(cleaning, "redacting", type(cleaning.redacting)())
    parent = Mainspring("memory://", redact=RULES)
    instrument_by_setting(parent, sentry.dsn)
    (observer,) = parent.runtime.observers.all
    assert observer.child is not None
    cleaning.redacting.clear()

    claim = Claim("j1", 1, "charge", "default", f'{{"card": {{"number": "{SECRET}"}}}}', 2, 0, 1, 0, 0, 0, 0)
    with in_child(claim, observer.child[1]):
        sentry_sdk.capture_message(f"charging {SECRET}")
    assert SECRET not in sent(sentry)
    (event,) = sentry.events
    assert event["message"] == "charging [redacted]"


SERVED = """
from mainspring import Mainspring
from mainspring.service import enqueue

app = Mainspring("memory://")


async def broken(request, body, *, traced):
    raise RuntimeError(f"cannot enqueue {body}")


enqueue.prepare = broken
"""


@pytest.mark.slow  # a real process
async def test_a_request_that_fails_is_reported_without_its_body(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    with FakeSentry() as sentry, (tmp_path / "log").open("wb") as out:
        command = ["-m", "mainspring", "serve", "served:app", "--no-worker", "--port", "0", "--log-format", "json"]
        given = {**os.environ, "MAINSPRING_SENTRY_DSN": sentry.dsn, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stdout=out, stderr=out, env=given)
        try:
            lines = (tmp_path / "log").read_text
            wait_until(lambda: "service_started" in lines(), lines)
            url = next(json.loads(line)["url"] for line in lines().splitlines() if "service_started" in line)
            async with aiohttp.ClientSession() as session:
                body = {"task": "charge", "payload": {"password": SECRET}}
                async with session.post(f"{url}/v1/jobs", json=body) as answer:
                    assert answer.status == 500
            wait_until(lambda: sentry.events, lines)
        finally:
            process.kill()
            process.wait()
        assert all("data" not in event.get("request", {}) for event in sentry.events)
        assert not any("vars" in frame for event in sentry.events for frame in cleaning.frames_in(event))
        assert SECRET not in sent(sentry)
    assert SECRET not in lines()
