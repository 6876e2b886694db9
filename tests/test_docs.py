"""Documentation that cannot rot: what the code knows must be in the docs, and what they show must work."""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring import errors, events
from mainspring.job import TRANSITIONS
from mainspring.task import Options, Task
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
        if inspect.isclass(error) and issubclass(error, Exception) and name != "Wish":
            assert name in tree


def test_every_option_is_documented() -> None:
    for option in Options.__dataclass_fields__:
        assert f"`{option}`" in JOBS
    assert set(inspect.signature(Task.using).parameters) - {"self"} == set(Options.__dataclass_fields__)


def test_every_worker_setting_is_documented() -> None:
    text = (ROOT / "docs" / "worker.md").read_text("utf-8")
    for setting in WorkerSettings.__dataclass_fields__:
        assert f"`{setting}`" in text or setting == "id"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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


def example(page: str, name: str) -> dict[str, Any]:
    """The names that an example of our documentation defines, once it has run."""
    (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": Path(name).stem}
    exec(compile(code, name, "exec"), names)  # noqa: S102 - our own
    return names
