"""The port to Slack, and its adapter over Slack's web API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

TIMEOUT = 10.0  # seconds
BUSY_FOR = 30.0  # seconds to wait if Slack is busy and does not say for how long


class SlackError(Exception):
    """Slack refused a call. The message is Slack's own word for the reason."""


class SlackBusy(Exception):
    """Slack takes no more calls for now. `seconds` is how long it asks its callers to wait."""

    def __init__(self, method: str, seconds: float) -> None:
        super().__init__(f"{method}: Slack takes no more calls for {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    tz: str


class Messenger(Protocol):
    def post(self, channel: str, text: str, *, token: str) -> str:
        """Post a message and return its id. A second post with the same token has no effect."""
        ...

    def profile(self, slack_id: str) -> Profile: ...


class SlackMessenger:
    """Slack's web API."""

    def __init__(self, url: str, token: str, timeout: float = TIMEOUT) -> None:
        self._url, self._token, self._timeout = url, token, timeout

    def post(self, channel: str, text: str, *, token: str) -> str:
        answer = self._call("chat.postMessage", {"channel": channel, "text": text, "client_msg_id": token})
        return str(answer["ts"])

    def profile(self, slack_id: str) -> Profile:
        user = self._call("users.info", {"user": slack_id})["user"]
        return Profile(user["real_name"], user["tz"])

    def _call(self, method: str, arguments: dict[str, str]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}"}
        request = Request(f"{self._url}/api/{method}", urlencode(arguments).encode(), headers)  # noqa: S310 - a setting
        try:
            with urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 - likewise
                body: dict[str, Any] = json.load(answer)
        except HTTPError as error:
            error.close()  # it holds the connection
            if error.code == HTTPStatus.TOO_MANY_REQUESTS:
                raise SlackBusy(method, waiting_time(error.headers.get("Retry-After"))) from error
            raise
        if not body["ok"]:
            raise SlackError(f"{method}: {body['error']}")
        return body


def waiting_time(retry_after: str | None) -> float:
    """Return the seconds in a header `Retry-After`, which Slack sends as a whole number."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else BUSY_FOR
