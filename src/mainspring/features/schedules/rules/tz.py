"""Time zones: converts wall times to instants, and finds when clocks change.

Time zones come from the `tzdata` package, not from the machine's own files, so that all processes of an installation
agree and the version in use is known. `TzData(directory)` reads another version, to see what it would change.
"""

from __future__ import annotations

import importlib
import importlib.resources
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

from mainspring.errors import UnknownTimeZone
from mainspring.features.schedules.rules.parse import did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Gap = Literal["shift", "skip"]
Fold = Literal["first", "second", "both"]
GAPS: tuple[Gap, ...] = ("shift", "skip")
FOLDS: tuple[Fold, ...] = ("first", "second", "both")

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
CHANGE_MARGIN = timedelta(days=3)  # longer than clocks ever move, shorter than the time between two changes


@dataclass(frozen=True, slots=True)
class Transition:
    """The instant (naive UTC) at which a time zone's clocks change from one offset to another."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def is_fold(self) -> bool:
        return self.after < self.before


@dataclass(frozen=True, slots=True)
class Span:
    """A period (naive UTC, end excluded) with one offset; `before` and `after` are the offsets around it."""

    start: datetime
    end: datetime
    offset: timedelta
    before: timedelta
    after: timedelta


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant that a wall time stands for."""

    utc: datetime  # naive
    offset: timedelta  # of the time zone at that instant
    shifted: timedelta = timedelta()  # how far the wall time was moved, because clocks skip it
    fold: Literal["first", "second"] | None = None  # which one, if the wall time comes twice


