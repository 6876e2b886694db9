"""An occasion: a birthday, an anniversary, or a kind of your own. It recurs each year."""

from __future__ import annotations

import re
from datetime import date as Date  # noqa: N812 - an occasion has a field of that name
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mainspring.features.schedules.rules.parse import length, times_of_day, write_length, write_time

KIND = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$"
DATE = re.compile(r"(?:(?P<year>\d{4})-|--)?(?P<month>\d{2})-(?P<day>\d{2})")
LEAP_YEAR = 2000
MIN_GRACE = timedelta(minutes=1)  # a shorter one could not be guaranteed


class Day(NamedTuple):
    year: int | None
    month: int
    day: int


@lru_cache(maxsize=65536)
def read_day(text: str) -> Day:
    found = DATE.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is not a date; write 1990-12-30, or 12-30 if the year is not known"
        raise ValueError(msg)
    year = None if found["year"] is None else int(found["year"])
    month, day = int(found["month"]), int(found["day"])
    try:
        Date(LEAP_YEAR if year is None else year, month, day)
    except ValueError:
        msg = f"{text} does not exist in the calendar"
        raise ValueError(msg) from None
    return Day(year, month, day)


def _date(value: Any) -> str:
    if isinstance(value, Date) and not isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, str):
        msg = f"{value!r} is not a date; write 1990-12-30, or 12-30 if the year is not known"
        raise ValueError(msg)  # noqa: TRY004 - Pydantic expects a ValueError
    year, month, day = read_day(value)
    return f"{month:02}-{day:02}" if year is None else f"{year:04}-{month:02}-{day:02}"


def _at(value: Any) -> str:
    return _plain_time(value) if isinstance(value, str) else write_time(times_of_day(value)[0])


@lru_cache(maxsize=1024)
def _plain_time(text: str) -> str:
    return write_time(read_time(text))


def _grace(value: Any) -> str:
    return _plain_grace(value) if isinstance(value, str) else _checked_grace(value)


@lru_cache(maxsize=1024)
def _plain_grace(text: str) -> str:
    return _checked_grace(text)


def _checked_grace(value: Any) -> str:
    if (found := length(value, "grace")) < MIN_GRACE:
        msg = f"a grace of {value} is too short; give at least 1m"
        raise ValueError(msg)
    return write_length(found)


@lru_cache(maxsize=1024)
def read_time(text: str) -> time:
    return times_of_day(text)[0]


@lru_cache(maxsize=1024)
def read_grace(text: str) -> timedelta:
    return length(text, "grace")


class Occasion(BaseModel):
    """`Occasion(kind="birthday", date="1990-12-30")`. Local times are those of the person's time zone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(pattern=KIND)
    date: Annotated[str, BeforeValidator(_date)]  # 1990-12-30, or 12-30 if the year is not known
    at: Annotated[str, BeforeValidator(_at)] = "09:00"  # local time
    feb29: Literal["feb28", "mar1", "skip"] = "feb28"  # when 29 February is celebrated in other years
    late: Literal["send", "skip"] = "send"  # if it is put on the day itself, after its time: send at once, or next year
    grace: Annotated[str, BeforeValidator(_grace)] = "3d"  # how late it may be sent after an outage
    template: str | None = None
    channel: str | None = None

    # set for a handler only, not stored
    on: Date | None = Field(default=None, exclude=True, repr=False)  # the local date that the handler runs for
    due: datetime | None = Field(default=None, exclude=True, repr=False)  # the instant: its local time, in UTC
    lateness: timedelta = Field(default=timedelta(), exclude=True, repr=False)  # how late the job was inserted

    @property
    def day(self) -> Day:
        return read_day(self.date)

    @property
    def year(self) -> int | None:
        """Return the year of birth or of the wedding, or None if it is not known."""
        return self.day.year

    @property
    def age(self) -> int | None:
        """Return how many years ago it was, on the day that a handler runs for. None if the year is not known."""
        return None if self.on is None or self.year is None else self.on.year - self.year
