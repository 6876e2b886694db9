"""Holds back the jobs of tasks that are paused at run time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from mainspring.clock import Millis
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.job import UNTIL_WOKEN, Claim, Move
from mainspring.live_settings import LiveSettings, Snapshot
from mainspring.services import Services

ALL_WAITING = 1_000_000  # jobs to wake: more than ever wait


def waiting_key(task: str) -> str:
    """Return the key that jobs wait for while their task is paused."""
    return f"paused:{task}"


class PausedTasksFeature(Feature):
    """Suspends claimed jobs of paused tasks, and wakes them when the pause ends."""

    option = "paused"

    def __init__(self, services: Services, settings: LiveSettings, on_first: Callable[[], None]) -> None:
        self._services = services
        self._settings = settings
        self._on_first = on_first  # called when the first pause is known
        self._in_use = False
        self._paused: frozenset[str] = frozenset()

    def concerns(self, claim: Claim) -> bool:
        return claim.task in self._paused

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        return {job.claim.id: self._suspend(job.claim) for job in jobs if self.concerns(job.claim)}

    def _suspend(self, claim: Claim) -> Refusal:
        return refuse(
            claim, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for=waiting_key(claim.task),
            reason=f"the task {claim.task!r} is paused", recheck=partial(self._goes_on, claim.task),
        )  # fmt: skip

    async def _goes_on(self, task: str) -> bool:
        """Return whether the pause ended before the job was suspended, and so before it could be woken."""
        await self._settings.look()
        return task not in self._settings.snapshot.paused

    def use_settings(self, after: Snapshot) -> None:
        self._paused = after.paused
        if self._paused and not self._in_use:
            self._in_use = True
            self._on_first()

    async def settings_changed(self, before: Collection[Snapshot], after: Snapshot) -> None:
        """Wake the jobs of tasks whose pause has ended.

        Each worker does this, in case the process that ended the pause has died. A worker that has just started does
        not know what was paused before it. So it wakes the jobs of all tasks that once had a setting.
        """
        known = {task for each in (*before, after) for task, values in each.tasks.items() if values.paused is not None}
        if going_on := known - after.paused:
            await self._services.store.wake({waiting_key(task): ALL_WAITING for task in going_on})
