"""The records of a job's calls (steps, sleeps, waits, children), matched by name with the calls of this run.

How changed code is noticed: the handler's own calls are recorded in their order. If it makes a new call before it has
repeated all its recorded calls, it is not the function that began this job. Branches (other asyncio tasks or threads)
make calls in no fixed order, so only the names of these calls are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError, DuplicateStep, StepsChanged
from mainspring.job import Step

MAX_NAME_LENGTH = 200
SIDE = "side "  # prefix of the kind of a call made by a branch
FAILED = "failure"  # kind of a failed step whose error the function caught
KINDS_WITH_CHILDREN = frozenset({"spawn", "gather"})
STATE = "state"  # kind of what a function has saved of a step, see saved.py


def kind_of(step: Step) -> str:
    return step.kind.removeprefix(SIDE)


def calls_in(steps: Iterable[Step]) -> list[Step]:
    """Return the records of calls, without the states that the function has saved."""
    return [step for step in steps if step.kind != STATE]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that the function has just made."""

    name: str
    kind: str
    number: int
    started_at: Millis
    record: Step | None  # from an earlier run; None if the call is new
    main: bool = True  # made by the handler itself, not by a branch

    def step(self, output: str | None, now: Millis, kind: str = "") -> Step:
        prefix = "" if self.main else SIDE
        return Step(self.name, self.number, prefix + (kind or self.kind), output, self.started_at, now)


class Journal:
    """The calls of one run of one job, and the records of its earlier runs."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.loaded = False
        self.records: dict[str, Step] = {}
        self.states: dict[str, Step] = {}  # what the function has saved of its steps, by the record's name
        self._numbers: dict[str, int] = {}  # of the calls of this run
        self._asked: set[str] = set()
        self._last = ""  # the last name that the function chose itself
        self._derived: Counter[str] = Counter()
        self._highest = 0

    def load(self, steps: Iterable[Step]) -> None:
        known = list(steps)
        self.records = {step.name: step for step in calls_in(known)}
        self.states = {step.name: step for step in known if step.kind == STATE}
        self._highest = max((step.number for step in self.records.values()), default=0)
        self.loaded = True

    def ask(self, name: str, kind: str, now: Millis, *, main: bool = True) -> Asked:
        """Match a call with its record. Raise if its name was used already, or if the function has changed."""
        check_name(name)
        if name in self._asked:
            raise DuplicateStep(twice(name, kind))
        record = self.records.get(name)
        if record is None and main and (unasked := self._first_unasked()):
            raise StepsChanged(self._changed(f"{kind} {name!r}", unasked))
        if record is not None and kind_of(record) != kind and (kind, kind_of(record)) != ("step", FAILED):
            raise StepsChanged(self._changed(f"{kind} {name!r}", record))
        self._asked.add(name)
        if record is not None:
            return Asked(name, kind, record.number, record.started_at, record, main)
        self._highest += 1
        self._numbers[name] = self._highest
        return Asked(name, kind, self._highest, now, None, main)

    def number_of(self, name: str) -> int:
        """Return the number of a call, or the number of the next call if the function has not made it yet."""
        record = self.records.get(name)
        return record.number if record is not None else self._numbers.get(name, self._highest + 1)

    def _first_unasked(self) -> Step | None:
        """Return the first recorded call of the handler itself that this run has not made yet."""
        unasked = (step for name, step in self.records.items() if name not in self._asked and not is_side(step))
        return min(unasked, key=lambda step: step.number, default=None)

    def _changed(self, asked: str, recorded: Step) -> str:
        return (
            f"job {self.job_id} asks for {asked}, but an earlier run recorded {kind_of(recorded)} {recorded.name!r} "
            f"here: its function was changed while the job was in progress. Restore the function; or give the changed "
            f"one a version (@app.task(version=2)) and keep the old one for this job; or start again from that step: "
            f"mainspring jobs retry {self.job_id} --from-step '{recorded.name}'"
        )

    def wrote(self, step: Step) -> None:
        (self.states if step.kind == STATE else self.records)[step.name] = step

    def is_behind(self, asked: Asked) -> bool:
        """Return whether an earlier run got beyond this call. For calls of branches this is unknown: False."""
        later = (step for step in self.records.values() if step.number > asked.number and not is_side(step))
        return asked.main and any(later)

    # -- names --------------------------------------------------------------------------------------

    def called(self, name: str) -> str:
        """Remember and return a name that the function chose itself. Sleeps without a name are named after it."""
        self._last = name
        return name

    def name_sleep(self, *, main: bool) -> str:
        if not main:
            msg = 'a sleep in a branch needs a name, because branches run in no fixed order: ctx.sleep(60, name="…")'
            raise ConfigurationError(msg)
        return self.derive(f"sleep after {self._last}" if self._last else "sleep", main=main)

    def derive(self, name: str, *, main: bool) -> str:
        """Return the name, with a number from its second use on."""
        self._derived[name] += 1
        if (number := self._derived[name]) == 1:
            return name
        if not main:
            msg = (
                f"{name!r} is used already, and branches run in no fixed order; give this call its own name with name=…"
            )
            raise ConfigurationError(msg)
        return f"{name} ({number})"


def is_side(step: Step) -> bool:
    return step.kind.startswith(SIDE)


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        msg = f"a step's name is one line of 1 to {MAX_NAME_LENGTH} printable characters, not {name!r}"
        raise ConfigurationError(msg)


def twice(name: str, kind: str) -> str:
    return (
        f"{kind} {name!r} is used twice: a name can be used once per job. In a loop, put what differs "
        f'into the name: ctx.step(f"{name} {{item.id}}", …)'
    )
