"""A fake of the server to which Sentry's clients send errors."""

from __future__ import annotations

import gzip
import json
import re
from importlib import import_module
from typing import Any

from mainspring.testing.fakes.http_server import Answer, FakeServer, Request

PATH = re.compile(r"/api/(\d+)/envelope/")
KINDS = frozenset({"event", "transaction", "check_in"})
ENDED = frozenset({"ok", "error"})
KEY = re.compile(r"\bsentry_key=(\w+)")


class FakeSentry(FakeServer):
    """Takes envelopes with events, transactions and check-ins of crons. Give your client `sentry.dsn`.

    As with Sentry, an event or transaction with the id of an earlier one is accepted and ignored. A check-in with the
    id of an earlier one changes that one, unless it has ended.
    """

    def __init__(self, project: int = 1, key: str = "public") -> None:
        super().__init__()
        self.project = project
        self.key = key
        self.events: list[dict[str, Any]] = []
        self.transactions: list[dict[str, Any]] = []
        self.check_ins: list[dict[str, Any]] = []  # all that were received, in order

    @property
    def runs(self) -> dict[str, str]:
        """The state of each check-in, by its id."""
        states: dict[str, str] = {}
        for check_in in self.check_ins:
            if states.get(check_in["check_in_id"]) not in ENDED:
                states[check_in["check_in_id"]] = check_in["status"]
        return states

    @property
    def monitors(self) -> dict[str, dict[str, Any]]:
        """The last configuration of each monitor, by its slug."""
        return {each["monitor_slug"]: each["monitor_config"] for each in self.check_ins if each.get("monitor_config")}

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
            header, items = parse_envelope(body_of(request))
        except (ValueError, KeyError) as error:
            return Answer(400, {"detail": f"not an envelope: {error!r}"})
        self._keep(items)
        return Answer(body={"id": header.get("event_id")})

    def _key_of(self, request: Request) -> str | None:
        found = KEY.search(request.headers.get("x-sentry-auth", ""))
        return found[1] if found else request.query.get("sentry_key", [None])[-1]

    def _keep(self, items: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, item in items:
            if kind == "check_in":
                self.check_ins.append(item)
            elif kind in {"event", "transaction"}:
                known = self.events if kind == "event" else self.transactions
                if item["event_id"] not in {each["event_id"] for each in known}:
                    known.append(item)


def body_of(request: Request) -> bytes:
    """Return the body without its compression. Sentry's client compresses by Brotli where that is installed."""
    match request.headers.get("content-encoding"):
        case "gzip":
            return gzip.decompress(request.body)
        case "br":
            return bytes(import_module("brotli").decompress(request.body))
        case _:
            return request.body


def parse_envelope(body: bytes) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Return the header of an envelope, and its items with their types. Items of other types are left out."""
    first, _, rest = body.partition(b"\n")
    items = []
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length", len(rest.partition(b"\n")[0]))
        payload, rest = rest[:length], rest[length:].removeprefix(b"\n")
        if header["type"] in KINDS:
            items.append((header["type"], json.loads(payload)))
    return json.loads(first), items
