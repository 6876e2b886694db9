"""Plans what to send next to one person for one occasion, and how a change of either affects that. Pure.

`Times` says which instant an occasion has in a year. `sent` is the date of the last message: no year gets a second
message, whatever is changed. A message that is still to be sent for a year is also sent after a change of time zone or
time. If the new time has passed, it is sent at once.

A version must understand `times` and `next` of what a newer version wrote; it keeps other fields unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import date as Date  # noqa: N812 - times have a field of that name
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from pydantic_core import from_json, to_json

from mainspring.clock import to_millis
from mainspring.errors import MainspringError
from mainspring.features.people.occasion import Occasion, read_day, read_grace, read_time
from mainspring.features.people.person import Person, quiet_hours, unreadable
from mainspring.features.schedules.rules import PACKAGED, Yearly, tzdata_version
from mainspring.features.schedules.rules.tz import TimeZone
from mainspring.stores.documents import ABSENT, Became, Document, Key, Write

LAST_YEAR = 9998
FEB29 = frozenset(get_args(Occasion.model_fields["feb29"].annotation))
SENT_RETENTION = timedelta(days=800)  # how long a deleted person's last message is remembered: this year and the next


def collection_of(kind: str) -> str:
    """Return the collection of a kind. Each has its own, so that a process reads only kinds that it handles."""
    return f"occasions.{kind}"


class Next(NamedTuple):
    """The next message."""

    on: Date  # the local date that it is for
    utc: datetime  # the instant of its time on that Date
    due: datetime  # when to send: that time, or later if it had passed when this was planned


@dataclass(slots=True)
class OccasionPlan:
    """The plan of one occasion. Treat it as immutable; `Write` says why it is not frozen."""

    person: str
    kind: str
    times: Times
    next: Next | None = None
    sent: Date | None = None  # the local date of the last message that was sent
    gone: bool = False  # the person or occasion was deleted; the plan stays to remember what was sent
    tzdata: str = field(default_factory=tzdata_version)  # the version that `next` was computed with
    version: str = ABSENT  # of its document
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of its document that only newer versions know

    # -- as a document --------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        return Key(collection_of(self.kind), "", self.person)

    @property
    def message_key(self) -> str:
        """Return the dedupe key of the next message, by which a repeat is recognised."""
        assert self.next is not None  # noqa: S101 - called only if there is one
        return f"{self.person}:{self.kind}:{self.next.on}"

    def write(self, now: datetime, became: Became | None = None) -> Write:
        """Return the write, which fails if another process has changed the plan since it was read.

        `became` is what the change feed says about the occasion; None: the occasion is as it was.
        """
        recorded = became is not None
        if self.gone and self.sent is None:
            return Write(self.key, None, expected=self.version, recorded=recorded, became=became)
        return Write(
            self.key,
            to_json(self.to_data()).decode(),
            expected=self.version,
            due_at=None if self.next is None else to_millis(self.next.due),
            expires_at=to_millis(now + SENT_RETENTION) if self.gone else None,
            recorded=recorded,
            became=became,
        )

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {**self.others, "times": self.times.to_data(), "tzdata": self.tzdata}
        if self.next is not None:
            data["next"] = self.next
        if self.sent is not None:
            data["sent"] = self.sent
        return {**data, "gone": True} if self.gone else data

    @classmethod
    def from_document(cls, document: Document) -> OccasionPlan:
        person, kind = document.key.id, document.key.collection.partition(".")[2]
        try:
            return cls._from_data(person, kind, from_json(document.data), document.version)
        except (MainspringError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, MainspringError) else repr(error)
            what = f"the plan for the {kind} of person"
            raise unreadable(person, why, what) from error

    @classmethod
    def _from_data(cls, person: str, kind: str, data: dict[str, Any], version: str) -> OccasionPlan:
        given, sent = data.pop("next", None), data.pop("sent", None)
        return cls(
            person=person,
            kind=kind,
            times=Times.from_data(data.pop("times")),
            next=None if given is None else _next(*given),
            sent=None if sent is None else Date.fromisoformat(sent),
            gone=data.pop("gone", False),
            tzdata=data.pop("tzdata"),
            version=version,
            others=data,  # the fields that were not taken above
        )

    # -- what comes next ------------------------------------------------------------------------------

    def beyond(self, *, sent: bool = False) -> OccasionPlan:
        """Return the plan for a later year, after the next message was sent or skipped."""
        assert self.next is not None  # noqa: S101 - called only if there is one
        later = self.times.from_year(self._first_year(self.next.on.year + 1))
        return OccasionPlan(  # not `replace`, which takes twice as long: every plan of a burst gets here
            self.person,
            self.kind,
            self.times,
            None if later is None else on_time(later),
            self.next.on if sent else self.sent,
            self.gone,
            tzdata_version(),
            self.version,
            self.others,
        )

    def derived(self) -> OccasionPlan:
        """Return this with the instant of the next message computed again, with today's tzdata."""
        if self.next is None or (moment := self.times.in_year(self.next.on.year)) is None:
            return replace(self, tzdata=tzdata_version())
        put_off = self.next.due > self.next.utc
        due = max(moment.utc, self.next.due) if put_off else moment.utc
        return replace(self, next=Next(moment.on, moment.utc, due), tzdata=tzdata_version())

    def rewound(self, now: datetime) -> OccasionPlan:
        """Return this with a future message that a clock which was ahead had skipped, but never one that was sent."""
        moment = self.times.from_year(self._first_year(self.times.today(now).year))
        if moment is not None and moment.utc <= now:
            moment = self.times.from_year(moment.on.year + 1)
        if self.gone or self.next is None or moment is None or moment.on.year >= self.next.on.year:
            return self
        return replace(self, next=on_time(moment), tzdata=tzdata_version())

    def _first_year(self, year: int) -> int:
        return _unsent_year(year, self.sent)


