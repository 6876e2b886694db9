"""Sorted pages of jobs: what a store needs to read them in bounded time. Pure functions.

A store walks the indexes that are in the order asked for, one lane each, and checks the filter row by row. A lane is
read until there are enough jobs, or `LOOK` rows were looked at. Then the page ends early, and its cursor says how far
the read came: so each page takes bounded time, whatever is asked for, and all pages together have every job.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from mainspring.clock import shown
from mainspring.errors import InvalidCursor
from mainspring.job import FINISHED, Job, Status
from mainspring.stores.protocol import Filter, Page, Sort

LOOK = 4_000  # rows that a page may look at in one lane
LEAST_LOOK = 200  # rows in each of many lanes
QUICK = 100  # milliseconds; shorter runs count as equally long, so that they need no entry in an index
UNSELECTIVE = 4_000  # a filter that matches more rows than this is checked row by row

Spot = tuple[int, str | int]
"""The place of a job in a sorted list: its key, and what breaks ties."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a page is sorted."""

    sort: Sort = Sort.CREATED
    descending: bool = True

    def takes(self, status: Status) -> bool:
        """Return whether jobs of this status are listed: only waiting jobs are due, only finished ones have lasted."""
        if self.sort is Sort.DUE:
            return status not in FINISHED and status is not Status.RUNNING
        return status in FINISHED or self.sort in {Sort.CREATED, Sort.ATTEMPTS}

    def takes_any(self, *, finished: bool) -> bool:
        """Return whether jobs of a table are listed: that of finished jobs, or that of the others."""
        return any(self.takes(status) for status in Status if (status in FINISHED) == finished)

    @property
    def direction(self) -> str:
        return "DESC" if self.descending else "ASC"

    @property
    def beyond(self) -> str:
        """Return the comparison of jobs that come later in the list."""
        return "<" if self.descending else ">"

    @property
    def within(self) -> str:
        """Return the comparison of jobs that come earlier in the list, or of the same job."""
        return ">=" if self.descending else "<="

    def is_beyond(self, spot: Spot, other: Spot) -> bool:
        return spot < other if self.descending else spot > other


@dataclass(frozen=True, slots=True)
class PageRequest:
    where: Filter
    order: Order
    limit: int
    start: Spot | None  # the page begins after it

    def page(self, rows: Sequence[Job], end: Spot | None) -> Page:
        """Return the page with these jobs, after which the list goes on at `end`."""
        return Page(list(rows), to_cursor(self.where, self.order, end), end is not None and len(rows) < self.limit)


