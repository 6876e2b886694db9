"""Who takes part: the peers' files, and an environment for each."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
PEERS = HERE / "peers"
ENVIRONMENTS = HERE / ".venvs"
OURS = "mainspring"
FLOOR = "floor"
METADATA = re.compile(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$")


class CannotTakePart(Exception):
    """There is no interpreter for the peer, or its packages could not be installed; the message says which."""


@dataclasses.dataclass
class Entry:
    """A peer, as its metadata describes it."""

    name: str
    field: str
    title: str
    worker: str
    drain_jobs: int
    durability: str = ""
    finished: str = ""  # what becomes of finished jobs
    backlog: int = 0  # the most waiting jobs that it is tried with
    requires_python: tuple[int, int] = (3, 11)
    dependencies: tuple[str, ...] = ()
    history: int = 0  # the most finished ones
    skip: tuple[str, ...] = ()  # patterns of cases that would mean nothing
    packages: tuple[str, ...] = ()  # of npm
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    # filled in on the way
    python: str = sys.executable
    runs_on: str = ""  # which Python, or which Node
    variant: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        return self.variants.get(self.variant, {})

    @property
    def home(self) -> Path:
        """Of its environment."""
        return ENVIRONMENTS / f"{self.field}-{self.name}"

    @property
    def versions(self) -> list[str]:
        return [*self.dependencies, *self.packages]


def read(field: str) -> list[Entry]:
    """The peers of a field; ours first, the floor last."""
    entries = [_entry(path) for path in sorted((PEERS / field).glob("[!_]*.py"))]
    return sorted(entries, key=lambda entry: (entry.name == FLOOR, entry.name != OURS))


def _entry(path: Path) -> Entry:
    found = METADATA.search(path.read_text("utf-8"))
    if found is None:
        raise SystemExit(f"{path} has no script metadata; see bench/peer.py")
    data = tomllib.loads(re.sub(r"(?m)^# ?", "", found[1]))
    major, minor = data["requires-python"].removeprefix(">=").split(".")
    return Entry(
        name=path.stem,
        field=path.parent.name,
        requires_python=(int(major), int(minor)),
        dependencies=tuple(data.get("dependencies", ())),
        **data["tool"]["bench"],
    )


# -- environments -----------------------------------------------------------------------------
def make_environment(entry: Entry, say: Callable[[str], None]) -> None:
    """Install what the peer needs where nothing else is installed. Ours and the floor run in the project's own."""
    if entry.versions:
        if entry.dependencies:
            entry.python = str(entry.home / "bin" / "python")
        stamp, wanted = entry.home / ".ready", "\n".join(entry.versions)
        if not stamp.exists() or stamp.read_text() != wanted:
            say(f"installing {', '.join(entry.versions)} in {entry.home.relative_to(HERE.parent)}")
            shutil.rmtree(entry.home, ignore_errors=True)
            _install(entry)
            stamp.write_text(wanted)
    command = ["node", "--version"] if entry.packages else [entry.python, "--version"]
    entry.runs_on = _run(command).strip().replace("v", "Node ")


def _install(entry: Entry) -> None:
    if entry.packages:
        _install_packages(entry)
    if entry.dependencies:
        _install_dependencies(entry)


def _install_packages(entry: Entry) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        raise CannotTakePart("Node is not installed here: put node and npm on PATH")
    entry.home.mkdir(parents=True)
    (entry.home / "package.json").write_text('{"private": true}')
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--save-exact"]
    _run(["npm", "install", "--prefix", str(entry.home), *quiet, *entry.packages])


def _install_dependencies(entry: Entry) -> None:
    base = _interpreter(entry.requires_python)
    if base == sys.executable:
        venv.create(entry.home, with_pip=False, symlinks=True)
    else:
        _run([base, "-m", "venv", "--without-pip", str(entry.home)])
    pip = [sys.executable, "-m", "pip", "--python", entry.python, "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *entry.dependencies])


def _interpreter(oldest: tuple[int, int]) -> str:
    """This one if it is new enough, else the next that is: a name on PATH may be a shim for none."""
    if sys.version_info >= oldest:
        return sys.executable
    check = f"import sys, venv; sys.exit(sys.version_info < {oldest})"
    for candidate in _candidates(oldest):
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False, timeout=30).returncode == 0:
            return candidate
    raise CannotTakePart(f"Python {oldest[0]}.{oldest[1]} or newer is needed; put one on PATH")


def _candidates(oldest: tuple[int, int]) -> Iterator[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(oldest[1], oldest[1] + 4):
        if found := shutil.which(f"python3.{minor}"):
            yield found
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python")))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise CannotTakePart(f"{' '.join(command[:3])} … failed: {reason}") from None
    if done.returncode:
        raise CannotTakePart(f"{' '.join(command[:3])} … failed: {done.stderr.strip()[-1500:]}")
    return done.stdout
