"""Documentation that cannot rot: what the code knows must be in the docs, and what they show must work."""

from __future__ import annotations

import ast
import inspect
import re
import signal
import sqlite3
import subprocess
import sys
import typing
from configparser import ConfigParser
from contextlib import closing
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

import mainspring
from mainspring import BatchHandle, Context, Item, JobHandle, Mainspring, Task, Worker, errors, events
from mainspring.features.batches.api import Batches
from mainspring.features.breakers.api import Breakers
from mainspring.features.limits.api import Limits
from mainspring.features.people.api import People
from mainspring.features.people.occasions import Occasions
from mainspring.features.schedules.api import Schedules
from mainspring.features.settings.api import Settings
from mainspring.job import TRANSITIONS
from mainspring.jobs import Jobs
from mainspring.leases import Lease, Leases, Lessee
from mainspring.options import EnqueueOptions
from mainspring.stores.engine import feed
from mainspring.stores.feed import ChangeFilter, ChangeKind
from mainspring.testing import Kit, VirtualTime, manual
from mainspring.testing.fakes import FakeSentry
from mainspring.worker import WorkerSettings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
JOBS = (ROOT / "docs" / "jobs.md").read_text("utf-8")


def diagram() -> str:
    moves = [
        f"    {status} --> {target}: {move}" for status, leads in TRANSITIONS.items() for move, target in leads.items()
    ]
    return "\n".join(["stateDiagram-v2", "    [*] --> pending", *moves])


def test_the_diagram_is_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in JOBS


@pytest.mark.parametrize(
    "event", [e for e in vars(events).values() if inspect.isclass(e) and issubclass(e, events.Event)]
)
def test_every_event_is_documented(event: type[events.Event]) -> None:
    if event in {events.Event, events.JobEvent, events.RunEvent, events.WorkerEvent}:
        return
    assert f"| `{event.__name__}` |" in (ROOT / "docs" / "events.md").read_text("utf-8")
    assert event.__name__ in (events.__doc__ or "")


def test_every_error_is_in_the_tree() -> None:
    tree = errors.__doc__ or ""
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, Exception) and name != "RunEnd":
            assert name in tree


APIS = (
    Mainspring, Jobs, Batches, BatchHandle, Breakers, Limits, Schedules, People, Occasions, Worker, JobHandle, Task,
    Item, Context, Kit, VirtualTime, Leases, Lessee, Lease, Settings,
)  # fmt: skip
INTERNAL = {"BreakerAdmission", "Claims", "EnqueueOptions", "Parts", "Payload"}  # of methods that programs do not call


@pytest.mark.parametrize("kind", APIS, ids=lambda kind: kind.__name__)
def test_what_a_method_returns_can_be_imported_from_mainspring_or_from_where_the_docs_say(kind: type) -> None:
    documented = dict(re.findall(r"\| `(mainspring[\w.]*)` \| (.+) \|", JOBS))
    found = {name for module, line in documented.items() for name in types_in(module, re.findall(r"`(\w+)`", line))}
    known = {*mainspring.__all__, *typing.__all__, *INTERNAL, *found, "None"}
    for name, member in inspect.getmembers_static(kind):
        method = getattr(member, "fget", None) or getattr(member, "func", None) or member
        returned = getattr(method, "__annotations__", {}).get("return", "") if name[0] != "_" else ""
        assert set(re.findall(r"[A-Z][a-z]\w+", returned)) <= known, name


def types_in(module: str, names: list[str]) -> list[str]:
    """Return the names, all of which the module must define or export: type checkers accept no others."""
    there = vars(import_module(module))
    homes = {name: getattr(there.get(name), "__module__", "missing") for name in names}
    others = {name for name, home in homes.items() if home not in {module, "collections.abc"}}
    assert others <= set(there.get("__all__", ())), module
    return names


def test_every_option_is_documented() -> None:
    for option in EnqueueOptions.__annotations__:
        assert f"`{option}`" in JOBS


def test_every_worker_setting_is_documented() -> None:
    text = (ROOT / "docs" / "worker.md").read_text("utf-8")
    for setting in WorkerSettings.__dataclass_fields__:
        assert f"`{setting}`" in text or setting == "id"


@pytest.mark.parametrize(
    ("heading", "contract", "package"),
    [("## Package map", "layers", "mainspring"), ("Inside `stores/`:", "stores", "mainspring/stores")],
)
def test_the_map_of_the_architecture_is_the_contract(heading: str, contract: str, package: str) -> None:
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter", "utf-8")
    layers = contracts[f"importlinter:contract:{contract}"]["layers"].replace("mainspring.", "").replace(".", "/")
    assert map_under(heading) == [set(re.findall(r"[\w/]+", layer)) for layer in layers.split("\n") if layer]
    modules = {path.stem for path in (ROOT / "src" / package).iterdir() if not path.name.startswith("__")}
    assert {name.split("/")[0] for layer in map_under(heading) for name in layer} == modules - {"py"}


