"""People out of CSV files: which column says what, and what is wrong with a row."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mainspring.errors import ConfigurationError, InvalidPerson
from mainspring.occasions.occasion import Occasion
from mainspring.occasions.person import NO_ID, Person, is_id, person_of
from mainspring.schedule.parse import did_you_mean

PLAIN = ("id", "zone", "first_name", "last_name", "email", "locale", "quiet")
KNOWN_KINDS = ("birthday", "anniversary")
DETAILS = tuple(name for name in Occasion.model_fields if name not in {"kind", "date", "on", "due", "lateness"})
DELIMITERS = ",;\t|"


class Problem(NamedTuple):
    line: int
    column: str  # empty: the whole row
    reason: str


@dataclass(slots=True)
class Report:
    """What became of a file's rows."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def bad_rows(self) -> int:
        return len({problem.line for problem in self.problems})

    def count(self, became: Iterable[object]) -> None:
        """Add the rows that became one of these; others are problems."""
        number = Counter(became)
        self.created += number["created"]
        self.updated += number["updated"]
        self.unchanged += number["unchanged"]


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    values: Mapping[tuple[str, ...], str]
    columns: Mapping[tuple[str, ...], str]  # their names in the file

    @property
    def id(self) -> str:
        return self.values.get(("id",), "")

    def change(self, known: Person | None) -> Person:
        """What the row's cells say; an empty cell says nothing, and what is known stays."""
        data: dict[str, Any] = {} if known is None else {name: getattr(known, name) for name in Person.model_fields}
        occasions = {one.kind: one.model_dump(exclude_none=True) for one in data.get("occasions", ())}
        for path, value in self.values.items():
            if len(path) == 1:
                data[path[0]] = value
            elif path[0] == "occasions":
                _, kind, name = path
                occasions.setdefault(kind, {"kind": kind})[name] = value
            else:
                name, key = path
                data[name] = {**data.get(name, {}), key: value}
        data["occasions"] = list(occasions.values())
        try:
            return person_of(data)
        except InvalidPerson as error:
            problems = [(self._column(where.split("."), list(occasions)), why) for where, why in error.problems]
            raise InvalidPerson(str(error), problems) from error

    def _column(self, where: Sequence[str], kinds: Sequence[str]) -> str:
        path = (where[0], kinds[int(where[1])], *where[2:]) if where[0] == "occasions" and where[1:] else tuple(where)
        return self.columns.get(path, ".".join(path))


def read_rows(
    path: str | PathLike[str], renamed: Mapping[str, str], kinds: Iterable[str], report: Report
) -> Iterator[Row]:
    """Those that can be read; what cannot goes into the report."""
    with Path(path).open("r", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        lines = csv.reader(file, delimiter=_delimiter(first))
        header = next(lines, None)
        if not header:
            msg = f"{path} is empty; its first line names the columns: id, zone, first_name, email, birthday, …"
            raise ConfigurationError(msg)
        places = columns_of(header, renamed, [*KNOWN_KINDS, *kinds])
        names = {place: name for name, place in zip(header, places, strict=True) if place}
        begin = lines.line_num + 1
        while (cells := _next(lines, report)) is not None:
            row = _row(cells, begin, places, names, report)
            begin = lines.line_num + 1
            if row is not None:
                yield row


def _next(lines: Any, report: Report) -> list[str] | None:
    while True:
        try:
            found: list[str] | None = next(lines, None)
        except csv.Error as error:
            report.problems.append(Problem(lines.line_num, "", str(error)))
        else:
            return found


def _row(
    cells: Sequence[str],
    line: int,
    places: Sequence[tuple[str, ...] | None],
    names: Mapping[tuple[str, ...], str],
    report: Report,
) -> Row | None:
    cells = [cell.strip() for cell in cells]
    if not any(cells):
        return None
    problem = _trouble(cells, places)
    if problem:
        report.problems.append(Problem(line, "", problem))
        return None
    values = {place: cell for place, cell in zip(places, cells, strict=False) if place and cell}
    if not is_id(who := values.get(("id",), "")):
        report.problems.append(Problem(line, names[("id",)], NO_ID.format(who)))
        return None
    return Row(line, values, names)


def _trouble(cells: Sequence[str], places: Sequence[object]) -> str:
    if len(cells) > len(places):
        return f"{len(cells)} cells, but there are {len(places)} columns; is a delimiter not quoted?"
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:  # bytes that were escaped when they were read
        return "this is not UTF-8; save the file as UTF-8"
    return ""


# -- columns ------------------------------------------------------------------------------------------------


def columns_of(header: Sequence[str], renamed: Mapping[str, str], kinds: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Where each column's values go; None: nowhere, as it was renamed to nothing."""
    if missing := [name for name in renamed if name not in header]:
        msg = f"there is no column {missing[0]!r} to rename; the columns are {', '.join(header)}"
        raise ConfigurationError(msg)
    given = [renamed.get(name, name).strip() for name in header]
    all_kinds = {
        *kinds,
        *(name.split(".")[1] for name in given if name.startswith("occasion.") and name.count(".") > 0),
    }
    places = [_place(name, all_kinds) for name in given]
    if twice := [name for name, number in Counter(filter(None, places)).items() if number > 1]:
        msg = f"two columns say {'.'.join(twice[0])}; rename one of them to nothing"
        raise ConfigurationError(msg)
    if ("id",) not in places:
        msg = (
            f"no column is called id; the columns are {', '.join(header)}. Rename the right one: columns={{'…': 'id'}}"
        )
        raise ConfigurationError(msg)
    return places


def _place(name: str, kinds: Iterable[str]) -> tuple[str, ...] | None:
    """`email`, `address.sms`, `attribute.team`, `birthday`, `birthday.at`, `occasion.name-day`."""
    if not name:
        return None
    if name in PLAIN:
        return (name,)
    first, dot, rest = name.removeprefix("occasion.").partition(".")
    if first in kinds and rest in ("", *DETAILS):
        return ("occasions", first, rest or "date")
    if dot and rest and first in {"address", "attribute"}:
        return ("addresses" if first == "address" else "attributes", rest)
    raise ConfigurationError(_unknown(name, kinds))


def _unknown(name: str, kinds: Iterable[str]) -> str:
    possible = [*PLAIN, *kinds]
    hint = did_you_mean(name, possible)
    return (
        f"nothing is known for the column {name!r}{hint or '.'} "
        f"Columns are {', '.join(PLAIN)}, address.…, attribute.…, "
        f"{', '.join(sorted(set(kinds)))} (and those with {', '.join('.' + one for one in DETAILS)}), occasion.…; "
        "rename it, or to nothing if it is not wanted"
    )


def _delimiter(first: str) -> str:
    return max(DELIMITERS, key=first.count)
