"""What a function has behind it, and what it asks for in this run: answers from the record, or notices a change.

The rule for changed code: what the handler itself asks for, one thing after the other, is recorded in that order. If it
asks for something new while something recorded has not been asked for yet, it is another function than the one that
began this job. Branches (other asyncio tasks or threads) ask in an order of chance; theirs is known only by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError, DuplicateStep, StepsChanged
from mainspring.job import Step

LONGEST_NAME = 200
SIDE = "side "  # before the kind of what a branch asked for
FAILED = "failure"  # the kind of a step that failed, and whose failure the function has caught


def kind_of(step: Step) -> str:
    return step.kind.removeprefix(SIDE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a function has just asked for."""

    name: str
    kind: str
    number: int
    started_at: Millis
    record: Step | None  # None: it is new
    main: bool = True

    def step(self, output: str | None, now: Millis, kind: str = "") -> Step:
        prefix = "" if self.main else SIDE
        return Step(self.name, self.number, prefix + (kind or self.kind), output, self.started_at, now)


class Journal:
    """Of one run of one job."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.loaded = False
        self.records: dict[str, Step] = {}
        self._asked: set[str] = set()
        self._last = ""  # the last name that the function has given
        self._derived: Counter[str] = Counter()
        self._highest = 0

    def load(self, steps: Iterable[Step]) -> None:
        self.records = {step.name: step for step in steps}
        self._highest = max((step.number for step in self.records.values()), default=0)
        self.loaded = True

    def ask(self, name: str, kind: str, now: Millis, *, main: bool = True) -> Asked:
        check_name(name)
        if name in self._asked:
            raise DuplicateStep(twice(name, kind))
        record = self.records.get(name)
        if record is None and main and (left := self._left_out()):
            raise StepsChanged(self._changed(f"{kind} {name!r}", left))
        if record is not None and kind_of(record) != kind and (kind, kind_of(record)) != ("step", FAILED):
            raise StepsChanged(self._changed(f"{kind} {name!r}", record))
        self._asked.add(name)
        if record is not None:
            return Asked(name, kind, record.number, record.started_at, record, main)
        self._highest += 1
        return Asked(name, kind, self._highest, now, None, main)

    def _left_out(self) -> Step | None:
        """The first that the handler itself had asked for in an earlier run, and not yet in this one."""
        left = (step for name, step in self.records.items() if name not in self._asked and not is_side(step))
        return min(left, key=lambda step: step.number, default=None)

    def _changed(self, asked: str, recorded: Step) -> str:
        return (
            f"job {self.job_id} asks for {asked}, but had {kind_of(recorded)} {recorded.name!r} before: its function "
            f"was changed while the job is under way. Put it back as it was; or give the changed function a version "
            f"(@app.task(version=2)) and keep the old one beside it for this job; or begin again from there: "
            f"mainspring jobs retry {self.job_id} --from-step '{recorded.name}'"
        )

    def wrote(self, step: Step) -> None:
        self.records[step.name] = step

    def is_behind(self, asked: Asked) -> bool:
        """Whether the function has come further than this in an earlier run; of branches nobody can tell."""
        later = (step for step in self.records.values() if step.number > asked.number and not is_side(step))
        return asked.main and any(later)

    # -- names --------------------------------------------------------------------------------------

    def called(self, name: str) -> str:
        """A name that the function has given itself."""
        self._last = name
        return name

    def name_sleep(self, *, main: bool) -> str:
        if not main:
            msg = 'a sleep in a branch needs a name, as branches run in an order of chance: ctx.sleep(60, name="…")'
            raise ConfigurationError(msg)
        return self.derive(f"sleep after {self._last}" if self._last else "sleep", main=main)

    def derive(self, name: str, *, main: bool) -> str:
        """The name itself, then with a number."""
        self._derived[name] += 1
        if (number := self._derived[name]) == 1:
            return name
        if not main:
            msg = f"a branch needs names of its own for what is not the only one: {name!r} is taken; give name=…"
            raise ConfigurationError(msg)
        return f"{name} ({number})"


def is_side(step: Step) -> bool:
    return step.kind.startswith(SIDE)


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        msg = f"a step's name is a line of 1 to {LONGEST_NAME} characters, not {name!r}"
        raise ConfigurationError(msg)


def twice(name: str, kind: str) -> str:
    return (
        f"{kind} {name!r} is asked for twice: each name stands for one thing in a job. In a loop, put what differs "
        f'into the name: ctx.step(f"{name} {{item.id}}", …)'
    )