class Bound(NamedTuple):
    """A condition in SQL, in which `?` stands for each of the values."""

    term: str
    values: tuple[Any, ...] = ()
    ties: bool = False  # all rows have the same key


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows of one table in the order of an index."""

    table: str
    key: str | int  # an expression, or the same number for all rows
    index: str = ""  # for SQLite; empty: it chooses
    terms: tuple[str, ...] = ()  # conditions that the index answers
    values: tuple[Any, ...] = ()
    above: int | None = None  # only rows with a greater key
    below: int | None = None  # only rows with a smaller key
    split: bool = False  # SQLite's index cannot compare key and tie together: equal keys are read apart
    rest: str = ""  # a condition that only the rows can answer
    complete: bool = False  # `terms` are the whole filter: all rows match
    tie: str = "id"
    mark: str = "?"  # how a value of `tie` is passed
    look: int = LOOK  # rows that a page may look at
    unordered: bool = False  # no index of SQLite shall give the order, because one that finds few rows is better

    @property
    def spot(self) -> str:
        return f"{self.key}, {self.table}.{self.tie}"

    def ranges(self, order: Order, start: Spot | None, until: Spot | None = None) -> list[Bound]:
        """Return conditions, in the order of the list, of the rows that come after a spot, up to another one."""
        begin, end = self._past(start, order.beyond), self._past(until, order.within)
        if begin is None or end is None:
            return []
        if not self.split:
            return [both(begin, end)]
        return self._split(order, start if begin.values else None, until if end.values else None)

    def _past(self, spot: Spot | None, sign: str) -> Bound | None:
        """Return the rows past a spot as a single condition.

        Given two conditions on the key, SQLite would seek by the first, even if the second is narrower.
        """
        smaller = "<" in sign
        first, last = (self.below, self.above) if smaller else (self.above, self.below)
        if spot is None or (first is not None and (spot[0] >= first if smaller else spot[0] <= first)):
            return ALL_ROWS if first is None else Bound(f"{self.key} {sign[0]} {first}")
        if last is not None and (spot[0] <= last if smaller else spot[0] >= last):
            return None
        if isinstance(self.key, str):
            return Bound(f"({self.spot}) {sign} (?, {self.mark})", spot)
        if self.key == spot[0]:
            return Bound(f"{self.table}.{self.tie} {sign} {self.mark}", spot[1:])
        return ALL_ROWS if (self.key < spot[0]) is smaller else None

    def _split(self, order: Order, start: Spot | None, until: Spot | None) -> list[Bound]:
        """Return conditions of the rows with the first key, of those between, and of those with the last key."""
        equal, tie = f"{self.key} = ?", f"{self.table}.{self.tie}"
        begin, end = f"{tie} {order.beyond} ?", f"{tie} {order.within} ?"
        if start and until and start[0] == until[0]:
            return [Bound(f"{equal} AND {begin} AND {end}", (*start, until[1]), ties=True)]
        after = Bound(f"{self.key} {order.beyond} ?", start[:1]) if start else ALL_ROWS
        before = Bound(f"{self.key} {order.within[0]} ?", until[:1]) if until else ALL_ROWS
        first = [Bound(f"{equal} AND {begin}", start, ties=True)] if start else []
        last = [Bound(f"{equal} AND {end}", until, ties=True)] if until else []
        return [*first, both(after, before), *last]

    def sorted_by(self, order: Order, *, ties: bool = False) -> str:
        keys = [self.key] if isinstance(self.key, str) and not ties else []
        plus = "+" if self.unordered else ""
        return ", ".join(f"{plus}{column} {order.direction}" for column in (*keys, f"{self.table}.{self.tie}"))


FAILED = frozenset({Status.DEAD_LETTER, Status.CANCELLED})


def failed_statuses(where: Filter) -> list[Status]:
    """Return the wanted statuses if only failed jobs are wanted: an index has these, in the order of creation."""
    return list(dict.fromkeys(where.statuses)) if FAILED.issuperset(where.statuses) else []


def is_answered(where: Filter, statuses: Sequence[Status]) -> bool:
    """Return whether lanes for these statuses and for the wanted failure group have no other rows than wanted ones."""
    given = bool(statuses) or where.fingerprint is not None
    return given and where == Filter(statuses=where.statuses if statuses else (), fingerprint=where.fingerprint)


def shared_look(lanes: Sequence[Lane]) -> list[Lane]:
    """Return lanes that together look at about as many rows as one."""
    return [replace(lane, look=max(LEAST_LOOK, LOOK // len(lanes))) for lane in lanes]


ALL_ROWS = Bound("1 = 1")


def both(bound: Bound, other: Bound) -> Bound:
    return Bound(f"{bound.term} AND {other.term}", (*bound.values, *other.values))


@dataclass(frozen=True, slots=True)
class Found:
    """What was read in one lane: rows with their spots, in order."""

    rows: Sequence[tuple[Spot, Any]]
    until: Spot | None = None  # the last row that was looked at; None: the lane has no more


def merge(lanes: Iterable[Found], order: Order, limit: int) -> tuple[list[Any], Spot | None]:
    """Return the rows of a page, and the spot after which the next page begins; None if this was the last.

    A lane that was not read to its end hides what comes after the last row that was looked at. So the page ends there.
    """
    found = list(lanes)
    horizons = [lane.until for lane in found if lane.until is not None]
    horizon = (max if order.descending else min)(horizons) if horizons else None
    rows = sorted((row for lane in found for row in lane.rows), key=lambda row: row[0], reverse=order.descending)
    known = [row for row in rows if horizon is None or not order.is_beyond(row[0], horizon)]
    page = [row for _, row in known[:limit]]
    if len(known) > limit:
        return page, known[limit - 1][0]
    return page, horizon


# -- cursors --------------------------------------------------------------------------------------


def to_cursor(where: Filter, order: Order, spot: Spot | None) -> str | None:
    """Return the text that a caller passes to get the next page."""
    if spot is None:
        return None
    text = json.dumps([digest(where, order), *spot], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def to_spot(where: Filter, order: Order, cursor: str | None) -> Spot | None:
    """Return the spot of a cursor. Raise InvalidCursor if it is not one of this list."""
    if cursor is None:
        return None
    try:
        mark, key, tie = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, RecursionError):
        raise not_a_cursor(cursor) from None
    if not isinstance(key, int) or abs(key) >= 2**63 or not isinstance(tie, int | str) or not isinstance(mark, str):
        raise not_a_cursor(cursor)
    if mark != digest(where, order):
        msg = (
            "this cursor is of a list with another filter or sort; repeat those of its page, or begin without a cursor"
        )
        raise InvalidCursor(msg)
    return key, tie


def not_a_cursor(cursor: object) -> InvalidCursor:
    return InvalidCursor(
        f"{shown(cursor)} is not a cursor; pass the previous page's cursor unchanged, or none for the first page"
    )


def digest(where: Filter, order: Order) -> str:
    """Return a short text that differs between lists."""
    given = {field.name: getattr(where, field.name) for field in fields(where)}
    given = {name: value for name, value in given.items() if value not in (None, (), {})}
    text = json.dumps([given, *astuple(order)], default=_plain, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:10]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else dict(value)
