"""Fixed intervals of real time, which changes of local clocks do not affect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.parse import Length, choice, instant, length
from mainspring.features.schedules.rules.rule import Rule, fill

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_INTERVAL = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True, init=False)
class Interval(Rule):
    """Interval("90s"), Interval(timedelta(hours=2), anchor=...), Interval("10m", after="finish").

    after="start": fires at the anchor plus whole intervals, so that all processes agree, whenever they start. The
    default anchor is 1970-01-01T00:00Z, so `Interval("1h")` fires on the hour.
    after="finish": fires one interval after the last run has ended. The next time is known only then.
    """

    kind: ClassVar[str] = "every"
    interval: timedelta
    anchor: datetime | None
    after: Literal["start", "finish"]

    def __init__(self, interval: Length, anchor: datetime | str | None = None, after: str = "start") -> None:
        fill(
            self,
            interval=length(interval, "interval"),
            anchor=None if anchor is None else instant(anchor, "anchor"),
            after=choice(after, ("start", "finish"), "after"),
        )
        if self.interval < MIN_INTERVAL:
            msg = f"interval: {interval!r} is shorter than the minimum of {MIN_INTERVAL.total_seconds()} s"
            raise InvalidSchedule(msg)
        if self.from_finish and self.anchor is not None:
            msg = 'anchor: an interval from the last finish has none; leave it out or use after="start"'
            raise InvalidSchedule(msg)

    @property
    def continuous(self) -> bool:
        return True

    @property
    def from_finish(self) -> bool:
        return self.after == "finish"

    def next_after(self, utc: datetime) -> datetime:
        """Return the first instant after `utc`. With after="finish", `utc` is when the last run ended."""
        if self.from_finish:
            return utc + self.interval
        anchor = self.anchor or EPOCH
        return anchor + ((utc - anchor) // self.interval + 1) * self.interval
