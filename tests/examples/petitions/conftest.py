"""The petition system over a fresh database, with fake systems outside."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from examples.petitions.infrastructure.adapters import migrate
from examples.petitions.system import PetitionSystem, Settings
from mainspring.testing.fakes import FakeHaltServer, FakeWebhook
from tests.postgres import dsn

numbers = itertools.count()


@dataclass(frozen=True)
class Outside:
    """The systems outside, and the database."""

    database: str
    control_room: FakeHaltServer
    pager: FakeWebhook
    mail: FakeWebhook

    def settings(self, **changes: Any) -> Settings:
        usual: dict[str, Any] = {"poll_interval": 0.2, "escalation_every": "1s", "escalation_threshold": 3}
        return Settings(self.database, self.control_room.url, self.pager.url, self.mail.url, **{**usual, **changes})

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.database) as connection:
            return await (await connection.execute(query.encode(), values)).fetchall()


@pytest.fixture
def database() -> Iterator[str]:
    """A database that no other test uses."""
    name = f"petitions_{os.getpid()}_{next(numbers)}"
    with psycopg.connect(dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield dsn().replace("/postgres", f"/{name}", 1)
    with psycopg.connect(dsn(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def outside(database: str) -> Iterator[Outside]:
    with FakeHaltServer() as control_room, FakeWebhook() as pager, FakeWebhook() as mail:
        yield Outside(database, control_room, pager, mail)


NewSystem = Callable[..., Any]


@pytest.fixture
async def new_system(outside: Outside) -> AsyncIterator[NewSystem]:
    """Makes a system whose parts the test calls itself: its store is open, and nothing runs in the background."""
    async with AsyncExitStack() as stack:

        async def make(**changes: Any) -> PetitionSystem:
            system = PetitionSystem(outside.settings(**{"poll_interval": 0.0, **changes}))
            await stack.enter_async_context(system.app)
            await migrate(outside.database, system.settings.queue_schema)
            await stack.enter_async_context(system.scheduler)
            return system

        yield make
