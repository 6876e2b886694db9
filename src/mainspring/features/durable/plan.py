"""The plan of a job: the steps that its enqueue asked for, in order, and how long each may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.clock import Length, Millis, duration, shown
from mainspring.errors import ConfigurationError, UnplannedStep
from mainspring.features.durable.journal import check_name

Planned = Iterable[str] | Mapping[str, Length | None]
MAX_PLANNED_STEPS = 1000  # a plan is stored with its job, and read by every listing


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The steps of a job, in order: `StepPlan.of(["prepare", "render"])`, `StepPlan.of({"prepare": 300})`.

    Iterate over it to get the names.
    """

    timeouts: Mapping[str, Millis | None] = field(default_factory=dict)  # by step, in order
    complete: bool = False  # given at the enqueue: the job has no other steps

    @classmethod
    def of(cls, given: StepPlan | Planned, *, complete: bool = True) -> StepPlan:
        """Check and return a plan. Raise ConfigurationError if a name or a timeout is invalid."""
        if isinstance(given, StepPlan):
            return replace(given, complete=complete)
        if isinstance(given, Mapping):
            timeouts = {name: limit_of(name, timeout) for name, timeout in given.items()}
        else:
            timeouts = dict.fromkeys(names_of(given))
        for name in timeouts:
            check_name(name)
        if len(timeouts) > MAX_PLANNED_STEPS:
            msg = f"a plan has at most {MAX_PLANNED_STEPS:,} steps, not {len(timeouts):,}"
            raise ConfigurationError(msg)
        return cls(timeouts, complete)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> StepPlan:
        """Return the plan that is stored with a job: that of its enqueue, or what its task declared."""
        given = options.get("plan")
        if given is None:
            return cls(dict.fromkeys(options.get("steps", ())))
        return cls(dict(given), complete=True)

    def to_data(self) -> list[list[Any]]:
        return [[name, timeout] for name, timeout in self.timeouts.items()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.timeouts)

    def __contains__(self, name: object) -> bool:
        return name in self.timeouts

    def __len__(self) -> int:
        return len(self.timeouts)

    def timeout(self, step: str) -> float | None:
        """Return how many seconds the step may take; None: no limit."""
        millis = self.timeouts.get(step)
        return None if millis is None else millis / 1000

    def check(self, step: str) -> None:
        """Raise UnplannedStep if the plan is complete and has no step of this name."""
        if self.complete and step not in self.timeouts:
            msg = (
                f"step {step!r} is not in the job's plan, which has: {', '.join(self) or 'no steps'}. Add it at the"
                " enqueue, task.using(steps=[…]), or leave out steps there to allow any step"
            )
            raise UnplannedStep(msg)


def names_of(given: Any) -> list[str]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        msg = f"steps must be a list of names, or a mapping of names to timeouts, not {shown(given)}"
        raise ConfigurationError(msg)
    names = list(given)
    for name in names:
        check_name(name)
    if len(set(names)) < len(names):
        msg = f"a step is declared twice among {', '.join(names)}; each name can be used once per job"
        raise ConfigurationError(msg)
    return names


def limit_of(step: object, timeout: Length | None) -> Millis | None:
    """Return the milliseconds of a step's timeout. Raise ConfigurationError if it is not a positive length."""
    if timeout is None:
        return None
    if (millis := duration(timeout)) <= 0:
        msg = f"the timeout of step {step!r} is {shown(timeout)}; give at least a millisecond, or None for no timeout"
        raise ConfigurationError(msg)
    return millis
