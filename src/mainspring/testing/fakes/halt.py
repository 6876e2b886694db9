"""A fake of a system that may halt others, such as a control room."""

from __future__ import annotations

from mainspring.testing.fakes.http_server import Answer, FakeServer, Request


class FakeHaltServer(FakeServer):
    """Answers `GET /halt` with `{"halted": false, "reason": ""}`."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.halted = False
        self.reason = ""

    def halt(self, reason: str = "") -> None:
        self.halted, self.reason = True, reason

    def resume(self) -> None:
        self.halted, self.reason = False, ""

    def answer(self, request: Request) -> Answer:
        if (request.method, request.path) != ("GET", "/halt"):
            return Answer(404, {"error": "ask GET /halt"})
        return Answer(200, {"halted": self.halted, "reason": self.reason})
