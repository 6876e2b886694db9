"""A fake of any system that takes JSON by POST: alerts, notifications, webhooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring.testing.fakes.http_server import WAIT, Answer, FakeServer, Request

KEY = "idempotency-key"


class FakeWebhook(FakeServer):
    """Accepts every `POST` of a JSON document. Documents with the same `Idempotency-Key` are accepted once.

    `received` has all requests. `accepted` has what took effect, so a test can tell a repeated request from a repeated
    effect.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.accepted: list[Any] = []  # the documents, without repetitions
        self.keys: list[str | None] = []  # of the documents in `accepted`

    def answer(self, request: Request) -> Answer:
        if request.method != "POST":
            return Answer(405, {"error": "send a JSON document by POST"})
        try:
            document = request.json()
        except ValueError as error:
            return Answer(400, {"error": f"the body is not JSON: {error}"})
        return self._accept_once(request.headers.get(KEY), document)

    def _accept_once(self, key: str | None, document: Any) -> Answer:
        repeated = key is not None and key in self.keys
        if not repeated:
            self.accepted.append(document)
            self.keys.append(key)
        return Answer(200, {"repeated": repeated})

    def wait_accepted(self, number: int, *, timeout: float = WAIT) -> list[Any]:
        """Return the accepted documents once there are this many."""
        self.wait_until(lambda: len(self.accepted) >= number, f"{number} documents", timeout=timeout)
        return list(self.accepted)

    def wait_accepted_that(self, fits: Callable[[Any], bool], *, timeout: float = WAIT) -> Any:
        """Return the first accepted document that fits, once there is one."""
        self.wait_until(lambda: any(map(fits, self.accepted)), "a document", timeout=timeout)
        return next(document for document in self.accepted if fits(document))
