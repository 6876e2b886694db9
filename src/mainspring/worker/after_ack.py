"""Does what is left to do once the store has an outcome.

It tells the guards, re-checks the conditions that suspended jobs wait for, and cancels the children of cancelled jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from mainspring.app import Mainspring
from mainspring.guards import Ending, LookAgain
from mainspring.job import Claim

ALL_WAITING = 1_000_000  # jobs to wake per key: more than ever wait


class AfterAck:
    """Collects what is to be done after acks and does it for many jobs at once; belongs to one event loop.

    `ended`, `suspended` and `cancelled` only take note; `settle` does the work.
    """

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
        """Tell the guards that a run which had passed them is over."""
        self._ended.append((claim, ending))
        self._some.set()

    def suspended(self, key: str, look_again: LookAgain) -> None:
        """Check once more whether what the job waits for has happened: it may have, before the job was suspended."""
        self._suspended.setdefault(key, set()).add(look_again)
        self._some.set()

    def cancelled(self, job_id: str) -> None:
        """Cancel the children of this job, if it has any."""
        self._cancelled.append(job_id)
        self._some.set()

    async def step(self) -> None:
        """Do one turn of a supervised loop."""
        await self._some.wait()
        await self.settle()

    async def settle(self) -> None:
        """Do everything noted so far and wait for what is already being done. What fails is kept for the next call."""
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
                    await self._store.wake(dict.fromkeys(happened, ALL_WAITING))
                suspended = {}
                await self._app.jobs.cancel_children(cancelled, "mainspring")
            except BaseException:
                self._ended = ended + self._ended
                self._cancelled = cancelled + self._cancelled
                for key, looks in suspended.items():
                    self._suspended.setdefault(key, set()).update(looks)
                self._some.set()
                raise


async def all_that_happened(suspended: Mapping[str, Iterable[LookAgain]]) -> set[str]:
    """Return the keys whose condition is met. All conditions are checked at once, as each may need the store."""
    asked = [(key, look) for key, looks in suspended.items() for look in looks]
    answers = await asyncio.gather(*(look() for _, look in asked), return_exceptions=True)
    for error in (answer for answer in answers if isinstance(answer, BaseException)):
        raise error
    return {key for (key, _), happened in zip(asked, answers, strict=True) if happened}
