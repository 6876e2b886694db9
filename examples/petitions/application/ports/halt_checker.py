"""The port to the system that may halt this one (ADR-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HaltStatus:
    halted: bool
    reason: str = ""


class HaltCheckerProtocol(Protocol):
    async def is_halted(self) -> bool:
        """Return whether the system is halted. An error means that nobody knows, so callers treat it as a halt."""
        ...

    async def get_halt_status(self) -> HaltStatus: ...
