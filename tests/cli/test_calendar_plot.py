from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

from mainspring.cli.calendar_plot import plot


def days(first: date, number: int, per_day: int = 1) -> Counter[date]:
    return Counter({first + timedelta(days=day): per_day for day in range(number)})


def test_a_year_is_a_column_per_week_and_a_row_per_day_of_the_week() -> None:
    first, last = date(2026, 1, 1), date(2026, 12, 31)
    counts = Counter({date(2026, 1, 1): 1, date(2026, 1, 5): 2, date(2026, 12, 31): 4})
    lines = plot(counts, first, last, width=80, plain=True)
    assert lines[0] == "    Jan Feb Mar  Apr May  Jun Jul Aug  Sep Oct Nov  Dec"
    assert [line[:4] for line in lines[1:8]] == ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "]
    assert lines[1] == "Mon  +" + "." * 51
    assert lines[4] == "Thu :" + "." * 51 + "#"
    assert lines[7] == "Sun " + "." * 52
    assert lines[-1] == "    none . : + * # 4 a day"


def test_every_day_is_shown_once() -> None:
    first = date(2027, 3, 10)
    for number in (1, 7, 30, 365, 366, 900):
        for width in (30, 57, 80, 140, None):
            lines = plot(days(first, number), first, first + timedelta(days=number - 1), width=width, plain=True)
            assert sum(line.count("#") for line in lines[:-1]) == number
            assert all(len(line) <= (width or 80) for line in lines)


def test_a_wide_terminal_gets_wide_cells_and_a_narrow_one_several_blocks() -> None:
    first, last = date(2026, 1, 1), date(2026, 12, 31)
    wide = plot(days(first, 365), first, last, width=140, plain=False)
    assert wide[4] == "Thu " + " ".join("█" * 53)
    narrow = plot(days(first, 365), first, last, width=30, plain=False)
    assert sum(line.startswith("Mon") for line in narrow) == 3


def test_days_without_fires_are_dots() -> None:
    lines = plot({}, date(2026, 1, 1), date(2026, 1, 31), width=80, plain=True)
    assert sum(line.count(".") for line in lines[:-1]) == 31
    assert lines[-1].endswith("0 a day")
