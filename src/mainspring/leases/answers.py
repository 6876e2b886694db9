"""What a lessee gets back. All of it is plain data; `to_data` makes JSON of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from mainspring.job import Status
from mainspring.stores.protocol import Halt

StepProgress = Literal["done", "failed", "begun"]
"""`failed`: its error was caught, and the function went on. `begun`: only what the function saved of it is known."""


class Reply(StrEnum):
    """What became of one item of a report."""

    OK = "ok"  # written
    CANCELLED = "cancelled"  # written; but the job was cancelled: stop working on it, and report `Cancelled`
    STALE = "stale"  # nothing was changed: the lease is over, or was never this lessee's
    INVALID = "invalid"  # nothing was changed: the item cannot be stored; correct it, the lease goes on


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one item of a report."""

    job_id: str
    token: int
    reply: Reply
    status: Status | None = None  # of the job after this; None if it is not known
    message: str = ""  # why the item is stale or invalid; or why the job was cancelled

    @property
    def accepted(self) -> bool:
        return self.reply in {Reply.OK, Reply.CANCELLED}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a lessee should know now; part of every response."""

    cancelled: Mapping[str, str] = field(default_factory=dict)  # job that it holds -> why it was cancelled
    lost: tuple[str, ...] = ()  # jobs that it named, and does not hold any more: stop working on them
    halts: tuple[Halt, ...] = ()  # the halts and pauses of its queues: nothing new may start there
    known: bool = True  # False: the lessee was silent for too long, and has lost all that it held. Claiming joins again

    @property
    def halted(self) -> bool:
        """Whether the whole system is halted."""
        return any(halt.queue is None for halt in self.halts)

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = as_data(self)
        return data


@dataclass(frozen=True, slots=True)
class Report:
    """The response to a report: one answer for each item, in the same order."""

    answers: tuple[Answer, ...]
    pulse: Pulse

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = as_data(self)
        return data


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of the plan of a leased job."""

    name: str
    timeout: float | None = None  # seconds that it may take; the lessee sees to it


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A recorded step of a leased job."""

    name: str
    number: int
    output: Any
    finished_at: datetime | None
    kind: str = "step"  # others are of a durable function: sleep, wait, spawn, gather
    state: StepProgress = "done"
    saved: Any = None  # what a durable function has saved of it, with `ctx.save_state`


def as_data(value: Any) -> Any:
    """Return JSON data: dataclasses become objects, without their private fields, and times become ISO texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_data(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): as_data(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        return [as_data(part) for part in value]
    return value.value if isinstance(value, StrEnum) else value
