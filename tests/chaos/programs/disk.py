"""Programs about the small disk that a test mounted, which only its own processes see."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path


def resize(folder: str, who: str, size: str) -> None:
    disk = Path(os.environ["CHAOS_DATABASE"]).parent
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def copy_out(folder: str, who: str) -> None:
    """The database as it is now, to where the test can see it."""
    with closing(sqlite3.connect(os.environ["CHAOS_DATABASE"], timeout=30)) as connection:
        connection.execute("VACUUM INTO ?", (f"{folder}/copy.db",))
    with closing(sqlite3.connect(f"{folder}/copy.db")) as copy:
        copy.execute("PRAGMA journal_mode = WAL")  # a copy has none
