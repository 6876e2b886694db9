"""Who takes part: the peers' files, and an environment for each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent
PEERS = HERE / "peers"
ENVIRONMENTS = HERE / ".venvs"
OURS = "mainspring"
FLOOR = "floor"
METADATA = re.compile(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$")


class NoInterpreter(Exception):
    """No Python that the peer's package accepts was found; put one on PATH."""


@dataclass
class Entry:
    """A peer, as its metadata describes it."""

    name: str
    title: str
    durability: str
    worker: str
    drain_jobs: int
    backlog: int = 0  # the most waiting jobs that it is tried with
    requires_python: tuple[int, int] = (3, 11)
    dependencies: tuple[str, ...] = ()
    history: int = 0  # the most finished ones
    skip: tuple[str, ...] = ()  # patterns of cases that would mean nothing
    needs: str = ""  # a variable that says where its server is
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)

    # filled in on the way
    python: str = sys.executable
    python_version: str = ""
    variant: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        return self.variants.get(self.variant, {})

    @property
    def missing(self) -> str:
        """What keeps it from taking part; nothing if it can."""
        return "" if not self.needs or self.needs in os.environ else f"{self.needs} is not set"


def read(names: Sequence[str]) -> list[Entry]:
    """The peers of these names, or all; ours first, the floor last."""
    entries = {path.stem: _entry(path) for path in sorted(PEERS.glob("[!_]*.py"))}
    if unknown := set(names) - set(entries):
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(entries)}")
    chosen = [entry for name, entry in entries.items() if not names or name in names]
    return sorted(chosen, key=lambda entry: (entry.name == FLOOR, entry.name != OURS))


def _entry(path: Path) -> Entry:
    found = METADATA.search(path.read_text("utf-8"))
    if found is None:
        raise SystemExit(f"{path} has no script metadata; see bench/peer.py")
    data = tomllib.loads(re.sub(r"(?m)^# ?", "", found[1]))
    major, minor = data["requires-python"].removeprefix(">=").split(".")
    return Entry(
        name=path.stem,
        requires_python=(int(major), int(minor)),
        dependencies=tuple(data.get("dependencies", ())),
        **data["tool"]["bench"],
    )


# -- environments -----------------------------------------------------------------------------
def make_environment(entry: Entry, say: Callable[[str], None]) -> None:
    """Install what the peer needs where nothing else is installed. Ours and the floor run in the project's own."""
    if entry.dependencies:
        home = ENVIRONMENTS / entry.name
        entry.python = str(home / "bin" / "python")
        stamp, wanted = home / ".ready", "\n".join(entry.dependencies)
        if not stamp.exists() or stamp.read_text() != wanted:
            say(f"installing {', '.join(entry.dependencies)} in {home.relative_to(HERE.parent)}")
            _install(entry, home)
            stamp.write_text(wanted)
    entry.python_version = _run([entry.python, "-c", "import platform; print(platform.python_version())"]).strip()


def _install(entry: Entry, home: Path) -> None:
    base = _interpreter(entry.requires_python)
    if base == sys.executable:
        venv.create(home, clear=True, with_pip=False, symlinks=True)
    else:
        _run([base, "-m", "venv", "--clear", "--without-pip", str(home)])
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
    raise NoInterpreter(f"Python {oldest[0]}.{oldest[1]} or newer is needed; put one on PATH")


def _candidates(oldest: tuple[int, int]) -> Iterator[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(oldest[1], oldest[1] + 4):
        if found := shutil.which(f"python3.{minor}"):
            yield found
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python")))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
