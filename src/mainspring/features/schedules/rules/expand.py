"""Converts the wall times of a rule to instants, in the order of instants.

`Walk` goes from span to span; a span is a period with one offset. Within a span, wall times and instants have the same
order, so one call of the rule is enough. Where two spans meet, wall times are missing (a gap) or come twice (a fold):

    gap shift   missing times are read with the offset before the gap; they fall into the beginning of the new span
    gap skip    missing times do not occur
    fold        which of the two spans has the times that come twice: the first, the second, or both

If the rule names no time in a span, the walk jumps to just before the rule's next time, so rare rules are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import MAXYEAR, datetime
from typing import Literal

from mainspring.features.schedules.rules.rule import WallRule
from mainspring.features.schedules.rules.zones import SHADOW, Fold, Gap, Instant, Span, Zone


@dataclass(frozen=True, slots=True)
class Walk:
    """The instants of a rule in a zone. All times are naive: wall times local, instants UTC."""

    rule: WallRule
    zone: Zone
    gap: Gap
    fold: Fold

    def next_from(self, utc: datetime) -> tuple[datetime, Instant] | None:
        """Return the first nominal time whose instant is not before `utc`, and that instant."""
        floor = utc
        while floor.year < MAXYEAR:
            span = self.zone.span(floor)
            found, following = self._within(span, floor)
            if found:
                return found
            if span.after < span.offset and self.fold != "first":
                floor = span.end  # the last wall times of this span come again in the next one
            elif following is None:
                return None
            else:
                floor = max(span.end, following - span.offset - SHADOW)
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
