"""A fake of Slack's web API: messages and users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from mainspring.testing.fakes.http_server import Answer, FakeServer, Request


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was delivered."""

    channel: str
    text: str
    client_msg_id: str | None
    ts: str  # Slack's id of a message in its channel


class FakeSlack(FakeServer):
    """Slack's `chat.postMessage` and `users.info`. Point your client at `slack.url + "/api/"`.

    A message with the `client_msg_id` of an earlier one in the same channel is answered like the first one and not
    delivered again. `duplicates` counts these.
    """

    def __init__(self, token: str = "xoxb-fake") -> None:  # noqa: S107 - not a secret
        super().__init__()
        self.token = token
        self.messages: list[Message] = []
        self.duplicates = 0
        self._users: dict[str, dict[str, Any]] = {}
        self._methods: Mapping[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
            "chat.postMessage": self._post_message,
            "users.info": self._user_info,
        }

    def add_user(self, id: str, name: str, tz: str = "Etc/UTC", **fields: Any) -> None:
        """Add or replace a user, as `users.info` returns it."""
        self._users[id] = {"id": id, "name": name.lower(), "real_name": name, "tz": tz, "deleted": False, **fields}

    def answer(self, request: Request) -> Answer:
        method = self._methods.get(request.path.removeprefix("/api/"))
        if method is None:
            return Answer(body=refusal("unknown_method"))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(body=refusal("invalid_auth"))
        return Answer(body=method(arguments(request)))

    def _post_message(self, given: Mapping[str, str]) -> dict[str, Any]:
        channel, text, key = given.get("channel", ""), given.get("text", ""), given.get("client_msg_id")
        if not channel or not text:
            return refusal("no_text" if channel else "channel_not_found")
        message = self._earlier(channel, key)
        if message is None:
            message = Message(channel, text, key, f"{1_700_000_000 + len(self.messages)}.000100")
            self.messages.append(message)
        else:
            self.duplicates += 1
        return {"ok": True, "channel": channel, "ts": message.ts, "message": {"text": message.text}}

    def _earlier(self, channel: str, key: str | None) -> Message | None:
        same = (message for message in self.messages if (message.channel, message.client_msg_id) == (channel, key))
        return None if key is None else next(same, None)

    def _user_info(self, given: Mapping[str, str]) -> dict[str, Any]:
        user = self._users.get(given.get("user", ""))
        return refusal("user_not_found") if user is None else {"ok": True, "user": user}


def refusal(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


def arguments(request: Request) -> dict[str, str]:
    """Return the arguments of a call, which Slack takes as JSON, as a form, or in the query."""
    query = {name: values[-1] for name, values in request.query.items()}
    if request.headers.get("content-type", "").startswith("application/json"):
        return {**query, **request.json()}
    return {**query, **dict(parse_qsl(request.body.decode()))}
