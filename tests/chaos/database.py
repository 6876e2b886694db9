"""What the database file says, asked in plain SQL: the checks do not lean on the code that they check."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from mainspring.stores.protocol import Severity
from mainspring.stores.sqlite import SqliteStore

LIVE = ("pending", "failed", "running", "suspended")


def ask(path: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Nothing while there is no file or no table yet."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        try:
            return connection.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


def statuses(path: Path) -> dict[str, str]:
    return dict(ask(path, "SELECT id, status FROM all_jobs"))


def totals(path: Path) -> dict[str, int]:
    return dict(ask(path, "SELECT status, count(*) FROM all_jobs GROUP BY status"))


def unfinished(path: Path) -> dict[str, int]:
    return {status: number for status, number in totals(path).items() if status in LIVE}


def ailments(path: Path) -> list[str]:
    """What `mainspring doctor` finds."""

    async def diagnose() -> list[str]:
        store = SqliteStore(path)
        try:
            return [str(finding) for finding in await store.diagnose() if finding.severity is not Severity.OK]
        finally:
            await store.close()

    return asyncio.run(diagnose())


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """By another program, which has begun to write and takes its time."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
