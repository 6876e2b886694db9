from __future__ import annotations

import gzip
import json
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from mainspring.testing.fakes import FakeSentry


def envelope(*events: dict[str, Any], with_length: bool = True) -> bytes:
    lines: list[bytes] = [json.dumps({"event_id": "e"}).encode()]
    for event in events:
        payload = json.dumps(event).encode()
        lines += [json.dumps({"type": "event"} | ({"length": len(payload)} if with_length else {})).encode(), payload]
    return b"\n".join(lines)


def send(sentry: FakeSentry, body: bytes, *, key: str = "public", project: int = 1, encoding: str = "identity") -> int:
    given = {"X-Sentry-Auth": f"Sentry sentry_version=7, sentry_key={key}", "Content-Encoding": encoding}
    request = Request(f"{sentry.url}/api/{project}/envelope/", body, given)  # noqa: S310 - ours
    try:
        with urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("with_length", [True, False])
def test_events_are_kept_once(with_length: bool) -> None:
    with FakeSentry() as sentry:
        body = envelope({"event_id": "a", "message": "x\ny"}, {"event_id": "b"}, with_length=with_length)
        assert [send(sentry, body), send(sentry, body)] == [200, 200]
        assert [event["event_id"] for event in sentry.events] == ["a", "b"]


def test_a_compressed_envelope_is_read() -> None:
    with FakeSentry() as sentry:
        assert send(sentry, gzip.compress(envelope({"event_id": "a"})), encoding="gzip") == 200
        assert len(sentry.events) == 1


def test_an_envelope_compressed_by_brotli_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentry's client compresses so if the package is installed, which it is not here: gzip plays its part."""
    monkeypatch.setitem(sys.modules, "brotli", gzip)
    with FakeSentry() as sentry:
        assert send(sentry, gzip.compress(envelope({"event_id": "a"})), encoding="br") == 200
        assert len(sentry.events) == 1


def test_other_items_are_ignored() -> None:
    with FakeSentry() as sentry:
        assert send(sentry, b'{}\n{"type": "session"}\n{"sid": "1"}\n') == 200
        assert sentry.events == []


def test_what_sentry_would_refuse_is_refused() -> None:
    with FakeSentry() as sentry:
        body = envelope({"event_id": "a"})
        statuses = [send(sentry, body, key="wrong"), send(sentry, body, project=2), send(sentry, b"not an envelope\n{")]
        assert statuses == [403, 404, 400]
        assert sentry.events == []


def test_the_dsn_names_key_and_project() -> None:
    with FakeSentry(project=7, key="abc") as sentry:
        assert sentry.dsn == f"{sentry.url.replace('http://', 'http://abc@')}/7"


def test_transactions_and_check_ins_are_kept() -> None:
    def item(kind: str, data: dict[str, Any]) -> bytes:
        return b"\n".join([b"{}", json.dumps({"type": kind}).encode(), json.dumps(data).encode()])

    with FakeSentry() as sentry:
        for _ in range(2):
            send(sentry, item("transaction", {"event_id": "t"}))
        for status in ("in_progress", "in_progress", "ok", "error"):
            check_in = {"check_in_id": "c", "monitor_slug": "nightly", "status": status}
            send(sentry, item("check_in", check_in | ({"monitor_config": {"n": 1}} if status != "ok" else {})))
        assert [each["event_id"] for each in sentry.transactions] == ["t"]
        assert (len(sentry.check_ins), sentry.runs, sentry.monitors) == (4, {"c": "ok"}, {"nightly": {"n": 1}})
