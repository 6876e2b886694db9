"""A year at a glance: a column per week, a row per day of the week, darker where more happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta

from mainspring.features.schedules.rules.parse import FULL_WEEKDAYS

MARKS = "·░▒▓█"
PLAIN_MARKS = ".:+*#"  # if the output is not a terminal
LABEL = 4  # characters before the first week
YEAR = 54  # number of calendar weeks that 366 days can touch
DEFAULT_WIDTH = 80
DAY = timedelta(days=1)
WEEK = timedelta(days=7)


def plot(days: Mapping[date, int], first: date, last: date, *, width: int | None, plain: bool) -> list[str]:
    """Return the lines of a calendar from the first day to the last, in as many blocks as the width requires."""
    marks = PLAIN_MARKS if plain else MARKS
    room = (width or DEFAULT_WIDTH) - LABEL - 2  # the three-letter name of a month may begin in the last week
    cell = 2 if room >= 2 * YEAR else 1
    weeks = max(1, min(YEAR, room // cell))
    most = max(days.values(), default=0)
    lines: list[str] = []
    monday = first - first.weekday() * DAY
    while monday <= last:
        end = monday + weeks * WEEK
        block = _Block(monday, min(end, last + DAY), first, cell)
        lines += [*([""] if lines else []), block.months(), *block.rows(days, most, marks)]
        monday = end
    return [*lines, "", _legend(marks, most)]


class _Block:
    def __init__(self, monday: date, end: date, first: date, cell: int) -> None:
        self.mondays = [monday + number * WEEK for number in range(-(-(end - monday).days // 7))]
        self.end, self.first, self.cell = end, first, cell

    def months(self) -> str:
        """Return the line of months: each name is above the week in which the month begins, or above the first week."""
        days = ((number, day) for number, monday in enumerate(self.mondays) for day in self._week(monday))
        begin = {number: day for number, day in days if day.day == 1 and day < self.end}
        if not any(number * self.cell < LABEL for number in begin):
            begin[0] = max(self.mondays[0], self.first)
        line = ""
        for number, day in sorted(begin.items()):
            line = line.ljust(LABEL + number * self.cell) + f"{day:%b}"
        return line

    def rows(self, days: Mapping[date, int], most: int, marks: str) -> Iterator[str]:
        for weekday, name in enumerate(FULL_WEEKDAYS):
            cells = (self._mark(monday + weekday * DAY, days, most, marks) for monday in self.mondays)
            yield f"{name[:3]:{LABEL}}{''.join(mark.ljust(self.cell) for mark in cells)}".rstrip()

    def _mark(self, day: date, days: Mapping[date, int], most: int, marks: str) -> str:
        if not self.first <= day < self.end:
            return " "
        return marks[_level(days.get(day, 0), most, len(marks) - 1)]

    def _week(self, monday: date) -> list[date]:
        return [monday + number * DAY for number in range(7)]


def _level(number: int, most: int, levels: int) -> int:
    """Return the index of the mark: 0 for no fires, the highest for the most."""
    return -(-number * levels // most) if most else 0


def _legend(marks: str, most: int) -> str:
    return f"{' ' * LABEL}none {' '.join(marks)} {most:,} a day"
