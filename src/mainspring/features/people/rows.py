"""Reads people from CSV files: which column holds what, and what is wrong with a row."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mainspring.errors import ConfigurationError, InvalidPerson
from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import INVALID_ID, Person, is_id, person_of
from mainspring.features.schedules.rules.parse import did_you_mean

PLAIN = ("id", "tz", "first_name", "last_name", "email", "locale", "quiet")
KNOWN_KINDS = ("birthday", "anniversary")
SAME_AS = {"timezone": "tz"}  # other names for columns
DETAILS = tuple(name for name in Occasion.model_fields if name not in {"kind", "date", "on", "due", "lateness"})
DELIMITERS = ",;\t|"


class Problem(NamedTuple):
    line: int
    column: str  # empty if it concerns the whole row
    reason: str


@dataclass(slots=True)
class Report:
    """The result of importing a file."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def bad_rows(self) -> int:
        return len({problem.line for problem in self.problems})

    def count(self, became: Iterable[object]) -> None:
        """Count the rows by their outcome. Errors are not counted; they are in `problems`."""
        number = Counter(became)
        self.created += number["created"]
        self.updated += number["updated"]
        self.unchanged += number["unchanged"]


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    values: Mapping[tuple[str, ...], str]
    columns: Mapping[tuple[str, ...], str]  # the columns' names in the file

    @property
    def id(self) -> str:
        return self.values.get(("id",), "")

    def change(self, known: Person | None) -> Person:
        """Return the person with the values of the row. An empty cell changes nothing."""
        data: dict[str, Any] = {} if known is None else {name: getattr(known, name) for name in Person.model_fields}
        occasions = {old.kind: old.model_dump(exclude_none=True) for old in data.get("occasions", ())}
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
    """Yield the rows that can be read; the problems of others go into the report."""
    with Path(path).open("r", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        lines = csv.reader(file, delimiter=_delimiter(first))
        header = next(lines, None)
        if not header:
            msg = f"{path} is empty; its first line names the columns: id, tz, first_name, email, birthday, …"
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
    problem = _problem_of(cells, places)
    if problem:
        report.problems.append(Problem(line, "", problem))
        return None
    values = {place: cell for place, cell in zip(places, cells, strict=False) if place and cell}
    if not is_id(person_id := values.get(("id",), "")):
        report.problems.append(Problem(line, names[("id",)], INVALID_ID.format(person_id)))
        return None
    return Row(line, values, names)


def _problem_of(cells: Sequence[str], places: Sequence[object]) -> str:
    if len(cells) > len(places):
        return f"{len(cells)} cells, but there are {len(places)} columns; is a delimiter not quoted?"
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:  # bytes that `surrogateescape` has replaced
        return "this is not UTF-8; save the file as UTF-8"
    return ""


# -- columns ------------------------------------------------------------------------------------------------


def columns_of(header: Sequence[str], renamed: Mapping[str, str], kinds: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Return the path of each column's values in a person; None for a column that was renamed to nothing."""
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
        msg = f"two columns are {'.'.join(twice[0])}; rename one of them to '' to ignore it"
        raise ConfigurationError(msg)
    if ("id",) not in places:
        msg = f"no column is named id; the columns are {', '.join(header)}. Rename the right one: columns={{'…': 'id'}}"
        raise ConfigurationError(msg)
    return places


def _place(name: str, kinds: Iterable[str]) -> tuple[str, ...] | None:
    """Return the path for `email`, `address.sms`, `attribute.team`, `birthday`, `birthday.at`, `occasion.name-day`."""
    if not name:
        return None
    name = SAME_AS.get(name, name)
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
        f"the column {name!r} is unknown{hint or '.'} "
        f"Columns are {', '.join(PLAIN)}, address.…, attribute.…, "
        f"{', '.join(sorted(set(kinds)))} (also with {', '.join('.' + detail for detail in DETAILS)}), occasion.…; "
        "rename it, or rename it to '' to ignore it"
    )


def _delimiter(first: str) -> str:
    return max(DELIMITERS, key=first.count)
