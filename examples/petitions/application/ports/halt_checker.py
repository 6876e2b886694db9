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
        """Return whether the system is halted. If it raises, callers treat that as a halt."""
        ...

    async def get_halt_status(self) -> HaltStatus: ...
