"""What the application writes itself, into the same database: rows that must be there exactly once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg

EFFECTS = "CREATE TABLE IF NOT EXISTS effects (job_id TEXT NOT NULL)"  # no UNIQUE: a double must be seen, not refused
SQLITE = "sqlite:///"


@contextlib.contextmanager
def own_transaction() -> Iterator[Any]:
    """By a connection of its own, committed at the end of the block."""
    url = os.environ["CHAOS_DATABASE"]
    if url.startswith(SQLITE):
        with contextlib.closing(sqlite3.connect(url.removeprefix(SQLITE), timeout=30)) as file, file:
            yield file
    else:
        with psycopg.connect(url) as server:
            yield server


def write_effect(connection: Any, text: str) -> Any:
    """To be awaited if the connection is for that."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    return connection.execute(f"INSERT INTO effects VALUES ({mark})", (text,))
