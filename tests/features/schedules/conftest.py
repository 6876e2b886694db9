"""A task that notes when it ran, and what the ledger says of a schedule."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime

import pytest

from mainspring import Mainspring
from mainspring.task import Task

Noted = list[datetime]
Note = Task[[], None, Awaitable[None]]


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


@pytest.fixture
def runs() -> Noted:
    return []


@pytest.fixture
def note(app: Mainspring, runs: Noted) -> Note:
    @app.task()
    async def note() -> None:
        runs.append(app.now())

    return note


async def ledger(app: Mainspring, name: str = "a") -> list[tuple[str, str, int]]:
    """Oldest first: what became of them, why, and of how many."""
    entries = await app.schedules.ledger(name)
    return [(entry.became.value, entry.reason, entry.count) for entry in reversed(entries)]
