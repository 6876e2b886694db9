"""Programs about the small disk that a test mounted, which only its own processes see."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.chaos.programs.own import SQLITE


def database() -> Path:
    return Path(os.environ["CHAOS_DATABASE"].removeprefix(SQLITE))


def resize(folder: str, who: str, size: str) -> None:
    disk = database().parent
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def copy_out(folder: str, who: str) -> None:
    """The database as it is now, to where the test can see it."""
    with closing(sqlite3.connect(database(), timeout=30)) as connection:
        connection.execute("VACUUM INTO ?", (f"{folder}/copy.db",))
    with closing(sqlite3.connect(f"{folder}/copy.db")) as copy:
        copy.execute("PRAGMA journal_mode = WAL")  # a copy has none