def _next(on: str, utc: str, due: str) -> Next:
    return Next(Date.fromisoformat(on), datetime.fromisoformat(utc), datetime.fromisoformat(due))


def on_time(moment: Moment) -> Next:
    return Next(moment.on, moment.utc, moment.utc)


# -- what a change does -----------------------------------------------------------------------------------


def planned(known: OccasionPlan | None, person: Person, occasion: Occasion, now: datetime) -> OccasionPlan:
    """Return the plan for an occasion as it is now. That is `known` itself if its times have not changed."""
    times = Times.of(person, occasion)
    if known is None or known.gone:
        sent, version, others = (None, ABSENT, {}) if known is None else (known.sent, known.version, known.others)
        first = _first(times, sent, occasion, now)
        return OccasionPlan(person.id, occasion.kind, times, first, sent, version=version, others=others)
    if known.times == times:
        return known
    moved = replace(known, times=times, tzdata=tzdata_version())
    candidates = [_moved(known, moved, occasion, now), _first(times, known.sent, occasion, now)]
    found = min((found for found in candidates if found is not None), key=lambda found: found.on.year, default=None)
    return replace(moved, next=found)


def ended(known: OccasionPlan) -> OccasionPlan:
    return replace(known, next=None, gone=True)


def _unsent_year(year: int, sent: Date | None) -> int:
    """Return that year, or the first one after it for which nothing was sent."""
    return year if sent is None else max(year, sent.year + 1)


def _first(times: Times, sent: Date | None, occasion: Occasion, now: datetime) -> Next | None:
    """Return the first message of a new occasion: a future one, or today's if its time has passed and `late` allows."""
    today = times.today(now)
    since = today - timedelta(days=2)  # quiet hours may delay a message to the next day
    moment = times.from_year(_unsent_year(since.year + times.is_before(since), sent))
    while moment is not None and moment.utc <= now:
        if moment.on == today and occasion.late == "send":
            return Next(moment.on, moment.utc, now)
        moment = times.from_year(moment.on.year + 1)
    return None if moment is None else on_time(moment)


def _moved(known: OccasionPlan, moved: OccasionPlan, occasion: Occasion, now: datetime) -> Next | None:
    """Return the message that was still to be sent, at its new time; if that has passed, at once.

    If the date was changed to one that has passed, it is sent only within the grace, and only if `late` allows it.
    """
    if known.next is None or (moment := moved.times.in_year(known.next.on.year)) is None:
        return None
    if moment.utc > now:
        return on_time(moment)
    if moved.times.same_day_as(known.times):
        return Next(moment.on, moment.utc, max(moment.utc, min(known.next.due, now)))
    wanted = occasion.late == "send" and now - moment.utc <= moved.times.grace_length
    return Next(moment.on, moment.utc, now) if wanted else None


# -- when --------------------------------------------------------------------------------------------------


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
def _instant(tz: TimeZone, on: Date, at: str) -> datetime:
    """Return the instant of a local time. If clocks skip it, it moves later; if it comes twice, the first counts."""
    return tz.first_instant(datetime.combine(on, read_time(at))).replace(tzinfo=UTC)


@lru_cache(maxsize=1024)
def _offset(tz: TimeZone, utc: datetime) -> timedelta:
    return tz.offset(utc.replace(tzinfo=None))
