from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from mainspring.testing.fakes import FakeSlack


def call(slack: FakeSlack, method: str, token: str | None = None, **arguments: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token or slack.token}"}
    request = Request(f"{slack.url}/api/{method}", urlencode(arguments).encode(), headers)  # noqa: S310 - ours
    with urlopen(request, timeout=10) as answer:  # noqa: S310
        body: dict[str, Any] = json.load(answer)
    return body


def test_messages_are_delivered() -> None:
    with FakeSlack() as slack:
        first = call(slack, "chat.postMessage", channel="C1", text="hello")
        second = call(slack, "chat.postMessage", channel="C1", text="hello")
        assert first["ts"] != second["ts"]
        assert [(message.channel, message.text) for message in slack.messages] == [("C1", "hello")] * 2


def test_json_arguments_work_too() -> None:
    with FakeSlack() as slack:
        headers = {"Authorization": f"Bearer {slack.token}", "Content-Type": "application/json; charset=utf-8"}
        body = json.dumps({"channel": "C1", "text": "hello"}).encode()
        urlopen(Request(f"{slack.url}/api/chat.postMessage", body, headers), timeout=10).close()  # noqa: S310
        assert slack.messages[0].text == "hello"


def test_a_message_with_a_known_id_is_delivered_once_per_channel() -> None:
    with FakeSlack() as slack:
        posts = [call(slack, "chat.postMessage", channel="C1", text=text, client_msg_id="a") for text in ("one", "two")]
        call(slack, "chat.postMessage", channel="C2", text="three", client_msg_id="a")
        assert posts[0]["ts"] == posts[1]["ts"]
        assert [message.text for message in slack.messages] == ["one", "three"]
        assert slack.duplicates == 1


def test_users() -> None:
    with FakeSlack() as slack:
        slack.add_user("U1", "Ana", "Europe/Lisbon")
        assert call(slack, "users.info", user="U1")["user"]["tz"] == "Europe/Lisbon"


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("chat.postMessage", {"text": "hello"}, "channel_not_found"),
        ("chat.postMessage", {"channel": "C1"}, "no_text"),
        ("users.info", {"user": "U2"}, "user_not_found"),
        ("users.info", {"user": "U2", "token": "wrong"}, "invalid_auth"),
        ("chat.dance", {}, "unknown_method"),
    ],
)
def test_refusals(method: str, arguments: dict[str, str], error: str) -> None:
    with FakeSlack() as slack:
        assert call(slack, method, **arguments) == {"ok": False, "error": error}
