"""What is left to do once the store has an outcome.

The guards are told, what suspended jobs wait for is looked at again, children of cancelled jobs are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from mainspring.app import Mainspring
from mainspring.durable.cancel_children import cancel_children
from mainspring.guards import Ending, LookAgain
from mainspring.job import Claim

EVERYBODY = 1_000_000


class AfterAck:
    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._store = app.store
        self._guards = app.guards
        self._cancelled: list[str] = []
        self._ended: list[tuple[Claim, Ending | None]] = []
        self._suspended: dict[str, set[LookAgain]] = {}
        self._some = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def ended(self, claim: Claim, ending: Ending | None = None) -> None:
        """A run that had passed guards."""
        self._ended.append((claim, ending))
        self._some.set()

    def suspended(self, key: str, look_again: LookAgain) -> None:
        self._suspended.setdefault(key, set()).add(look_again)
        self._some.set()

    def cancelled(self, job_id: str) -> None:
        """A job that may have children."""
        self._cancelled.append(job_id)
        self._some.set()

    async def step(self) -> None:
        """One turn of a supervised loop."""
        await self._some.wait()
        await self.settle()

    async def settle(self) -> None:
        """All that is there, and what is being settled already; what fails is kept for the next time."""
        async with self._one_at_a_time:
            await self._settle()

    async def _settle(self) -> None:
        while self._ended or self._suspended or self._cancelled:
            ended, self._ended = self._ended, []
            cancelled, self._cancelled = self._cancelled, []
            suspended, self._suspended = self._suspended, {}
            self._some.clear()
            try:
                endings = {claim.id: ending for claim, ending in ended if ending is not None}
                await self._guards.ended([claim for claim, _ in ended], endings)
                ended = []
                if happened := await all_that_happened(suspended):
                    await self._store.wake(dict.fromkeys(happened, EVERYBODY))
                suspended = {}
                await cancel_children(self._app, cancelled, "mainspring")
            except BaseException:
                self._ended = ended + self._ended
                self._cancelled = cancelled + self._cancelled
                for key, looks in suspended.items():
                    self._suspended.setdefault(key, set()).update(looks)
                self._some.set()
                raise


async def all_that_happened(suspended: Mapping[str, Iterable[LookAgain]]) -> set[str]:
    """Of what is waited for; all are asked at once, as each may need the store."""
    asked = [(key, look) for key, looks in suspended.items() for look in looks]
    answers = await asyncio.gather(*(look() for _, look in asked), return_exceptions=True)
    for error in (answer for answer in answers if isinstance(answer, BaseException)):
        raise error
    return {key for (key, _), happened in zip(asked, answers, strict=True) if happened}
