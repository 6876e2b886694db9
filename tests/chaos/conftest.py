"""What all chaos tests share. `MAINSPRING_CHAOS=long` is the long form, `MAINSPRING_CHAOS_SEED` repeats a run."""

from __future__ import annotations

import faulthandler
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.database import Database, PostgresDatabase, SqliteDatabase
from tests.chaos.dynamodb import DynamoDatabase
from tests.chaos.processes import Forks, Nursery
from tests.chaos.reports import LONG, pytest_runtest_makereport
from tests.postgres import Server, dsn, installed

__all__ = ["LONG", "pytest_runtest_makereport"]  # where tests and pytest look for them
STORES = ("sqlite", "postgres")
each_store = pytest.mark.parametrize("nursery", STORES, indirect=True)
ALL_STORES = (*STORES, "dynamodb")
each_store_and_dynamodb = pytest.mark.parametrize("nursery", ALL_STORES, indirect=True)
dynamodb_if_long = pytest.mark.parametrize("nursery", ALL_STORES if LONG else STORES, indirect=True)
each_store_if_long = pytest.mark.parametrize("nursery", STORES if LONG else STORES[:1], indirect=True)
long_only = pytest.mark.long
only_postgres = pytest.mark.parametrize("nursery", ["postgres"], indirect=True)
only_dynamodb = pytest.mark.parametrize("nursery", ["dynamodb"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes and has no short form is left to `make chaos`."""
    if LONG:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@dataclass(frozen=True)
class Chaos:
    """How much, and by which dice."""

    long: bool
    seed: int

    def size(self, short: int, long: int) -> int:
        return long if self.long else short

    def rng(self) -> random.Random:
        return random.Random(self.seed)


@pytest.fixture
def chaos() -> Chaos:
    seed = int(os.environ.get("MAINSPRING_CHAOS_SEED") or random.randrange(2**32))
    print(f"MAINSPRING_CHAOS_SEED={seed}")  # pytest shows it when the test fails
    if LONG:
        faulthandler.cancel_dump_traceback_later()  # minutes are in order here
    return Chaos(LONG, seed)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture
def nursery(request: pytest.FixtureRequest, forks: Forks, tmp_path: Path) -> Iterator[Nursery]:
    """Over SQLite, unless the test says otherwise: see `each_store`."""
    make = DATABASES[getattr(request, "param", "sqlite")]
    with make(tmp_path) as database, Nursery(forks, tmp_path, database) as made:
        yield made


DATABASES: dict[str, Callable[[Path], Database]] = {
    "sqlite": lambda folder: SqliteDatabase(folder / "jobs.db"),
    "postgres": lambda _: PostgresDatabase(dsn()),
    "dynamodb": lambda _: DynamoDatabase(),
}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One of our own, as durable as they are by default."""
    if "MAINSPRING_TEST_PG" in os.environ:
        pytest.skip("that server is not ours to kill")
    server = Server(installed()[0], settings=())
    server.start()
    yield server
    server.remove()


@pytest.fixture
def mortal(server: Server, forks: Forks, tmp_path: Path) -> Iterator[Nursery]:
    """A nursery over that server."""
    with PostgresDatabase(server.dsn) as database, Nursery(forks, tmp_path, database) as made:
        yield made
