"""An application that greets people on their birthdays. What greets otherwise has a fixture of its own."""

from __future__ import annotations

import pytest

from mainspring import Mainspring, Person


@pytest.fixture
def greeted() -> list[str]:
    """Whom, by their ids."""
    return []


@pytest.fixture
def app(greeted: list[str]) -> Mainspring:
    app = Mainspring("memory://")

    @app.occasion("birthday")
    async def greet(person: Person) -> None:
        greeted.append(person.id)

    return app
