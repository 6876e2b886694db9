"""What is left to do once the store has an outcome: tell the guards, and look again at what suspended jobs wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mainspring.guards import Ending, Guards, LookAgain
from mainspring.job import Claim
from mainspring.stores.protocol import Store

EVERYBODY = 1_000_000


class Aftermath:
    def __init__(self, store: Store, guards: Guards) -> None:
        self._store = store
        self._guards = guards
        self._ended: list[tuple[Claim, Ending]] = []
        self._suspended: dict[str, set[LookAgain]] = {}
        self._some = asyncio.Event()

    def ended(self, claim: Claim, ending: Ending) -> None:
        """A run that had passed guards."""
        self._ended.append((claim, ending))
        self._some.set()

    def suspended(self, key: str, look_again: LookAgain) -> None:
        self._suspended.setdefault(key, set()).add(look_again)
        self._some.set()

    async def step(self) -> None:
        """One turn of a supervised loop."""
        await self._some.wait()
        await self.settle()

    async def settle(self) -> None:
        """All that is there; what fails is kept for the next time."""
        while self._ended or self._suspended:
            ended, self._ended = self._ended, []
            suspended, self._suspended = self._suspended, {}
            self._some.clear()
            try:
                await self._guards.ended([claim for claim, _ in ended], {claim.id: ending for claim, ending in ended})
                ended = []
                if happened := [key for key, looks in suspended.items() if await any_of(looks)]:
                    await self._store.wake(dict.fromkeys(happened, EVERYBODY))
            except BaseException:
                self._ended = ended + self._ended
                for key, looks in suspended.items():
                    self._suspended.setdefault(key, set()).update(looks)
                self._some.set()
                raise


async def any_of(looks: Iterable[LookAgain]) -> bool:
    return any([await look() for look in looks])