class TimeZone:
    """One IANA time zone. In this class, instants are naive UTC and wall times are naive local time."""

    def __init__(self, key: str, info: ZoneInfo) -> None:
        self.key = key
        self.info = info
        self._years: dict[int, tuple[Transition, ...]] = {}

    def offset(self, utc: datetime) -> timedelta:
        offset = utc.replace(tzinfo=UTC).astimezone(self.info).utcoffset()
        assert offset is not None  # noqa: S101 - a ZoneInfo always knows
        return offset

    def resolve(self, local: datetime, gap: Gap = "shift", fold: Fold = "first") -> tuple[Instant, ...]:
        """Return the instants that a wall time stands for: one, none (skipped in a gap) or two (both in a fold).

        A time in a gap is read with the offset before the gap, as RFC 5545 requires: 02:30 becomes 03:30.
        """
        first, second = self._offset_of(local, fold=0), self._offset_of(local, fold=1)
        if first == second:
            return (Instant(local - first, first),)
        if first < second:
            return (Instant(local - first, second, second - first),) if gap == "shift" else ()
        instants = (Instant(local - first, first, fold="first"), Instant(local - second, second, fold="second"))
        return {"first": instants[:1], "second": instants[1:], "both": instants}[fold]

    def first_instant(self, local: datetime) -> datetime:
        """Return the same instant as `resolve` with gap="shift" and fold="first", in a third of the time."""
        return local - self._offset_of(local, fold=0)

    def _offset_of(self, local: datetime, fold: int) -> timedelta:
        offset = local.replace(tzinfo=self.info, fold=fold).utcoffset()
        assert offset is not None  # noqa: S101 - a ZoneInfo always knows
        return offset

    def span(self, utc: datetime) -> Span:
        """Return the span around an instant. It ends with the year at the latest, as no caller needs more at once."""
        offset = self.offset(utc)
        known = self.transitions(utc.year)
        later = bisect_right(known, utc, key=lambda transition: transition.at)
        last = self._last(utc, known[:later])
        start, before = (last.at, last.before) if last else (utc - CHANGE_MARGIN, offset)
        if later < len(known):
            return Span(start, known[later].at, offset, before, known[later].after)
        return Span(start, datetime(utc.year + 1, 1, 1), offset, before, offset)

    def _last(self, utc: datetime, this_year: tuple[Transition, ...]) -> Transition | None:
        if not this_year and utc.timetuple().tm_yday <= CHANGE_MARGIN.days + 1:
            this_year = self.transitions(utc.year - 1)
        return this_year[-1] if this_year and this_year[-1].at <= utc else None

    def transitions(self, year: int) -> tuple[Transition, ...]:
        """Return the clock changes after the start of the year (UTC), up to and including the start of the next one."""
        found = self._years.get(year)
        if found is None:
            found = self._years[year] = tuple(self._search(year))
        return found

    def _search(self, year: int) -> Iterator[Transition]:
        """Find the clock changes of a year by comparing the offsets of consecutive days.

        A ZoneInfo has no list of its changes. Clocks never change twice within a day, so no change is missed.
        """
        low, high = datetime(year, 1, 1), datetime(year + 1, 1, 1)
        wall = (low - 2 * DAY).replace(tzinfo=self.info)
        before = wall.utcoffset()
        for _ in range((high - low).days + 4):
            wall += DAY
            after = wall.utcoffset()
            if after != before and before is not None and after is not None:
                at = self._pinpoint(wall.replace(tzinfo=None) - DAY - before, after)
                if low < at <= high:
                    yield Transition(at, before, after)
            before = after

    def _pinpoint(self, near: datetime, after: timedelta) -> datetime:
        """Return the second at which an offset begins, within about two days of an instant."""
        low, high = near - DAY, near + 3 * DAY
        while high - low > SECOND:
            middle = (low + (high - low) // 2).replace(microsecond=0)
            low, high = (low, middle) if self.offset(middle) == after else (middle, high)
        return high

    def changes_on(self, day: date) -> tuple[Transition, ...]:
        """Return the clock changes within a local day or at its ends."""
        low = datetime.combine(day, time()) - self._offset_of(datetime.combine(day, time()), fold=0)
        high = datetime.combine(day + DAY, time()) - self._offset_of(datetime.combine(day + DAY, time()), fold=1)
        known = (t for year in sorted({low.year, high.year}) for t in self.transitions(year))
        return tuple(t for t in known if low <= t.at < high)


class TzData:
    """The time zones of a directory with the layout of /usr/share/zoneinfo, or of the `tzdata` package."""

    def __init__(self, directory: Path | None = None) -> None:
        self._root: Traversable = directory or importlib.resources.files("tzdata").joinpath("zoneinfo")
        self._packaged = directory is None
        self._known: dict[str, TimeZone] = {}

    @property
    def version(self) -> str:
        """Return the version of the database, such as 2026a."""
        if self._packaged:
            return _packaged_version()
        for name in ("+VERSION", "version"):
            file = self._root.joinpath(name)
            if file.is_file():
                return file.read_text("ascii").strip()
        return f"of {self._root}"

    @contextmanager
    def reading(self, other: TzData) -> Iterator[None]:
        """Use the time zones of `other` within this context, as if that tzdata were installed. For tests of updates."""
        before = self._root, self._packaged, self._known
        self._root, self._packaged, self._known = other._root, other._packaged, other._known
        try:
            yield
        finally:
            self._root, self._packaged, self._known = before

    def get(self, key: str) -> TimeZone:
        try:
            return self._known[key]
        except (KeyError, TypeError):  # not loaded yet; or not hashable, so not a name
            if not _is_name(key):
                raise UnknownTimeZone(_unknown(key)) from None
        return self._known.setdefault(key, self._load(key))

    def _load(self, key: str) -> TimeZone:
        try:
            with self._root.joinpath(key).open("rb") as file:
                return TimeZone(key, ZoneInfo.from_file(file, key))
        except FileNotFoundError:
            msg = f"{key} is not in {self._root}"
            raise UnknownTimeZone(msg) from None


def tzdata_version() -> str:
    """Return the version of the IANA database in use, such as 2026a."""
    return PACKAGED.version


@cache
def _packaged_version() -> str:
    return str(vars(importlib.import_module("tzdata"))["IANA_VERSION"])


@cache
def tz_names() -> frozenset[str]:
    """Return the names of all time zones."""
    listed = importlib.resources.files("tzdata").joinpath("zones").read_text("ascii")
    return frozenset(listed.split())


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key in tz_names()


def _unknown(key: object) -> str:
    keys = sorted(tz_names())
    by_lower = {name.lower(): name for name in keys}
    tidy = str(key).strip().replace(" ", "_").lower()
    if tidy in by_lower:
        return f"{key!r} is not an IANA time zone; did you mean {by_lower[tidy]}?"
    cities = [name for name in keys if name.rpartition("/")[2].lower() == tidy]
    if cities:
        return f"{key!r} is not an IANA time zone; did you mean {' or '.join(cities)}?"
    if tidy[:1] in ("+", "-") or tidy.startswith(("utc", "gmt")):
        return f"{key!r} is not an IANA time zone; name a place, such as Europe/Paris, so that DST is right, or UTC"
    return f"{key!r} is not an IANA time zone{did_you_mean(tidy, keys) or '; names look like Europe/London'}"


PACKAGED = TzData()
