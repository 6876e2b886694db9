"""The occurrences of a rule in a time zone, in the order of instants. Pauses and misfires are handled elsewhere.

`Walk` goes from span to span; a span is a period with one offset. Within a span, wall times and instants have the same
order, so one call of the rule is enough. Where two spans meet, wall times are missing (a gap) or come twice (a fold):

    gap shift   missing times are read with the offset before the gap; they fall into the beginning of the new span
    gap skip    missing times do not occur
    fold        which of the two spans has the times that come twice: the first, the second, or both

If the rule names no time in a span, the walk jumps to just before the rule's next time, so rare rules are cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta, timezone
from typing import Any, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.interval import MIN_INTERVAL, Interval
from mainspring.features.schedules.rules.parse import instant as parse_instant
from mainspring.features.schedules.rules.parse import length, write_length
from mainspring.features.schedules.rules.rule import Rule, WallRule
from mainspring.features.schedules.rules.tz import CHANGE_MARGIN, Fold, Gap, Instant, Span, TimeZone

TICK = timedelta(microseconds=1)  # the shortest time between two instants
MIN_DISTANCE = MIN_INTERVAL  # between two occurrences; wall times are whole seconds


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A wall time that a rule names, and its instant."""

    nominal: datetime  # the wall time that the rule names, naive
    utc: datetime  # the instant, aware
    offset: timedelta  # of the time zone at that instant
    key: str  # identifies it, even if the time zone's rules change: see `Schedule.following`
    shifted: timedelta = timedelta()  # how far it was moved, because clocks skip the nominal time
    fold: Literal["first", "second"] | None = None  # which one, if the nominal time comes twice

    @property
    def local(self) -> datetime:
        """Return the local time at that instant. It is the nominal time, unless clocks skip that."""
        return self.utc.astimezone(timezone(self.offset))

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "nominal": self.nominal.isoformat(),
            "utc": self.utc.isoformat().replace("+00:00", "Z"),
            "offset": self.offset.total_seconds(),
            "key": self.key,
        }
        if self.shifted:
            data["shifted"] = write_length(self.shifted)
        return data if self.fold is None else {**data, "fold": self.fold}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Occurrence:
        try:
            return cls(
                nominal=datetime.fromisoformat(data["nominal"]).replace(fold=0),
                utc=parse_instant(data["utc"], "utc").astimezone(UTC),
                offset=timedelta(seconds=data["offset"]),
                key=str(data["key"]),
                shifted=length(data.get("shifted", 0), "shifted"),
                fold=data.get("fold"),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"this is not an occurrence: {data!r} ({error!r})"
            raise InvalidSchedule(msg) from None


@dataclass(frozen=True, slots=True)
class Timeline:
    rule: Rule
    tz: TimeZone
    gap: Gap
    fold: Fold
    start: datetime | None  # the first instant that is allowed
    end: datetime | None  # the first instant that is not allowed any more

    def after(self, utc: datetime) -> Occurrence | None:
        if self.start is not None and self.start > utc and not self.rule.from_finish:
            utc = self.start - TICK
        try:
            found = self._next(utc)
        except OverflowError:  # beyond the year 9999
            return None
        return None if found is None or (self.end is not None and found.utc >= self.end) else found

    def following(self, last: Occurrence) -> Occurrence | None:
        """See `Schedule.following`."""
        if self.rule.continuous or self._still_means(last):
            return self.after(last.utc)
        return self._following_nominal(last.nominal)

    def between(self, low: datetime, high: datetime) -> Iterator[Occurrence]:
        """Yield the occurrences from `low` to before `high`."""
        found = self.after(low - TICK)
        while found is not None and found.utc < high:
            yield found
            found = self.after(found.utc)

    def latest(self, low: datetime, high: datetime) -> Occurrence | None:
        """Return the last occurrence from `low` to before `high`. A binary search: there may be millions."""
        found = self.after(low - TICK)
        if found is None or found.utc >= high:
            return None
        low = found.utc
        while high - low > MIN_DISTANCE:
            middle = low + (high - low) // 2
            later = self.after(middle)
            if later is not None and later.utc < high:
                found, low = later, later.utc
            else:
                high = middle + TICK
        return found

    def _next(self, utc: datetime) -> Occurrence | None:
        if isinstance(self.rule, Interval):
            return self._of_interval(max(self.rule.next_after(utc), self.start or utc))
        assert isinstance(self.rule, WallRule)  # noqa: S101 - every rule is one of the two
        gap: Gap = "skip" if self.rule.continuous else self.gap
        fold: Fold = "both" if self.rule.continuous else self.fold
        found = Walk(self.rule, self.tz, gap, fold).next_from((utc + TICK).replace(tzinfo=None))
        return None if found is None else self._of_wall(*found)

    def _of_interval(self, utc: datetime) -> Occurrence:
        offset = self.tz.offset(utc.replace(tzinfo=None))
        return Occurrence(utc.replace(tzinfo=None) + offset, utc, offset, _instant_key(utc))

    def _of_wall(self, nominal: datetime, instant: Instant) -> Occurrence:
        utc = instant.utc.replace(tzinfo=UTC)
        return Occurrence(nominal, utc, instant.offset, self._key(nominal, instant, utc), instant.shifted, instant.fold)

    def _key(self, nominal: datetime, instant: Instant, utc: datetime) -> str:
        if self.rule.continuous:
            return _instant_key(utc)
        again = "/2" if instant.fold == "second" and self.fold == "both" else ""
        return nominal.isoformat() + again

    def _still_means(self, last: Occurrence) -> bool:
        """Return whether the time zone, by today's tzdata, still puts that nominal time at the same instant."""
        instants = self.tz.resolve(last.nominal, self.gap, self.fold)
        return any(instant.utc == last.utc.replace(tzinfo=None) for instant in instants)

    def _following_nominal(self, nominal: datetime) -> Occurrence | None:
        assert isinstance(self.rule, WallRule)  # noqa: S101 - the others are continuous
        found = self.rule.next_from(nominal + TICK)
        while found is not None:
            for instant in self.tz.resolve(found, self.gap, self.fold):
                return self._bounded(self._of_wall(found, instant))
            found = self.rule.next_from(found + TICK)
        return None

    def _bounded(self, found: Occurrence) -> Occurrence | None:
        if self.start is not None and found.utc < self.start:
            return self.after(self.start - TICK)
        return None if self.end is not None and found.utc >= self.end else found


def _instant_key(utc: datetime) -> str:
    return utc.replace(tzinfo=None).isoformat() + "Z"


@dataclass(frozen=True, slots=True)
class Walk:
    """The instants of a rule in a zone. All times are naive: wall times local, instants UTC."""

    rule: WallRule
    tz: TimeZone
    gap: Gap
    fold: Fold

    def next_from(self, utc: datetime) -> tuple[datetime, Instant] | None:
        """Return the first nominal time whose instant is not before `utc`, and that instant."""
        floor = utc
        while floor.year < MAXYEAR:
            span = self.tz.span(floor)
            found, following = self._within(span, floor)
            if found:
                return found
            if span.after < span.offset and self.fold != "first":
                floor = span.end  # the last wall times of this span come again in the next one
            elif following is None:
                return None
            else:
                floor = max(span.end, following - span.offset - CHANGE_MARGIN)
        return None

    def _within(self, span: Span, floor: datetime) -> tuple[tuple[datetime, Instant] | None, datetime | None]:
        """Return the span's first time from `floor` on, and the rule's first wall time, in the span or after it."""
        nominal = self.rule.next_from(self._opening(span, floor))
        regular = None
        if nominal is not None and nominal < self._closing(span):
            regular = nominal, Instant(nominal - span.offset, span.offset, fold=_pass(span, nominal))
        shifted = self._shifted(span, floor)
        if shifted and (regular is None or shifted[1].utc < regular[1].utc):
            return shifted, nominal  # if both are the same instant, the wall time that exists wins
        return regular, nominal

    def _opening(self, span: Span, floor: datetime) -> datetime:
        opening = max(span.start, floor) + span.offset
        if span.before > span.offset and self.fold == "first":
            return max(opening, span.start + span.before)
        return opening

    def _closing(self, span: Span) -> datetime:
        if span.after < span.offset and self.fold == "second":
            return span.end + span.after
        return span.end + span.offset

    def _shifted(self, span: Span, floor: datetime) -> tuple[datetime, Instant] | None:
        if self.gap == "skip" or span.before >= span.offset:
            return None
        opening = max(span.start, floor) + span.before
        closing = min(span.start + span.offset, span.end + span.before)
        nominal = self.rule.next_from(opening) if opening < closing else None
        if nominal is None or nominal >= closing:
            return None
        return nominal, Instant(nominal - span.before, span.offset, span.offset - span.before)


def _pass(span: Span, nominal: datetime) -> Literal["first", "second"] | None:
    if span.before > span.offset and nominal < span.start + span.before:
        return "second"
    return "first" if span.after < span.offset and nominal >= span.end + span.after else None
