"""The fields: each is a kind of store, with the peers that play there, what is measured, and what we want to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import goal, plan
from bench.goal import Goal
from bench.plan import Case, Stock


@dataclass(frozen=True)
class Field:
    name: str  # of its folder in `peers` and of its file in `results`
    title: str
    plan: Sequence[Case]
    stocks: Sequence[Stock]
    goals: Sequence[Goal]
    minutes: int  # that a whole run takes on two quiet cores
    gigabytes: int  # of disk meanwhile
    served: bool = False  # by a PostgreSQL server, which is started for the run


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
        Field("http", "HTTP", plan.HTTP, (), goal.HTTP, minutes=14, gigabytes=1),
        Field("occasions", "Occasions", plan.OCCASIONS, (), goal.OCCASIONS, minutes=3, gigabytes=1),
    )
}
