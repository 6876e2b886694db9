"""Applies the numbered SQL files of this application, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psycopg import AsyncConnection
from psycopg.sql import SQL, Composed, Identifier

DIRECTORY = Path(__file__).parents[3] / "migrations"
LOCK = 20260119  # of all programs that migrate this database at the same time


async def migrate(database: str, queue_schema: str = "mainspring") -> list[str]:
    """Bring the database up to date; return the names of the files that were applied.

    `queue_schema` is the schema of Mainspring's tables and views, which must exist.
    """
    applied: list[str] = []
    async with await AsyncConnection.connect(database) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        await connection.execute("CREATE SCHEMA IF NOT EXISTS petitions")
        await connection.execute("CREATE TABLE IF NOT EXISTS petitions.migrations (name TEXT PRIMARY KEY)")
        rows = await connection.execute("SELECT name FROM petitions.migrations")
        known = {name for (name,) in await rows.fetchall()}
        for path in sorted(DIRECTORY.glob("*.sql")):
            if path.name not in known:
                await connection.execute(statements(path, queue_schema))
                await connection.execute("INSERT INTO petitions.migrations VALUES (%s)", [path.name])
                applied.append(path.name)
    return applied


def statements(path: Path, queue_schema: str) -> Composed:
    text: Any = path.read_text("utf-8")  # psycopg's type allows only literals here; our own files are as safe
    return SQL(text).format(queue=Identifier(queue_schema))
