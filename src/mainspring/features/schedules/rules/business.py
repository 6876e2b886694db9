"""Business days: on which days an office is open."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.features.schedules.rules.parse import WEEKDAYS, Date, Weekday, calendar_date, weekdays
from mainspring.features.schedules.rules.rule import fill

DAY = timedelta(days=1)
MAX_CLOSURE_DAYS = 366  # a calendar that is closed for longer has no next business day


@dataclass(frozen=True, slots=True, init=False)
class BusinessCalendar:
    """BusinessCalendar("GB", "ENG"), BusinessCalendar(market="XNYS"), BusinessCalendar(closed=["2026-12-24"]).

    Holidays come from the `holidays` package (`pip install 'mainspring[calendar]'`). Without a country or a market,
    only weekends and the dates in `closed` are closed. Dates in `open` are open in any case.
    """

    country: str | None  # ISO 3166, such as GB
    subdivision: str | None  # such as ENG
    market: str | None  # a stock exchange, such as XNYS
    weekend: tuple[int, ...]  # Monday is 0
    closed: tuple[date, ...]
    open: tuple[date, ...]

    def __init__(
        self,
        country: str | None = None,
        subdivision: str | None = None,
        *,
        market: str | None = None,
        weekend: Weekday | Iterable[Weekday] = ("sat", "sun"),
        closed: Iterable[Date] = (),
        open: Iterable[Date] = (),
    ) -> None:
        fill(
            self,
            country=country,
            subdivision=subdivision,
            market=market,
            weekend=weekdays(weekend, "weekend"),
            closed=tuple(sorted(calendar_date(day, "closed") for day in closed)),
            open=tuple(sorted(calendar_date(day, "open") for day in open)),
        )
        self._check()

    def _check(self) -> None:
        if len(self.weekend) == 7:
            msg = "weekend: at least one day of the week must be a business day"
            raise InvalidSchedule(msg)
        if (self.country and self.market) or (self.subdivision and not self.country):
            msg = "give either a country, optionally with a subdivision, or a market"
            raise InvalidSchedule(msg)
        _holidays(self.country, self.subdivision, self.market)

    def is_open(self, day: date) -> bool:
        if day in self.open:
            return True
        if day.weekday() in self.weekend or day in self.closed:
            return False
        return day not in _holidays(self.country, self.subdivision, self.market)

    def next_open(self, day: date) -> date:
        """Return that day, or the first business day after it."""
        return self._seek(day, DAY)

    def previous_open(self, day: date) -> date:
        """Return that day, or the last business day before it."""
        return self._seek(day, -DAY)

    def _seek(self, day: date, step: timedelta) -> date:
        for _ in range(MAX_CLOSURE_DAYS):
            if self.is_open(day):
                return day
            day += step
        msg = f"no business day within a year of {day}"
        raise InvalidSchedule(msg)

    def describe(self) -> str:
        """Return words that can follow "business day"."""
        place = f" in {self.country}" if self.country else ""
        place += f" ({self.subdivision})" if self.subdivision else ""
        return f" of {self.market}" if self.market else place

    def to_data(self) -> dict[str, Any]:
        named = {"country": self.country, "subdivision": self.subdivision, "market": self.market}
        dates = {"closed": [day.isoformat() for day in self.closed], "open": [day.isoformat() for day in self.open]}
        weekend = [WEEKDAYS[day] for day in self.weekend]
        return {name: value for name, value in (named | dates).items() if value} | {"weekend": weekend}


@lru_cache(maxsize=256)
def _holidays(country: str | None, subdivision: str | None, market: str | None) -> Container[date]:
    if not country and not market:
        return ()
    try:
        import holidays  # noqa: PLC0415 - large, and rarely needed
    except ImportError:
        msg = "holidays by country need the package `holidays`: pip install 'mainspring[calendar]'"
        raise MissingExtra(msg) from None
    try:
        if market:
            return holidays.financial_holidays(market)
        assert country is not None  # noqa: S101 - see above
        return holidays.country_holidays(country, subdiv=subdivision)
    except (NotImplementedError, TypeError, AttributeError) as error:
        msg = f"no holidays are known for {market or country!r}{f' {subdivision!r}' if subdivision else ''}: {error}"
        raise InvalidSchedule(msg) from None
