"""What answers to pushed jobs mean."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring.errors import Discard, RequestFailed, Snooze
from mainspring.outgoing.client import Answer
from mainspring.service.verdict import judge, result_of, retry_after

NOW = datetime(2027, 3, 1, 8, 0, tzinfo=UTC)


def answer(status: int = 200, body: bytes = b"", *, cut: bool = False, **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, cut)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_a_success(status: int) -> None:
    judge(answer(status), NOW)


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with pytest.raises(RequestFailed, match=str(status)) as caught:
        judge(answer(status), NOW)
    assert caught.value.code == str(status)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 418, 422, 451, 499])
def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    with pytest.raises(Discard, match=str(status)) as caught:
        judge(answer(status, retry_after="5"), NOW)
    assert caught.value.code == str(status)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("0", 1),
        ("7200", 3600),
        ("9" * 400, 3600),
        ("Mon, 01 Mar 2027 08:02:00 GMT", 120),
        ("Monday, 01-Mar-27 08:02:00 GMT", 120),
        ("Mon, 01 Mar 2027 07:00:00 GMT", 1),
        ("Wed, 01 Mar 2028 08:00:00 GMT", 3600),
    ],
)
def test_a_pause_that_is_asked_for_uses_no_attempt(status: int, given: str, seconds: float) -> None:
    with pytest.raises(Snooze) as caught:
        judge(answer(status, retry_after=given), NOW)
    assert caught.value.delay.total_seconds() == seconds


@pytest.mark.parametrize("given", ["", "soon", "-5", "1.5", "٣", "Mon, 99 Mar 2027 08:02:00 GMT"])
def test_a_pause_in_an_unknown_form_is_none(given: str) -> None:
    assert retry_after(answer(503, retry_after=given), NOW) is None


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"", None),
        (b'{"a": [1, null]}', {"a": [1, None]}),
        (b"null", None),
        (b'"text"', "text"),
        (b"plain text", "plain text"),
        (b"\xff\x00", "��"),
        (b"[" * 300 + b"]" * 300, "[" * 300 + "]" * 300),
        (b"NaN", "NaN"),
        (b"1e999", "1e999"),
        (b'"\\ud800"', '"\\ud800"'),
    ],
)
def test_the_result_is_the_json_or_else_the_text(body: bytes, result: Any) -> None:
    assert result_of(answer(body=body)) == result


def test_the_start_of_a_long_answer_is_text() -> None:
    assert result_of(answer(body=b"12", cut=True)) == "12"


def test_an_error_shows_the_start_of_the_answer() -> None:
    with pytest.raises(Discard) as caught:
        judge(answer(400, b"no such room" + b"!" * 1000), NOW)
    assert "no such room" in caught.value.reason
    assert len(caught.value.reason) < 400
