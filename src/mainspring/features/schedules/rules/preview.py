"""Shows what a schedule will fire, and how a change would affect that, before anything is saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice, takewhile
from typing import Literal

from mainspring.features.schedules.rules.parse import instant
from mainspring.features.schedules.rules.schedule import Schedule
from mainspring.features.schedules.rules.timeline import TICK, Occurrence
from mainspring.features.schedules.rules.tz import DAY, PACKAGED, TimeZone, Transition, TzData
from mainspring.features.schedules.rules.words import span_of_time

Since = datetime | Occurrence
"""Where a schedule continues from: the newest decided occurrence or, if there is none, an instant."""


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One coming fire. All three times are the same instant."""

    occurrence: Occurrence
    local: datetime  # in the schedule's time zone
    utc: datetime
    reader: datetime  # in the reader's time zone
    notes: tuple[str, ...]  # clocks that change that day, a time that was moved or comes twice


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    kind: Literal["added", "removed", "moved"]
    before: Occurrence | None
    after: Occurrence | None


def preview_schedule(
    schedule: Schedule,
    after: datetime,
    count: int = 10,
    *,
    since: Since | None = None,
    reader: str = "UTC",
    tzdata: TzData = PACKAGED,
) -> list[PreviewRow]:
    """Return the next fires after an instant, as `fires` finds them."""
    tz, reader_tz = tzdata.get(schedule.tz), tzdata.get(reader)
    rows = []
    for found in islice(fires(schedule, after, since=since, tzdata=tzdata), count):
        changes = tz.changes_on(found.local.date())
        notes = (*(_clocks(change) for change in changes), *_fate(found))
        utc = found.utc
        rows.append(PreviewRow(found, utc.astimezone(tz.info), utc, utc.astimezone(reader_tz.info), notes))
    return rows


def fires(
    schedule: Schedule, now: datetime, *, since: Since | None = None, tzdata: TzData = PACKAGED
) -> Iterator[Occurrence]:
    """Yield what a schedule will fire, as seen from an instant.

    `since` is where it continues from, as for `Schedule.decide`: decided occurrences are left out, and overdue ones
    come first, as far as the misfire policy catches them up. Without `since`, only occurrences after `now` are
    considered. An interval from the last finish is shown as if runs took no time.
    """
    now = instant(now, "after")
    decision = schedule.decide(now if since is None else since, now, tzdata=tzdata)
    yield from (due.occurrence for due in decision.fires)
    found = decision.next
    if found is None and decision.fires and schedule.rule.from_finish:
        found = schedule.next_after(now, tzdata=tzdata)
    while found is not None:
        yield found
        found = schedule.next_after(found.utc, tzdata=tzdata)


def compare_schedules(
    before: Schedule | None,
    after: Schedule,
    low: datetime,
    high: datetime,
    *,
    since_before: Since | None = None,
    since_after: Since | None = None,
    tzdata_before: TzData = PACKAGED,
    tzdata_after: TzData = PACKAGED,
) -> list[ScheduleChange]:
    """Return how the fires between two instants change if a schedule or version of tzdata is replaced by another.

    Occurrences are matched by their keys, so a wall time whose instant changes counts as moved. With `since_before` and
    `since_after`, where each continues from, fired occurrences are left out and overdue ones are included.
    """
    old = {} if before is None else _fires_until(before, low, high, since_before, tzdata_before)
    new = _fires_until(after, low, high, since_after, tzdata_after)
    changes = [ScheduleChange("removed", old[key], None) for key in old.keys() - new.keys()]
    changes += [ScheduleChange("added", None, new[key]) for key in new.keys() - old.keys()]
    changes += [
        ScheduleChange("moved", old[key], new[key]) for key in old.keys() & new.keys() if old[key].utc != new[key].utc
    ]
    return sorted(changes, key=_when)


def _fires_until(
    schedule: Schedule, low: datetime, high: datetime, since: Since | None, tzdata: TzData
) -> dict[str, Occurrence]:
    low = instant(low, "low")
    found = fires(schedule, low if since is not None else low - TICK, since=since, tzdata=tzdata)
    return {fire.key: fire for fire in takewhile(lambda fire: fire.utc < instant(high, "high"), found)}


def remarks(schedule: Schedule, low: datetime, high: datetime, *, tzdata: TzData = PACKAGED) -> list[tuple[date, str]]:
    """Return what happens to the schedule's times on days when clocks change: local days, in order."""
    found: list[tuple[date, str]] = []
    if schedule.rule.continuous:  # it recurs in real time, so clock changes do not affect it
        return found
    for change in _transitions(tzdata.get(schedule.tz), instant(low, "low"), instant(high, "high")):
        near = change.at.replace(tzinfo=UTC) - DAY, change.at.replace(tzinfo=UTC) + DAY
        found += [
            (occurrence.nominal.date(), text)
            for occurrence in schedule.between(*near, tzdata=tzdata)
            for text in _fate(occurrence)
        ]
        if schedule.gap == "skip":
            moved = dataclasses.replace(schedule, gap="shift").between(*near, tzdata=tzdata)
            found += [(occurrence.nominal.date(), _left_out(occurrence)) for occurrence in moved if occurrence.shifted]
    return found


def _transitions(tz: TimeZone, low: datetime, high: datetime) -> Iterator[Transition]:
    for year in range(low.year, high.year + 1):
        for change in tz.transitions(year):
            if low <= change.at.replace(tzinfo=UTC) < high:
                yield change


def _left_out(found: Occurrence) -> str:
    return f"{found.nominal:%H:%M} does not exist that day and is left out"


def _clocks(change: Transition) -> str:
    where = "forward" if change.is_gap else "back"
    moved = span_of_time(abs(change.after - change.before))
    shown = f"{change.at + change.before:%H:%M} to {change.at + change.after:%H:%M}"
    return f"clocks go {where} {'1 ' if ' ' not in moved else ''}{moved} that day ({shown})"


def _fate(found: Occurrence) -> Iterator[str]:
    if found.shifted:
        yield f"{found.nominal:%H:%M} does not exist that day, so it runs at {found.local:%H:%M}"
    if found.fold:
        yield f"{found.nominal:%H:%M} comes twice that day; this is the {found.fold}"


def _when(change: ScheduleChange) -> datetime:
    found = change.after or change.before
    assert found is not None  # noqa: S101 - each change has one of the two
    return found.utc
