"""`mainspring stats --since` on a screen: numbers over time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo

from mainspring.cli.table import Cell, Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.humanize import show_length
from mainspring.json_data import PERCENTILES
from mainspring.numbers import Histogram, Numbers, Tally, zone_of

SHOWN_WHOLE = 10  # jobs per second, from which on a rate is shown without a fraction
COLUMNS = (
    Column("ENQUEUED", right=True),
    Column("STARTED", right=True, extra=True),
    Column("COMPLETED", right=True),
    Column("FAILED", right=True),
    Column("RETRIED", right=True, extra=True),
    Column("DEAD", right=True),
    Column("CANCELLED", right=True, extra=True),
    Column("STALLED", right=True, extra=True),
    Column("FAILURES", right=True),
    Column("WAIT P50", right=True, extra=True),
    Column("P95", right=True),
    Column("RUN P50", right=True, extra=True),
    Column("P95", right=True),
    Column("PER SECOND", right=True, extra=True),
)


def say_numbers(terminal: Terminal, numbers: Numbers, by: str | None) -> None:
    """Print a line for each step or, with `by`, for each queue or task; and the total."""
    if by is None:
        zone = zone_of(numbers.zone)
        rows = [row(show_start(tally.start, numbers.step, zone), tally) for tally in numbers.series]
    else:
        rows = [row(name, part.total) for name, part in numbers.groups.items()]
    title = by.upper() if by is not None else f"{numbers.step.upper()}, {numbers.zone}"
    terminal.table((Column(title, least=8), *COLUMNS), [*rows, row(Styled("total", "bold"), numbers.total)])


def row(first: Cell, tally: Tally) -> list[Cell]:
    return [
        first,
        number(tally.enqueued),
        number(tally.started),
        number(tally.completed, "green"),
        number(tally.failed, "yellow"),
        number(tally.retried, "yellow"),
        number(tally.dead, "red"),
        number(tally.cancelled),
        number(tally.stalled, "yellow"),
        Styled(f"{tally.failure_rate:.1%}", "yellow" if tally.failed else "dim"),
        *lengths(tally.wait),
        *lengths(tally.duration),
        rate(tally.throughput),
    ]


def number(value: int, style: str = "") -> Cell:
    return Styled(f"{value:,}", style if value else "dim")


def rate(per_second: float) -> Cell:
    """Return completed jobs per second, to two digits: 1,200 or 0.0035."""
    shown = f"{per_second:,.0f}" if per_second >= SHOWN_WHOLE else f"{per_second:.2g}"
    return Styled(shown, "" if per_second else "dim")


def lengths(histogram: Histogram) -> Iterable[Cell]:
    for percent in PERCENTILES[:2]:
        length = histogram.percentile(percent)
        yield "" if length is None else show_length(length)


def show_start(start: datetime, step: str, zone: tzinfo) -> str:
    local = start.astimezone(zone)
    return f"{local:%Y-%m-%d}" if step == "day" else f"{local:%Y-%m-%d %H:%M}"
