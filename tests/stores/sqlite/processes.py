"""Starting `program` in a process, and in one that has a small or read-only disk of its own."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMESPACE = ("unshare", "--map-root-user", "--mount")


def command(what: str, database: Path) -> list[str]:
    return [sys.executable, "-m", "tests.stores.sqlite.program", what, str(database)]


def start(what: str, database: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command(what, database), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_mounted(mount: str, what: str, database: Path) -> list[str]:
    """What the program prints where `mount` was done first: no other process sees it, and it ends with the program."""
    if not _may_mount():
        pytest.skip("this system does not let us mount anything, not even in a namespace of our own")
    script = f"{mount} && exec {shlex.join(command(what, database))}"
    done = subprocess.run([*NAMESPACE, "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@functools.cache
def _may_mount() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    except FileNotFoundError:
        return False
