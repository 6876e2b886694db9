"""What a task declares about its recovery."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from mainspring.clock import Length, Millis, duration, shown
from mainspring.errors import ConfigurationError
from mainspring.job import Priority, PriorityName

SHORTEST_PERIOD: Millis = 1_000


@dataclass(frozen=True, slots=True)
class Recover:
    """Retry the task's dead letters by themselves: `@app.task(recover=Recover(within=timedelta(hours=24)))`."""

    within: Length = timedelta(hours=24)  # only jobs that became dead letters, or expired, within this time
    every: Length = timedelta(minutes=10)  # and when a worker starts
    priority: PriorityName | Priority | None = "high"  # of the recovered jobs; None: as before
    max_times: int = 3  # how often one job is recovered; then it stays a dead letter
    expired: bool = False  # also recover jobs that were not started in time; they then run however late it is

    def __post_init__(self) -> None:
        for name, length in (("within", self.within), ("every", self.every)):
            if duration(length) < SHORTEST_PERIOD:
                msg = f"Recover({name}={shown(length)}): give at least a second"
                raise ConfigurationError(msg)
        if self.priority is not None and (problem := Priority.problem_of(self.priority)):
            msg = f"Recover(priority=…): {problem}"
            raise ConfigurationError(msg)
        if not isinstance(self.expired, bool):
            msg = f"Recover(expired={shown(self.expired)}): give True or False"
            raise ConfigurationError(msg)
        if type(self.max_times) is not int or self.max_times < 1:
            msg = f"Recover(max_times={shown(self.max_times)}): give a whole number of at least 1"
            raise ConfigurationError(msg)
