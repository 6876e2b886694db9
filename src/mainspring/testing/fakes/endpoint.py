"""A fake of a worker in any language that takes jobs by HTTP: it answers as it is told to."""

from __future__ import annotations

from typing import Any

from mainspring.testing.fakes.http_server import Answer, FakeServer, Request
from mainspring.webhooks import verify


class FakeEndpoint(FakeServer):
    """Answers 200 with `{"ok": true}`, unless `reply` was called.

    With `secrets`, it answers 401 to requests whose signature is wrong. `bodies` has the JSON of those it accepted.
    """

    def __init__(self, port: int = 0, *, secrets: list[str] | None = None) -> None:
        super().__init__(port)
        self.secrets = secrets
        self.bodies: list[Any] = []
        self._answers = [Answer(200, {"ok": True})]

    def reply(self, *answers: Answer) -> None:
        """Give these answers to the next requests, and the last of them to all after those."""
        self._answers = list(answers)

    def answer(self, request: Request) -> Answer:
        if self.secrets is not None:
            try:
                verify(request.body, request.headers, self.secrets)
            except ValueError as error:
                return Answer(401, {"error": str(error)})
        self.bodies.append(request.json() if request.body else None)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