def map_under(heading: str) -> list[set[str]]:
    """The names in each row of the first table after the heading, from the first cell that has any."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition(heading)[2]
    rows = re.search(r"\|---\|\n((?:\|.*\n)+)", text)
    assert rows is not None
    cells = [next(cell for cell in row.split("|") if "`" in cell) for row in rows[1].splitlines()]
    return [set(re.findall(r"[\w/]*\w", cell)) for cell in cells]


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_links_lead_to_existing_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_the_first_snippet_of_each_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in {"benchmarks.md", "cli.md"}:  # they show commands
        return
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for snippet in snippets if page.name == "README.md" else snippets[:1]:
        exec(compile(snippet, page.name, "exec"), {"__name__": page.stem})  # noqa: S102 - our own page


@pytest.mark.slow
def test_the_first_example_works_as_printed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n# hello\.py\n(.*?)```", README, re.DOTALL)
    assert example.strip().count("\n") < 14
    (tmp_path / "hello.py").write_text(example, "utf-8")
    command = [sys.executable, "-m", "mainspring", "worker", "hello:app"]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        hello = [sys.executable, "hello.py"]
        done = subprocess.run(hello, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=20) == 0
    assert done.stdout == "Welcome, Ada!\n"


async def test_the_worker_of_a_web_application_works_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    web = example("worker.md", "web.py")
    async with web["lifespan"](None):
        handle = await web["welcome"].enqueue(guest="Ada")
        assert await handle.result(timeout=60) == "Welcome, Ada!"


async def test_the_tenant_goes_with_the_job_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = example("middleware.md", "tenants.py")
    async with manual(names["app"]) as kit:
        names["tenant"].set("seven")
        handle = await names["export"].enqueue()
        names["tenant"].set("eight")
        await kit.drain()
        assert await handle.result() == "the rows of seven"


async def test_errors_are_reported_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = example("sentry.md", "reported.py")
    with FakeSentry() as sentry:
        sentry_sdk.init(sentry.dsn, default_integrations=False, auto_enabling_integrations=False)
        async with manual(names["app"]) as kit:
            job = await names["welcome"].enqueue("Ada")
            await kit.time.advance(days=1)
        sentry_sdk.flush(10)
        sentry_sdk.get_global_scope().set_client(None)
        assert [event["tags"]["job_id"] for event in sentry.events] == [job.id]
        assert sentry.monitors["mainspring-nightly"]["timezone"] == "Europe/London"
        assert list(sentry.runs.values()) == ["ok"]


async def test_an_application_is_traced_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = example("tracing.md", "traced.py")
    async with manual(names["app"]) as kit:
        handle = await names["welcome"].enqueue("Ada")
        await kit.drain(raise_errors=True)
        assert await handle.result() == "Welcome, Ada!"


def test_each_run_has_its_session_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as shop:
        shop.execute("CREATE TABLE guests (name TEXT)")
    names = example("middleware.md", "sessions.py")
    with manual(names["app"]) as kit:
        names["add_guest"].enqueue_many_sync([{"name": "ana"}, {"name": "nobody"}])
        kit.drain_sync()
    names["new_session"].kw["bind"].dispose()
    with closing(sqlite3.connect("shop.db")) as shop:
        assert shop.execute("SELECT name FROM guests").fetchall() == [("ana",)]


def example(page: str, name: str) -> dict[str, Any]:
    """The names that an example of our documentation defines, once it has run."""
    (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": Path(name).stem}
    exec(compile(code, name, "exec"), names)  # noqa: S102 - our own
    return names


CHANGES = (ROOT / "docs" / "changes.md").read_text("utf-8")


@pytest.mark.parametrize("kind", ChangeKind)
def test_each_kind_of_change_is_documented(kind: ChangeKind) -> None:
    assert re.search(rf"^\| .*`{kind}`.* \|", CHANGES, re.MULTILINE)


def data_of_changes() -> set[str]:
    """Return the fields that the feed's entries have in their data: the texts that are keys there."""
    found = list(ast.walk(ast.parse(inspect.getsource(feed))))
    keys = [key for node in found if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.slice for node in found if isinstance(node, ast.Subscript)]
    texts = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return texts - feed.COLLECTIONS.keys()


@pytest.mark.parametrize("name", sorted(data_of_changes()))
def test_each_field_of_a_changes_data_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", CHANGES)


@pytest.mark.parametrize("name", [field.name for field in fields(ChangeFilter)])
def test_each_field_of_a_change_filter_is_documented(name: str) -> None:
    about = CHANGES.partition("`ChangeFilter` selects by")[2].partition("\n\n")[0]
    assert f"`{name}`" in about
