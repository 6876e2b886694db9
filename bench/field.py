"""The fields: each is a kind of store, with the peers that play there, what is measured, and what we want to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import goal, plan
from bench.goal import Goal
from bench.plan import Case, Stock


@dataclass(frozen=True)
class Field:
    name: str  # of its file in `results`
    title: str
    plan: Sequence[Case]
    stocks: Sequence[Stock]
    goals: Sequence[Goal]
    minutes: int  # that a whole run takes on two quiet cores
    gigabytes: int  # of disk meanwhile
    served: bool = False  # by a PostgreSQL server, which is started for the run
    played_on: str = ""  # the field whose peers take part; empty: its own

    @property
    def peers(self) -> str:
        """Its folder in `peers`."""
        return self.played_on or self.name


FIELDS = {
    field.name: field
    for field in (
        Field("sqlite", "SQLite", plan.SQLITE, plan.STOCKS, goal.SQLITE, minutes=25, gigabytes=10),
        Field(
            "postgres",
            "PostgreSQL",
            plan.POSTGRES,
            (Stock(), *plan.SERVED),
            goal.POSTGRES,
            minutes=25,
            gigabytes=12,
            served=True,
        ),
        Field(
            "feed-sqlite", "Change feed on SQLite", plan.FEED, (), goal.FEED, minutes=4, gigabytes=2, played_on="sqlite"
        ),
        Field(
            "feed-postgres",
            "Change feed on PostgreSQL",
            plan.FEED,
            (),
            goal.SERVED_FEED,
            minutes=6,
            gigabytes=2,
            served=True,
            played_on="postgres",
        ),
        Field("http", "HTTP", plan.HTTP, (), goal.HTTP, minutes=14, gigabytes=1),
        Field("occasions", "Occasions", plan.OCCASIONS, (), goal.OCCASIONS, minutes=3, gigabytes=1),
    )
}
