"""What starting up costs: modules that take long to import are imported by the programs that use them, and only then.

The tests compare modules, not times: those depend on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import mainspring
from mainspring import Mainspring

NEVER = frozenset({
    "aiohttp", "botocore", "concurrent.futures.process", "email", "http.client", "importlib.metadata",
    "multiprocessing", "pdb", "psycopg", "pydantic", "pydantic_core", "structlog", "unittest", "uuid",
    "mainspring.copying", "mainspring.features.people", "mainspring.stores.dynamodb", "mainspring.stores.postgres",
    "mainspring.testing", "mainspring.worker",
})  # fmt: skip
"""Not by importing Mainspring, nor by a command that only needs a store."""

STORES = frozenset({"mainspring.stores.sqlite", "sqlite3"})
SCHEDULES = frozenset({"mainspring.features.schedules.rules", "mainspring.features.schedules", "zoneinfo"})
COMMANDS = frozenset(
    {"mainspring.cli.jobs", "mainspring.cli.schedules", "mainspring.cli.worker", "mainspring.cli.system"}
)
SHOW = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"


def imported_by(program: str, cwd: Path | None = None) -> set[str]:
    """The modules that a program imports beside those that Python itself does here."""
    return modules_after(program, cwd) - modules_after("")


@cache
def modules_after(program: str, cwd: Path | None = None) -> set[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    done = subprocess.run(
        [sys.executable, "-c", program + SHOW], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*argv: str) -> str:
    return f"from mainspring.cli import main\nassert main({list(argv)!r}) == 0"


def test_importing_mainspring_imports_nothing_that_takes_long() -> None:
    found = imported_by("from mainspring import Mainspring, Context, Retry")
    assert not found & (NEVER | STORES | SCHEDULES)


def test_an_application_imports_its_own_store_and_no_other() -> None:
    found = imported_by("from mainspring import Mainspring\nMainspring('sqlite:///jobs.db')")
    assert "mainspring.stores.sqlite" in found
    assert not found & (NEVER | SCHEDULES)


APP = """
from datetime import date
from mainspring import Mainspring
app = Mainspring('sqlite:///jobs.db')
@app.task
async def greet(name: str, on: date | None = None) -> list[int]: ...
"""


@pytest.mark.slow
def test_a_program_with_tasks_imports_no_pydantic_before_their_first_use() -> None:
    found = imported_by(APP)
    assert not found & (NEVER | SCHEDULES)
    assert "pydantic" in imported_by(f"{APP}\ngreet.prepare(name='Ana')")


@pytest.mark.slow
def test_a_schedule_without_arguments_imports_its_rules_and_no_pydantic() -> None:
    found = imported_by(f"{APP}\n@app.every('1h')\nasync def tick(count: int = 1) -> None: ...")
    assert found >= SCHEDULES - {"zoneinfo"}
    assert not found & NEVER


@pytest.mark.slow
def test_help_imports_no_command() -> None:
    assert not imported_by(command("--help")) & (NEVER | STORES | SCHEDULES | COMMANDS)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with an application and its store."""
    (tmp_path / "shop.py").write_text(APP)
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")
    app.runtime.services.open_sync()
    app.run(app.close())
    return tmp_path


OF_DOCTOR = frozenset({"email", "importlib.metadata", "zoneinfo"})  # it shows the versions of packages
OF_PEOPLE = SCHEDULES | {
    "email",
    "importlib.metadata",
    "mainspring.features.people",
    "pydantic",
    "pydantic_core",
    "uuid",
}
OF_NOTHING: frozenset[str] = frozenset()
READS = {  # commands that only read, each with the modules that take long and that it may import
    "jobs list --store sqlite:///jobs.db": OF_NOTHING,
    "batches list --app shop:app": OF_NOTHING,
    "breakers list --app shop:app": OF_NOTHING,
    "dead list --app shop:app": OF_NOTHING,
    "doctor --app shop:app": OF_DOCTOR,
    "jobs list --app shop:app": OF_NOTHING,
    "limits --app shop:app": OF_NOTHING,
    "people list --app shop:app": OF_PEOPLE,  # the only one with Pydantic, because a Person is a model
    "schedules list --app shop:app": SCHEDULES,
    "stats --app shop:app": OF_NOTHING,
}


@pytest.mark.slow
@pytest.mark.parametrize("line", READS)
def test_a_command_imports_neither_other_commands_nor_what_it_does_not_use(shop: Path, line: str) -> None:
    found = imported_by(command(*line.split()), shop)
    assert not found & (NEVER | SCHEDULES) - READS[line]
    assert len(found & COMMANDS) <= 1 or line.startswith("schedules")  # these share options with other commands


@pytest.mark.slow
def test_lazily_imported_names_can_be_imported() -> None:
    program = f"from mainspring import {', '.join(mainspring.LAZY)}\nfrom mainspring import *"
    assert imported_by(program) >= set(mainspring.LAZY.values())


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Crom'"):
        _ = mainspring.Crom  # type: ignore[attr-defined]
