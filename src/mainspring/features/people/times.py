"""Computes the instant of an occasion in a year, for one person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from datetime import date as Date  # noqa: N812 - times have a field of that name
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from mainspring.features.people.occasion import Occasion, read_day, read_grace, read_time
from mainspring.features.people.person import Person, quiet_hours
from mainspring.features.schedules.rules import PACKAGED, Yearly
from mainspring.features.schedules.rules.zones import Zone

LAST_YEAR = 9998
FEB29 = frozenset(get_args(Occasion.model_fields["feb29"].annotation))


class Moment(NamedTuple):
    on: Date  # the local date that it is for
    utc: datetime  # when to send, aware


class Times(NamedTuple):
    """All fields that determine when to send. They are texts, as they are compared and stored."""

    tz: str
    date: str
    at: str
    feb29: str
    grace: str
    quiet: str | None = None

    @classmethod
    def of(cls, person: Person, occasion: Occasion) -> Times:
        return cls(person.tz, occasion.date, occasion.at, occasion.feb29, occasion.grace, person.quiet)

    @property
    def grace_length(self) -> timedelta:
        return read_grace(self.grace)

    def same_day_as(self, other: Times) -> bool:
        return (self.date, self.feb29) == (other.date, other.feb29)

    def in_year(self, year: int) -> Moment | None:
        """Return its moment in a year, or None. It is first celebrated in the year after it happened."""
        first, month, day = read_day(self.date)
        if first is not None and year <= first:
            return None
        on = Date(year, month, day) if (month, day) != (2, 29) else Yearly(2, 29, feb29=self.feb29).in_year(year)
        return None if on is None else Moment(on, self.after_quiet(_instant(PACKAGED.get(self.tz), on, self.at)))

    def from_year(self, year: int) -> Moment | None:
        """Return its moment in that year, or in the first one after it in which it is celebrated."""
        first = read_day(self.date).year
        if first is not None and first >= year:
            year = first + 1
        for candidate in range(year, min(year + 9, LAST_YEAR + 1)):  # leap years are at most eight years apart
            if (found := self.in_year(candidate)) is not None:
                return found
        return None

    def is_before(self, on: Date) -> bool:
        """Return whether its day in that date's year is before that date."""
        _, month, day = read_day(self.date)
        return (month, day) < (on.month, on.day) and (month, day) != (2, 29)  # 29 February may be celebrated on 1 March

    def today(self, utc: datetime) -> Date:
        minute = utc.replace(second=0, microsecond=0)  # clocks change at full minutes, so offsets can be cached
        return (utc + _offset(PACKAGED.get(self.tz), minute)).date()

    def after_quiet(self, utc: datetime) -> datetime:
        """Return that instant or, if it is in quiet hours, their end."""
        if self.quiet is None:
            return utc
        found = quiet_hours(self.quiet).others.opening(PACKAGED.get(self.tz), utc.replace(tzinfo=None))
        return found.replace(tzinfo=UTC)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Times:
        """Read stored times. Raise at once, not when they are due, if a newer version wrote something unknown."""
        times = cls(**data)
        _check(times)
        return times

    def to_data(self) -> dict[str, Any]:
        data = {
            "tz": self.tz, "date": self.date, "at": self.at, "feb29": self.feb29, "grace": self.grace,
        }  # fmt: skip
        return data if self.quiet is None else {**data, "quiet": self.quiet}


# Caches: bursts and imports need the same instants many times. A time zone of another tzdata is another key.


@lru_cache(maxsize=16_384)
def _check(times: Times) -> None:
    """Raise an error unless all fields can be read."""
    PACKAGED.get(times.tz)
    read_day(times.date)
    read_time(times.at)
    read_grace(times.grace)
    if times.quiet is not None:
        quiet_hours(times.quiet)
    if times.feb29 not in FEB29:
        msg = f"feb29: {times.feb29!r} is not one of {', '.join(sorted(FEB29))}"
        raise ValueError(msg)


@lru_cache(maxsize=16_384)
def _instant(zone: Zone, on: Date, at: str) -> datetime:
    """Return the instant of a local time. If clocks skip it, it moves later; if it comes twice, the first counts."""
    return zone.first_instant(datetime.combine(on, read_time(at))).replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _offset(zone: Zone, utc: datetime) -> timedelta:
    return zone.offset(utc.replace(tzinfo=None))
