"""The tables: numbered migrations, each run once. The application may keep its own tables in the same file.

All names begin with `mainspring_`. `PRAGMA user_version` and `application_id` belong to the application. So the version
of Mainspring's tables is in the table `mainspring_migrations`, as on PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import time
from importlib import resources
from pathlib import Path

from mainspring.errors import ConfigurationError, StoreTooNew
from mainspring.stores.sqlite.transaction import roll_back

BUSY_PAUSE = 0.005  # seconds between two attempts where SQLite itself does not wait

MIGRATIONS = ("schema.sql",)  # number N brings the tables from version N to N + 1
TABLES = tuple(
    f"mainspring_{name}"
    for name in (
        "jobs", "archive", "payloads", "tags", "attempts", "steps", "dedupe", "counts", "halts", "confirmations",
        "workers", "audit", "audit_jobs", "documents", "changes", "feed", "numbers", "all_jobs", "dead_letters",
        "all_attempts", "all_steps", "audit_log", "schedules", "migrations",
    )
)  # fmt: skip
MIGRATIONS_TABLE = "mainspring_migrations"
CREATE_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS mainspring_migrations ( -- The migrations of these tables that were run.
    version INTEGER NOT NULL PRIMARY KEY,
    name    TEXT    NOT NULL,
    at      INTEGER NOT NULL DEFAULT (unixepoch() * 1000)
) STRICT
"""
HAS_MIGRATIONS = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('mainspring_migrations') WHERE name = 'version')"
VERSION = "SELECT coalesce(max(version), 0) FROM mainspring_migrations"
RECORD_MIGRATION = "INSERT INTO mainspring_migrations (version, name) VALUES (?, ?)"


def prepare(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Make the file usable: write-ahead logging, and all tables in their current version.

    The missing migrations run in one transaction, so that of several starting processes only one runs them.
    """
    cursor = connection.cursor()
    refuse_unusable(cursor, path)
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:  # an existing file keeps the application's choice
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    write_ahead(connection, patience)
    if version_of(cursor) == len(MIGRATIONS):  # the application's transaction may have created them
        return
    cursor.execute("BEGIN IMMEDIATE")
    try:
        migrate(cursor)
        cursor.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def write_ahead(connection: sqlite3.Connection, patience: float) -> None:
    """Switch to write-ahead logging; retry for `patience` seconds while the file is locked.

    SQLite's busy timeout does not apply here: SQLite holds a read lock already, and waiting could be a deadlock.
    Without the retries, of two processes that create a file together, one would fail because the file is locked.
    """
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(BUSY_PAUSE)
        else:
            return


def version_of(cursor: sqlite3.Cursor) -> int:
    """Return the version of Mainspring's tables; 0 if the file has none of them."""
    if not has_migrations(cursor):
        return 0
    version: int = cursor.execute(VERSION).fetchone()[0]
    return version


def has_migrations(cursor: sqlite3.Cursor) -> bool:
    """Return whether the file has Mainspring's table of migrations, not another program's table of that name."""
    return bool(cursor.execute(HAS_MIGRATIONS).fetchone()[0])


def refuse_unusable(cursor: sqlite3.Cursor, path: Path) -> None:
    """Raise if the tables are of a newer Mainspring, or another program has tables with Mainspring's names."""
    version = version_of(cursor)
    if version > len(MIGRATIONS):
        msg = f"{path} has schema version {version}, this program knows {len(MIGRATIONS)}; upgrade Mainspring"
        raise StoreTooNew(msg)
    if version == 0:
        refuse_foreign(cursor, path)


def refuse_foreign(cursor: sqlite3.Cursor, path: Path) -> None:
    marks = ", ".join("?" * len(TABLES))
    found = cursor.execute(f"SELECT name FROM sqlite_master WHERE name IN ({marks})", TABLES).fetchall()
    taken = [name for (name,) in found if name != MIGRATIONS_TABLE or not has_migrations(cursor)]
    if taken and version_of(cursor) == 0:  # otherwise another Mainspring process has just created them
        msg = (
            f"{path} has tables of another program that Mainspring needs ({', '.join(taken)}); rename them, or use "
            "another file for jobs: names that begin with mainspring_ are reserved"
        )
        raise ConfigurationError(msg)


def migrate(cursor: sqlite3.Cursor) -> None:
    """Run the missing migrations, inside the transaction that the caller has begun."""
    cursor.execute(CREATE_MIGRATIONS)
    for number in range(version_of(cursor), len(MIGRATIONS)):
        run_script(cursor, resources.files(__package__).joinpath(MIGRATIONS[number]).read_text("utf-8"))
        cursor.execute(RECORD_MIGRATION, (number + 1, MIGRATIONS[number]))


def run_script(cursor: sqlite3.Cursor, script: str) -> None:
    """Run a script statement by statement: `executescript` would commit the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            cursor.execute(statement)
            statement = ""
