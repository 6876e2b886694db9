"""A service with two projects, `a` and `b`, that have the same names for everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.features.conftest import stores
from tests.service.conftest import define
from tests.service.projects.planting import Two, two_projects

STORES = ["memory", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sqlite", "postgres", "dynamodb"))]


@pytest.fixture(params=STORES)
async def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    async with AsyncExitStack() as stack:
        app = Mainspring((await stores(request.param, tmp_path, stack))())
        define(app)
        async with app:
            yield app


@pytest.fixture
async def two(app: Mainspring) -> AsyncIterator[Two]:
    async with two_projects(app) as two:
        yield two
