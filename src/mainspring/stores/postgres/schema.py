"""Create and upgrade the tables: numbered migrations, each run once, under a lock that all programs share."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from psycopg.errors import InsufficientPrivilege

from mainspring.errors import ConfigurationError, StoreReadOnly, StoreRefused, StoreTooNew
from mainspring.stores.postgres.pool import Connection

DEFAULT = "mainspring"
OLDEST_SERVER = 15
NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
LOOK = "SELECT count(*) FROM pg_namespace"
"""Reads a catalog table. Without it, the server may still think that a schema is missing which another program created
while this one waited for the lock."""
VERSION = "SELECT coalesce(max(version), 0) FROM {schema}.migrations"
MADE = """
CREATE SCHEMA IF NOT EXISTS {schema};
COMMENT ON SCHEMA {schema} IS 'Mainspring: durable jobs. Every table says what it is for.';
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version integer NOT NULL PRIMARY KEY,
    name    text    NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.migrations IS 'Which changes of these tables were made, and when.';
"""


def checked(schema: str) -> str:
    """Return the schema's name if it is a plain lower-case name. Statements contain it unquoted."""
    if not NAME.fullmatch(schema):
        msg = f"{schema!r} cannot be the schema; use lower-case letters, digits and underscores"
        raise ConfigurationError(msg)
    return schema


def scripts() -> list[tuple[int, str, str]]:
    """Return (version, name, text) of each migration, in order."""
    found = sorted(
        (entry.name, entry.read_text("utf-8"))
        for entry in resources.files(__package__).joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )
    return [(number, name, text) for number, (name, text) in enumerate(found, 1)]


async def version_of(connection: Connection, schema: str) -> int:
    """Return the version of the schema, or 0 if it has no Mainspring tables."""
    known = await value(connection, "SELECT to_regclass(%s)", (f"{schema}.migrations",))
    return 0 if known is None else int(await value(connection, VERSION.format(schema=schema)))


async def migrate(connection: Connection, schema: str) -> list[str]:
    """Run the missing migrations, all or none, and return their names. Programs that start together take turns."""
    try:
        return await run_missing(connection, schema)
    except InsufficientPrivilege as error:
        msg = (
            f"this database user may not create or change Mainspring's tables: {error.diag.message_primary}; grant it "
            "CREATE on the database, or run `mainspring migrate` as the owner of the tables and write migrate=off in "
            "this URL"
        )
        raise StoreReadOnly(msg) from error


async def run_missing(connection: Connection, schema: str) -> list[str]:
    async with connection.transaction():
        await connection.execute(LOCK, (f"{schema} migrations",))
        await connection.execute(LOOK)
        await connection.execute(MADE.format(schema=schema))
        version = await version_of(connection, schema)
        refuse_newer(version)
        missing = scripts()[version:]
        for number, name, text in missing:
            await connection.execute(text.replace("{schema}", schema).encode())
            insert = f"INSERT INTO {schema}.migrations (version, name) VALUES (%s, %s)"
            await connection.execute(insert, (number, name))
    return [name for _, name, _ in missing]


def refuse_old_server(connection: Connection) -> None:
    if connection.info.server_version < OLDEST_SERVER * 10_000:
        shown = connection.info.parameter_status("server_version")
        msg = f"this is PostgreSQL {shown}, and Mainspring needs {OLDEST_SERVER} or newer; upgrade the server"
        raise StoreRefused(msg)


def refuse_newer(version: int) -> None:
    if version > len(scripts()):
        msg = f"the database has schema version {version}, this program knows {len(scripts())}; upgrade Mainspring"
        raise StoreTooNew(msg)


async def value(connection: Connection, statement: str, parameters: Any = None) -> Any:
    row = await (await connection.execute(statement, parameters)).fetchone()
    return None if row is None else row[0]
