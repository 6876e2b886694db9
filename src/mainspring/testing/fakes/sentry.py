"""A fake of the server to which Sentry's clients send errors."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

from mainspring.testing.fakes.http_server import Answer, FakeServer, Request

PATH = re.compile(r"/api/(\d+)/envelope/")
KEY = re.compile(r"\bsentry_key=(\w+)")


class FakeSentry(FakeServer):
    """Takes envelopes with events. Give your client `sentry.dsn`.

    As with Sentry, an event with the id of an earlier one is accepted and ignored.
    """

    def __init__(self, project: int = 1, key: str = "public") -> None:
        super().__init__()
        self.project = project
        self.key = key
        self.events: list[dict[str, Any]] = []

    @property
    def dsn(self) -> str:
        return f"{self.url.replace('://', f'://{self.key}@')}/{self.project}"

    def answer(self, request: Request) -> Answer:
        match = PATH.fullmatch(request.path)
        if request.method != "POST" or match is None or int(match[1]) != self.project:
            return Answer(404, {"detail": "not found"})
        if self._key_of(request) != self.key:
            return Answer(403, {"detail": "the DSN's key is missing or wrong"})
        try:
            header, events = parse_envelope(body_of(request))
        except (ValueError, KeyError) as error:
            return Answer(400, {"detail": f"not an envelope: {error!r}"})
        self._keep(events)
        return Answer(body={"id": header.get("event_id")})

    def _key_of(self, request: Request) -> str | None:
        found = KEY.search(request.headers.get("x-sentry-auth", ""))
        return found[1] if found else request.query.get("sentry_key", [None])[-1]

    def _keep(self, events: list[dict[str, Any]]) -> None:
        known = {event["event_id"] for event in self.events}
        self.events += [event for event in events if event["event_id"] not in known]


def body_of(request: Request) -> bytes:
    return gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body


def parse_envelope(body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header of an envelope and its events. Items of other types are left out."""
    first, _, rest = body.partition(b"\n")
    events = []
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length", len(rest.partition(b"\n")[0]))
        payload, rest = rest[:length], rest[length:].removeprefix(b"\n")
        if header["type"] == "event":
            events.append(json.loads(payload))
    return json.loads(first), events
