"""Read server-sent events from bytes, without I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """One event. Its name is empty if it only moves the place on."""

    name: str
    data: Any
    place: str | None  # the id; None: it has none, and the place stays


@dataclass(slots=True)
class Decoder:
    """Collects bytes until frames are complete."""

    retry: float | None = None  # seconds after which the service wants a client to come back
    _rest: bytes = b""
    _lines: list[tuple[str, str]] = field(default_factory=list)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that this completes. What is left when a connection breaks was not received."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode()
            if line:
                name, _, value = line.partition(":")
                self._lines.append((name, value.removeprefix(" ")))
            elif self._lines:
                yield self._frame()

    def _frame(self) -> Frame:
        fields, text = dict(self._lines), "\n".join(value for name, value in self._lines if name == "data")
        self._lines.clear()
        if fields.get("retry", "").isdecimal():
            self.retry = int(fields["retry"]) / 1000
        name = fields.get("event", "message") if "data" in fields else ""
        return Frame(name, json.loads(text) if text else None, fields.get("id"))
