"""Gives workers the timer that recovers dead letters."""

from __future__ import annotations

from mainspring.errors import ConfigurationError
from mainspring.feature import Feature
from mainspring.features.breakers.api import Breakers
from mainspring.features.recovery.options import Recover
from mainspring.features.recovery.timer import RecoveryTimer
from mainspring.services import Services


class RecoveryFeature(Feature):
    """Jobs do not meet it: it only has a timer."""

    def __init__(self, services: Services, breakers: Breakers) -> None:
        self._timer = RecoveryTimer(services, breakers)

    def declare(self, task: str, recover: Recover) -> None:
        """Recover the dead letters of this task. Until a task declares it, workers have no timer for it."""
        if not isinstance(recover, Recover):
            msg = f"task {task!r}: recover must be a Recover(…), not {recover!r}"
            raise ConfigurationError(msg)
        self._timer.declared[task] = recover
        self.timers = (self._timer,)

    async def begin(self) -> None:
        """Make the recovery of all declared tasks due, as a worker does when it starts."""
        await self._timer.refresh()
