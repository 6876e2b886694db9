from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cli.exits import UsageError
from mainspring.cli.loading import load
from tests.cli.conftest import Run, Shop

pytestmark = pytest.mark.slow

MODULES = ("shop_app", "shop_pkg", "shop_pkg.inner", "broken", "leaving", "needy", "crooked")


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(
        tmp_path / "shop_app.py",
        "from mainspring import Mainspring\napp = Mainspring('sqlite:///shop.db')\nnumber = 7\n",
    )
    write(tmp_path / "shop_pkg/inner.py", "from shop_app import app\nclass holder:\n    inner = app\n")
    write(tmp_path / "broken.py", "first = 1\nprint(undefined)\n")
    write(tmp_path / "leaving.py", "raise SystemExit('bye')\n")
    write(tmp_path / "needy.py", "import not_installed_anywhere\n")
    write(tmp_path / "crooked.py", "def (:\n")
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("path", ["shop_app:app", "shop_pkg.inner:app", "shop_pkg.inner:holder.inner"])
def test_an_application_is_found_from_the_current_directory(path: str) -> None:
    assert load(path).store.url.endswith("shop.db")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("shop_app", "does not name an application: write module:attribute, such as shop_app:app"),
        ("shop_app:", "write module:attribute"),
        (":app", "write module:attribute"),
        ("./shop_app.py:app", "is a file: write the module's name, shop_app:app"),
        ("shop_pkg/inner.py:app", "write the module's name, shop_pkg.inner:app"),
        ("nowhere:app", "there is no module 'nowhere', looking from"),
        ("shop_pkg.nowhere:app", "there is no module 'shop_pkg.nowhere'"),
        ("broken:app", "importing 'broken' failed: NameError: name 'undefined' is not defined"),
        ("broken:app", "broken.py, line 2"),
        ("leaving:app", "importing 'leaving' failed: SystemExit: bye"),
        ("needy:app", "importing 'needy' failed: ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("crooked:app", "importing 'crooked' failed: SyntaxError"),
        ("crooked:app", "crooked.py, line 1"),
        ("shop_app:ap", "module 'shop_app' has no attribute 'ap'; it has shop_app:app"),
        ("shop_app:app.nope", "has no attribute 'app.nope'"),
        ("shop_app:number", "shop_app:number is of type int, not a Mainspring; it has shop_app:app"),
    ],
)
def test_what_is_wrong_with_a_path_is_told(path: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_path_is_wrong_usage(run: Run) -> None:
    assert run("jobs", "list", "--app", "nowhere:app").code == 2
    assert run("worker", "nowhere:app").code == 2


# -- which store ----------------------------------------------------------------------------------


def test_without_a_store_it_says_what_to_give(run: Run, tmp_path: Path) -> None:
    outcome = run("jobs", "list")
    assert outcome.code == 2
    for name in ("--app", "--store", "MAINSPRING_APP", "MAINSPRING_STORE"):
        assert name in outcome.err
    assert not list(tmp_path.glob("*.db"))


def test_the_options_come_before_the_environment(run: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.enqueue()
    monkeypatch.setenv("MAINSPRING_APP", "nowhere:app")
    monkeypatch.setenv("MAINSPRING_STORE", "sqlite:///nowhere.db")
    assert len(run("jobs", "list", "--json", "--store", shop.url).data["jobs"]) == 1
    assert len(run("jobs", "list", "--json", "--app", "shop_app:app").data["jobs"]) == 1
    assert "'nowhere'" in run("jobs", "list").err


def test_the_environment_comes_before_the_default(run: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.enqueue()
    monkeypatch.setenv("MAINSPRING_STORE", shop.url)
    assert len(run("jobs", "list", "--json").data["jobs"]) == 1


def test_the_default_file_is_used_where_it_exists(run: Run, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "mainspring.db")
    job_id = shop.enqueue()
    shop.app.run(shop.app.close())
    assert run("jobs", "list", "--json").data["jobs"][0]["id"] == job_id


def test_app_and_store_exclude_each_other(run: Run) -> None:
    assert run("jobs", "list", "--app", "a:b", "--store", "c").code == 2


@pytest.mark.parametrize("command", [["jobs", "list"], ["stats"], ["halt"], ["dead", "list"], ["audit"]])
def test_no_command_creates_a_database(command: list[str], run: Run, tmp_path: Path) -> None:
    outcome = run(*command, "--store", "sqlite:///typo.db")
    assert outcome.code == 4
    assert f"there is no database {tmp_path / 'typo.db'}" in outcome.err
    assert not (tmp_path / "typo.db").exists()


@pytest.mark.slow
def test_what_brings_people_in_makes_its_applications_database(run: Run, tmp_path: Path) -> None:
    """But a dry run makes nothing, and neither does a URL that may be mistyped."""
    write(tmp_path / "people.csv", "id,tz\np1,UTC\n")
    command = ("people", "import", "people.csv")
    assert run(*command, "--store", "sqlite:///typo.db").code == 4
    dry = run(*command, "--app", "shop_app:app", "--dry-run")
    assert (dry.code, dry.out) == (0, "1 would be created, 0 would be updated, 0 unchanged\n")
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".db"]
    sys.modules.pop("shop_app")  # as another process
    assert run(*command, "--app", "shop_app:app").out == "1 created, 0 updated, 0 unchanged\n"
    assert (tmp_path / "shop.db").exists()


@pytest.mark.slow
def test_so_does_what_puts_a_schedule(run: Run, tmp_path: Path) -> None:
    task = "\n@app.task()\nasync def sync() -> None: ...\n"
    write(tmp_path / "shop_app.py", (tmp_path / "shop_app.py").read_text() + task)
    put = run("schedules", "put", "a", "--rule", "@daily", "--task", "sync", "--app", "shop_app:app", "--yes")
    assert put.code == 0, put.err
    assert run("schedules", "list", "--store", "sqlite:///shop.db", "--json").data["schedules"][0]["id"] == "a"


def test_a_database_of_another_program_is_left_alone(run: Run, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE guests (name)")
    connection.close()
    before = (tmp_path / "other.db").read_bytes()
    outcome = run("jobs", "list", "--store", "sqlite:///other.db")
    assert outcome.code == 4
    assert "has no tables of Mainspring" in outcome.err
    assert (tmp_path / "other.db").read_bytes() == before


def test_what_is_no_database_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("just some text, longer than the header of a database" * 10)
    outcome = run("jobs", "list", "--store", "sqlite:///text.db")
    assert outcome.code == 4
    assert "not an SQLite database" in outcome.err


def test_memory_cannot_be_seen_from_outside(run: Run) -> None:
    outcome = run("stats", "--store", "memory://", "--json")
    assert outcome.code == 4
    assert outcome.error["type"] == "StoreMissing"


def test_an_unknown_kind_of_store_is_wrong_usage(run: Run) -> None:
    outcome = run("stats", "--store", "redis://localhost")
    assert outcome.code == 2
    assert outcome.err.startswith("mainspring: no store for 'redis'")
