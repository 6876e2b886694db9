"""Arrays as PostgreSQL writes them, in one text per column.

psycopg turns a list into an array item by item in Python, for 27 of the 34 µs that a job took to insert in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

LONGEST = 8 * 2**20  # characters in one statement: a value has a gigabyte at most, and is in memory several times


def of_plain(values: Iterable[object]) -> str:
    """Of numbers and ids, which need no quotes."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def of_texts(texts: Iterable[str | None]) -> str:
    return "{" + ",".join(["NULL" if text is None else quoted(text) for text in texts]) + "}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def casts(kinds: Mapping[str, str]) -> str:
    """Parameters of a statement, by their names and what is in them."""
    return ", ".join(f"%({name})s::{kind}[]" for name, kind in kinds.items())


def of_columns(kinds: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Rows, whose values are in the order of the kinds, as an array for each column."""
    return {
        name: (of_texts if kind == "text" else of_plain)(column)
        for (name, kind), column in zip(kinds.items(), zip(*rows, strict=True), strict=True)
    }


def in_parts(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """All together, unless their texts are very long."""
    part: list[Sequence[Any]] = []
    length = 0
    for row in rows:
        more = sum([len(value) for value in row if isinstance(value, str)])
        if part and length + more > LONGEST:
            yield part
            part, length = [], 0
        part.append(row)
        length += more
    if part:
        yield part
