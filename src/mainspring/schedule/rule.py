"""What all rules have in common: they name times, describe themselves, and are data."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from abc import ABC, abstractmethod
from datetime import date, datetime, time, timedelta
from typing import Any, ClassVar

from mainspring.errors import InvalidSchedule
from mainspring.schedule.parse import write_length, write_time


class Rule(ABC):
    """Immutable data. What a rule is made of can be written as JSON, and its constructor takes that back."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def continuous(self) -> bool:
        """Whether it recurs within the day (every five minutes, each hour) rather than naming times of day.

        Then gap and fold do not apply: a local time that is skipped does not fire, one that comes twice fires twice.
        """
        return False

    @property
    def from_finish(self) -> bool:
        """Its next time is known only when the last run has ended."""
        return False

    @abstractmethod
    def words(self) -> str:
        """In plain words, to follow "it runs"."""

    def exact(self) -> str:
        """Everything that the rule says, in a form that can be read back: a cron expression, say."""
        return f"rule {json.dumps(self.to_data())}"

    def describe(self) -> str:
        """In plain words that can be read back: `Schedule(rule.describe()).rule == rule`.

        Words that do not say all of it are followed by the exact form, in parentheses.
        """
        from mainspring.schedule.text import rule_from_text  # noqa: PLC0415 - it needs all rules, which need this one

        words = self.words()
        with contextlib.suppress(InvalidSchedule):
            if rule_from_text(words) == self:
                return words
        return f"{words} ({self.exact()})"

    def to_data(self) -> dict[str, Any]:
        assert dataclasses.is_dataclass(self)  # noqa: S101 - each rule is one
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": self.kind} | {name: _plain(value) for name, value in fields.items() if value is not None}


class WallRule(Rule):
    """A rule about wall time. Which instants those are, the schedule's zone and its policies say."""

    __slots__ = ()

    @abstractmethod
    def next_from(self, local: datetime) -> datetime | None:
        """The first wall time that is not before this one. All are naive."""


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
        return [_plain(one) for one in value]
    return value.to_data() if hasattr(value, "to_data") else value
