"""The base classes of all rules: a rule names times, and can be written as JSON."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar

from mainspring.features.schedules.rules.parse import write_length, write_time


class Rule(ABC):
    """An immutable rule. `to_data` returns its fields as JSON, which the constructor accepts."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def continuous(self) -> bool:
        """Return whether it recurs within the day (every five minutes, each hour) rather than naming times of day.

        Then gap and fold do not apply: a skipped local time does not fire, and one that comes twice fires twice.
        """
        return False

    @property
    def from_finish(self) -> bool:
        """Return whether the next time is known only when the last run has ended."""
        return False

    def exact(self) -> str:
        """Return the whole rule in a form that can be parsed, such as a cron expression."""
        return f"rule {json.dumps(self.to_data())}"

    def to_data(self) -> dict[str, Any]:
        assert dataclasses.is_dataclass(self)  # noqa: S101 - each rule is one
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": self.kind} | {name: _plain(value) for name, value in fields.items() if value is not None}


class WallRule(Rule):
    """A rule about wall time. The schedule's time zone and its policies determine the instants."""

    __slots__ = ()

    @abstractmethod
    def next_from(self, local: datetime) -> datetime | None:
        """Return the rule's first wall time that is not before `local`. Both are naive."""


def fill(frozen: object, /, **values: object) -> None:
    """Set the fields of a frozen dataclass in its own constructor."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def _plain(value: object) -> Any:
    if isinstance(value, timedelta):
        return write_length(value)
    if isinstance(value, time):
        return write_time(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_data() if hasattr(value, "to_data") else value
