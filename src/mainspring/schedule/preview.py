"""What a schedule will do, and what a change would do to it, before anything is saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from typing import Literal

from mainspring.schedule.occurrence import Occurrence
from mainspring.schedule.reading import instant
from mainspring.schedule.schedule import Schedule
from mainspring.schedule.words import span_of_time
from mainspring.schedule.zones import DAY, PACKAGED, Transition, Zone, Zones


@dataclass(frozen=True, slots=True)
class Row:
    """One coming fire. All three times are the same instant."""

    occurrence: Occurrence
    local: datetime  # in the schedule's zone
    utc: datetime
    reader: datetime  # in the reader's zone
    notes: tuple[str, ...]  # whatever is unusual: clocks that change that day, a time that was moved or comes twice


@dataclass(frozen=True, slots=True)
class Change:
    kind: Literal["added", "removed", "moved"]
    before: Occurrence | None
    after: Occurrence | None


def preview(
    schedule: Schedule, after: datetime, count: int = 10, *, reader: str = "UTC", zones: Zones = PACKAGED
) -> list[Row]:
    """The next fires. An interval from the last finish is shown as if runs took no time."""
    zone, eyes = zones.get(schedule.zone), zones.get(reader)
    rows = []
    for found in islice(_fires(schedule, instant(after, "after"), zones), count):
        changes = zone.changes_on(found.local.date())
        notes = (*(_clocks(change) for change in changes), *_fate(found))
        rows.append(Row(found, found.utc.astimezone(zone.info), found.utc, found.utc.astimezone(eyes.info), notes))
    return rows


def compare(
    before: Schedule,
    after: Schedule,
    low: datetime,
    high: datetime,
    *,
    zones_before: Zones = PACKAGED,
    zones_after: Zones = PACKAGED,
) -> list[Change]:
    """What is different between two instants if the one schedule, or version of tzdata, is replaced by the other.

    Occurrences are matched by their keys, so a wall time whose instant changes has moved.
    """
    old = {found.key: found for found in before.between(low, high, zones=zones_before)}
    new = {found.key: found for found in after.between(low, high, zones=zones_after)}
    changes = [Change("removed", old[key], None) for key in old.keys() - new.keys()]
    changes += [Change("added", None, new[key]) for key in new.keys() - old.keys()]
    changes += [Change("moved", old[key], new[key]) for key in old.keys() & new.keys() if old[key].utc != new[key].utc]
    return sorted(changes, key=_when)


def remarks(schedule: Schedule, low: datetime, high: datetime, *, zones: Zones = PACKAGED) -> list[tuple[date, str]]:
    """What becomes of its times on the days between two instants on which clocks change. Local days, in order."""
    found: list[tuple[date, str]] = []
    if schedule.rule.continuous:  # goes on in real time, whatever the clocks show
        return found
    for change in _transitions(zones.get(schedule.zone), instant(low, "low"), instant(high, "high")):
        near = change.at.replace(tzinfo=UTC) - DAY, change.at.replace(tzinfo=UTC) + DAY
        found += [(one.nominal.date(), text) for one in schedule.between(*near, zones=zones) for text in _fate(one)]
        if schedule.gap == "skip":
            moved = dataclasses.replace(schedule, gap="shift").between(*near, zones=zones)
            found += [(one.nominal.date(), _left_out(one)) for one in moved if one.shifted]
    return found


def _transitions(zone: Zone, low: datetime, high: datetime) -> Iterator[Transition]:
    for year in range(low.year, high.year + 1):
        for change in zone.transitions(year):
            if low <= change.at.replace(tzinfo=UTC) < high:
                yield change


def _left_out(found: Occurrence) -> str:
    return f"{found.nominal:%H:%M} does not exist that day and is left out"


def _fires(schedule: Schedule, after: datetime, zones: Zones) -> Iterator[Occurrence]:
    found = schedule.next_after(after, zones=zones)
    while found is not None:
        yield found
        found = schedule.next_after(found.utc, zones=zones)


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


def _when(change: Change) -> datetime:
    found = change.after or change.before
    assert found is not None  # noqa: S101 - each change has one of the two
    return found.utc
