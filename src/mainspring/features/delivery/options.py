"""The hours within which jobs may start: what a task or an enqueue declares, and how it is stored.

The code that knows hours and time zones is imported when the first window is made, as most programs have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import ConfigurationError, InvalidSchedule

if TYPE_CHECKING:
    from mainspring.features.schedules.rules.hours import Hours
    from mainspring.features.schedules.rules.parse import TimeOfDay, Weekday
    from mainspring.features.schedules.rules.tz import TimeZone

OPTION = "deliver"


@dataclass(frozen=True, slots=True)
class Window:
    """`Window("08:00", "22:00", tz="Europe/London", days="mon-fri")`; from 22:00 to 06:00 it spans midnight."""

    start: TimeOfDay
    end: TimeOfDay  # the first moment after the window
    tz: str = "UTC"
    days: Weekday | Sequence[Weekday] = "mon-sun"  # the days on which it opens

    def __post_init__(self) -> None:
        try:
            self.local()
        except InvalidSchedule as error:
            msg = f"a window for delivery: {error}"
            raise ConfigurationError(msg) from error

    @staticmethod
    def of_person(person: str | Callable[[Any], str]) -> PersonWindow:
        """Deliver outside a person's quiet hours. Give an id or, on a task, a function of the payload."""
        return PersonWindow(person)

    def local(self) -> LocalHours:
        from mainspring.features.schedules.rules.hours import Hours  # noqa: PLC0415 - see the module's docstring
        from mainspring.features.schedules.rules.parse import times_of_day, weekdays  # noqa: PLC0415
        from mainspring.features.schedules.rules.tz import PACKAGED  # noqa: PLC0415

        (start,), (end,) = times_of_day(self.start, "start"), times_of_day(self.end, "end")
        if start == end:
            msg = f"from {start} to {end} is the whole day or nothing; leave the window out, or make it shorter"
            raise InvalidSchedule(msg)
        days = weekdays(self.days, "days")
        if not days:
            msg = "days: at least one day of the week is needed"
            raise InvalidSchedule(msg)
        return LocalHours(Hours(start, end, days), PACKAGED.get(self.tz))

    def to_data(self) -> dict[str, Any]:
        return {**self.local().hours.to_data(), "tz": self.tz}


@dataclass(frozen=True, slots=True)
class PersonWindow:
    """The hours that are not quiet for a person."""

    person: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not self.person or (not isinstance(self.person, str) and not callable(self.person)):
            given = f"Window.of_person({self.person!r})"
            msg = f"{given}: give a person's id or, on a task, a function: lambda p: p.person_id"
            raise ConfigurationError(msg)

    def to_data(self) -> dict[str, Any]:
        if not isinstance(self.person, str):
            msg = "deliver: give the person's id here; how to find it in a payload belongs on the task"
            raise ConfigurationError(msg)
        return {"person": self.person}


class LocalHours(NamedTuple):
    """Hours of the day in a time zone."""

    hours: Hours
    tz: TimeZone

    def opening(self, now: Millis) -> Millis:
        """Return this moment if it is within the hours, else when they begin."""
        found = self.hours.opening(self.tz, to_datetime(now).replace(tzinfo=None)).replace(tzinfo=UTC)
        return max(now, to_millis(found))


AnyWindow = Window | PersonWindow


def window_of(data: Mapping[str, Any]) -> AnyWindow:
    return PersonWindow(data["person"]) if "person" in data else Window(**data)
