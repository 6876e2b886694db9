"""A halt checker in memory, for unit tests."""

from __future__ import annotations

from examples.petitions.application.ports import HaltStatus


class HaltCheckerStub:
    def __init__(self) -> None:
        self.status = HaltStatus(halted=False)
        self.error: Exception | None = None

    async def is_halted(self) -> bool:
        return (await self.get_halt_status()).halted

    async def get_halt_status(self) -> HaltStatus:
        if self.error is not None:
            raise self.error
        return self.status
