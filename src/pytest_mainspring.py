"""The pytest plugin. It is loaded with every pytest: it imports nothing of Mainspring until a fixture is asked for.

# pyproject.toml
[tool.pytest.ini_options]
mainspring_app = "shop.jobs:app"

async def test_sign_up(mainspring_kit):
    await sign_up("ana")
    assert_enqueued(mainspring_kit, welcome)
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mainspring import Mainspring
    from mainspring.testing import Kit

NO_APP = (
    'which application is tested? Set mainspring_app = "module:attribute" in the configuration of pytest, or write a '
    "fixture mainspring_app that returns it"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("mainspring_app", 'the application that is tested, as "module:attribute"', default="")


@pytest.fixture
def mainspring_app(request: pytest.FixtureRequest) -> Mainspring:
    """The application that is tested: the one that the configuration names, unless you define this fixture anew."""
    return find_app(request.config.getini("mainspring_app"))


def find_app(where: str) -> Mainspring:
    from mainspring import Mainspring

    if not where:
        raise pytest.UsageError(NO_APP)
    try:
        app = pkgutil.resolve_name(where)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"mainspring_app = {where!r} cannot be loaded: {error}"
        raise pytest.UsageError(msg) from error
    if not isinstance(app, Mainspring):
        msg = f"mainspring_app = {where!r} is {app!r}, not a Mainspring"
        raise pytest.UsageError(msg)
    return app


@pytest.fixture
def mainspring_kit(mainspring_app: Mainspring) -> Iterator[Kit]:
    """The application in manual mode: what it enqueues is recorded, and runs with `kit.drain()`."""
    from mainspring.testing import manual

    with manual(mainspring_app) as kit:
        yield kit


@pytest.fixture
def mainspring_inline(mainspring_app: Mainspring) -> Iterator[Kit]:
    """The application in inline mode: what it enqueues runs at once."""
    from mainspring.testing import inline

    with inline(mainspring_app) as kit:
        yield kit
