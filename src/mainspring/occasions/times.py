"""Which instant an occasion is in a year, for one person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from datetime import date as Date  # noqa: N812 - times have a field of that name
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from mainspring.occasions.occasion import Occasion, read_day, read_grace, read_time
from mainspring.occasions.person import Person
from mainspring.occasions.quiet import quiet_hours
from mainspring.schedule import PACKAGED, Yearly
from mainspring.schedule.zones import Zone

LAST_YEAR = 9998
FEB29 = frozenset(get_args(Occasion.model_fields["feb29"].annotation))


class Moment(NamedTuple):
    on: Date  # the local date that it is for
    utc: datetime  # when to send: aware


class Times(NamedTuple):
    """All that decides when. Texts, as people write them: they are compared, and kept."""

    zone: str
    date: str
    at: str
    feb29: str
    grace: str
    quiet: str | None = None

    @classmethod
    def of(cls, person: Person, occasion: Occasion) -> Times:
        return cls(person.zone, occasion.date, occasion.at, occasion.feb29, occasion.grace, person.quiet)

    @property
    def grace_length(self) -> timedelta:
        return read_grace(self.grace)

    def same_day_as(self, other: Times) -> bool:
        return (self.date, self.feb29) == (other.date, other.feb29)

    def in_year(self, year: int) -> Moment | None:
        """None: not kept in that year. A day is kept from the year after it happened."""
        first, month, day = read_day(self.date)
        if first is not None and year <= first:
            return None
        on = Date(year, month, day) if (month, day) != (2, 29) else Yearly(2, 29, feb29=self.feb29).in_year(year)
        return None if on is None else Moment(on, self.clear(_instant(PACKAGED.get(self.zone), on, self.at)))

    def from_year(self, year: int) -> Moment | None:
        """In that year, or the first one after it in which the day is kept."""
        first = read_day(self.date).year
        if first is not None and first >= year:
            year = first + 1
        for one in range(year, min(year + 9, LAST_YEAR + 1)):  # of leap years, eight lie between two at most
            if (found := self.in_year(one)) is not None:
                return found
        return None

    def is_before(self, on: Date) -> bool:
        """Whether its day in that date's year is before that date."""
        _, month, day = read_day(self.date)
        return (month, day) < (on.month, on.day) and (month, day) != (2, 29)  # which may be kept on 1 March

    def today(self, utc: datetime) -> Date:
        minute = utc.replace(second=0, microsecond=0)  # clocks change at full minutes, and one look serves many people
        return (utc + _offset(PACKAGED.get(self.zone), minute)).date()

    def clear(self, utc: datetime) -> datetime:
        """That instant or, if it is in quiet hours, their end."""
        if self.quiet is None:
            return utc
        found = quiet_hours(self.quiet).others.opening(PACKAGED.get(self.zone), utc.replace(tzinfo=None))
        return found.replace(tzinfo=UTC)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Times:
        """Whatever a newer version has written that is not understood here is found out at once, not when it is due."""
        times = cls(**data)
        _check(times)
        return times

    def to_data(self) -> dict[str, Any]:
        data = {
            "zone": self.zone, "date": self.date, "at": self.at, "feb29": self.feb29, "grace": self.grace,
        }  # fmt: skip
        return data if self.quiet is None else {**data, "quiet": self.quiet}


# Bursts and imports ask for the same instants again and again. A zone of another tzdata is another object.


@lru_cache(maxsize=16_384)
def _check(times: Times) -> None:
    """Raise an error unless all of it can be read."""
    PACKAGED.get(times.zone)
    read_day(times.date)
    read_time(times.at)
    read_grace(times.grace)
    if times.quiet is not None:
        quiet_hours(times.quiet)
    if times.feb29 not in FEB29:
        msg = f"29 February: {times.feb29!r}"
        raise ValueError(msg)


@lru_cache(maxsize=16_384)
def _instant(zone: Zone, on: Date, at: str) -> datetime:
    """A local time that clocks skip is as much later; of one that comes twice, the first is meant."""
    return zone.first_instant(datetime.combine(on, read_time(at))).replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _offset(zone: Zone, utc: datetime) -> timedelta:
    return zone.offset(utc.replace(tzinfo=None))
