"""Aligned columns that fit the width they are given."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

GAP = "  "
Paint = Callable[[str, str], str]  # text, style -> text


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    least: int | None = None  # where room is short it may be cut down to so many characters; None: it may not


@dataclass(frozen=True, slots=True)
class Styled:
    text: str
    style: str


Cell = str | Styled


def render(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], width: int | None, paint: Paint) -> list[str]:
    """The lines of a table; without a width nothing is cut. Columns that find no room are left out, the last first."""
    cells = [[_styled(cell) for cell in row] for row in rows]
    natural = [
        max([_measure(column.title), *(_measure(row[place].text) for row in cells)])
        for place, column in enumerate(columns)
    ]
    widths = natural if width is None else fit(columns, natural, width)
    shown = columns[: len(widths)]
    header = [Styled(column.title, "heading") for column in shown]
    return [_line(shown, widths, row, paint) for row in (header, *cells)]


def fit(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    widths = list(natural)
    while _total(widths) > width:
        spare = [
            place
            for place, (column, size) in enumerate(zip(columns, widths, strict=False))
            if column.least is not None and size > max(column.least, len(column.title))
        ]
        if spare:
            widths[max(spare, key=lambda place: widths[place])] -= 1
        elif len(widths) > 1:
            widths = list(natural[: len(widths) - 1])
        else:
            return [width]
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Styled], paint: Paint) -> str:
    parts: list[str] = []
    for column, width, cell in zip(columns, widths, row, strict=False):
        text = cut(cell.text, width)
        room = " " * (width - _measure(text))
        painted = paint(text, cell.style)
        parts.append(room + painted if column.right else painted + room)
    return GAP.join(parts).rstrip()


def _styled(cell: Cell) -> Styled:
    text, style = (cell, "") if isinstance(cell, str) else (cell.text, cell.style)
    return Styled(printable(text), style)


def printable(text: str) -> str:
    """One line that cannot move the cursor: messages and payloads come from anywhere."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def cut(text: str, width: int) -> str:
    if _measure(text) <= width:
        return text
    kept, used = [], 1  # one for the ellipsis
    for character in text:
        used += _width(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _measure(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
