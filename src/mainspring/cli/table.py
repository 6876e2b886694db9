"""Tables with aligned columns that fit a given width."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

GAP = "  "
Paint = Callable[[str, str], str]  # text, style -> text


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    least: int | None = None  # on a narrow terminal it may be cut down to this many characters; None: it is never cut
    extra: bool = False  # on a very narrow terminal, this column is left out before others


@dataclass(frozen=True, slots=True)
class Styled:
    text: str
    style: str


Cell = str | Styled


def render(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], width: int | None, paint: Paint) -> list[str]:
    """Return the lines of a table. Without a width, nothing is cut or left out."""
    cells = [[_styled(cell) for cell in row] for row in rows]
    natural = [
        max([_measure(column.title), *(_measure(row[place].text) for row in cells)])
        for place, column in enumerate(columns)
    ]
    widths = dict(enumerate(natural)) if width is None else fit(columns, natural, width)
    header = [Styled(column.title, "heading") for column in columns]
    return [_line(columns, widths, row, paint) for row in (header, *cells)]


def fit(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each shown column, by its place. The widest column is cut first."""
    least = [_least(column, size) for column, size in zip(columns, natural, strict=True)]
    widths = {place: natural[place] for place in shown(columns, least, width)}
    while _total(widths) > width:
        spare = [place for place, size in widths.items() if size > least[place]]
        if not spare:
            return dict.fromkeys(widths, width)  # only the first column is left
        widths[max(spare, key=lambda place: widths[place])] -= 1
    return widths


def shown(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    """Return the places of the columns that fit, with `extra` columns last. The first column is always shown."""
    first, *others = sorted(range(len(columns)), key=lambda place: columns[place].extra)
    places, room = [first], width - least[first]
    for place in others:
        if len(GAP) + least[place] <= room:
            places.append(place)
            room -= len(GAP) + least[place]
    return sorted(places)


def _least(column: Column, natural: int) -> int:
    return natural if column.least is None else min(natural, max(column.least, len(column.title)))


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _line(columns: Sequence[Column], widths: Mapping[int, int], row: Sequence[Styled], paint: Paint) -> str:
    parts: list[str] = []
    for place, width in widths.items():
        text = cut(row[place].text, width)
        room = " " * (width - _measure(text))
        painted = paint(text, row[place].style)
        parts.append(room + painted if columns[place].right else painted + room)
    return GAP.join(parts).rstrip()


def _styled(cell: Cell) -> Styled:
    text, style = (cell, "") if isinstance(cell, str) else (cell.text, cell.style)
    return Styled(printable(text), style)


def printable(text: str) -> str:
    """Return one line without control characters: messages and payloads are not trusted to move the cursor."""
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
