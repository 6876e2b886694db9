from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mainspring.stores.postgres import schema
from mainspring.stores.protocol import Migrating
from mainspring.stores.sqlite import SqliteStore
from tests.cli.conftest import Run, Shop
from tests.postgres import dsn, fresh_schema

NAMES = [name for _, name, _ in schema.scripts()]

pytestmark = pytest.mark.slow  # a real server


@pytest.fixture
def name() -> Iterator[str]:
    name = fresh_schema()
    yield name
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def url(name: str) -> str:
    return f"{dsn()}&schema={name}&migrate=off"


def exists(name: str) -> bool:
    with psycopg.connect(dsn()) as connection:
        return connection.execute("SELECT to_regnamespace(%s)", (name,)).fetchone() != (None,)


def test_it_makes_the_tables_and_says_so(run: Run, url: str, name: str) -> None:
    outcome = run("migrate", "--store", url)
    assert outcome.code == 0
    assert outcome.out.splitlines()[:-1] == [f"ran {name}" for name in NAMES]
    assert outcome.out.splitlines()[-1].endswith(f"schema={name} is now at version {len(NAMES)}")
    assert run("stats", "--store", url).code == 0


def test_migrating_twice_does_nothing_the_second_time(run: Run, url: str) -> None:
    run("migrate", "--store", url)
    outcome = run("migrate", "--store", url)
    assert outcome.code == 0
    assert outcome.out.endswith(f" is already at version {len(NAMES)}\n")


def test_json_output_names_the_migrations(run: Run, url: str) -> None:
    data = run("migrate", "--json", "--store", url).data
    assert (data["migrated"], data["version"]) == (NAMES, len(NAMES))
    assert run("migrate", "--json", "--store", url).data["migrated"] == []


@pytest.mark.parametrize("argv", [["shop_pg:app"], ["--app", "shop_pg:app"]])
def test_the_application_may_be_named(
    argv: list[str], run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop_pg.py").write_text(f"from mainspring import Mainspring\napp = Mainspring({url!r})\n")
    assert run("migrate", *argv, "--json").data["migrated"] == NAMES
    sys.modules.pop("shop_pg")


def test_two_names_are_one_too_many(run: Run) -> None:
    assert run("migrate", "shop:app", "--store", "memory://").code == 2


@pytest.mark.parametrize("command", [["jobs", "list"], ["stats"], ["halt"], ["dead", "list"], ["audit"]])
def test_no_other_command_makes_tables(command: list[str], run: Run, name: str) -> None:
    outcome = run(*command, "--store", f"{dsn()}&schema={name}")
    assert outcome.code == 4
    assert f"schema={name} has no tables of Mainspring" in outcome.err
    assert not exists(name)


def test_the_doctor_makes_none_either(run: Run, name: str) -> None:
    outcome = run("doctor", "--json", "--store", f"{dsn()}&schema={name}")
    assert outcome.code == 1
    assert "has no tables of Mainspring" in outcome.data["findings"][-1]["message"]
    assert not exists(name)


def test_tables_of_a_newer_program_are_left_alone(run: Run, url: str, name: str) -> None:
    run("migrate", "--store", url)
    with psycopg.connect(dsn()) as connection:
        connection.execute(f"INSERT INTO {name}.migrations (version, name) VALUES (999, 'later')".encode())
    outcome = run("migrate", "--store", url, "--json")
    assert outcome.code == 4
    assert outcome.error["type"] == "StoreTooNew"


def test_a_server_that_is_not_there(run: Run) -> None:
    outcome = run("migrate", "--store", "postgresql:///shop?host=/nowhere", "--json")
    assert outcome.code == 4
    assert outcome.error["type"] == "StoreUnavailable"


def test_other_stores_need_it_never(run: Run, shop: Shop, tmp_path: Path) -> None:
    outcome = run("migrate", "--store", "sqlite:///typo.db")
    assert outcome.code == 0
    assert outcome.out.endswith("typo.db migrates when it is opened: there is nothing to do\n")
    assert not (tmp_path / "typo.db").exists()
    assert run("migrate", "--store", "memory://").code == 0
    assert run("migrate", "--store", shop.url, "--json").data == {"store": shop.url, "migrated": [], "version": None}
    assert not isinstance(SqliteStore(tmp_path / "other.db"), Migrating)
