from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring import Mainspring, Retry
from tests.service.serving import Client, serving


def define(app: Mainspring) -> None:
    """Declare the tasks of these tests."""

    @app.task(queue="mail")
    async def welcome(guest: str) -> str:
        """Welcome a guest."""
        return f"welcome, {guest}"

    @app.task(retry=Retry(max_attempts=1))
    async def fail(why: str) -> None:
        raise ValueError(why)


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://")
    define(app)
    async with app:
        yield app


@pytest.fixture
async def client(app: Mainspring) -> AsyncIterator[Client]:
    async with serving(app) as client:
        yield client
