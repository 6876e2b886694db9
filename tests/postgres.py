"""A real PostgreSQL server for the tests: started when first asked for, ended with the process that started it."""

from __future__ import annotations

import atexit
import itertools
import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.pool import Connection, Pool
from mainspring.testing.postgres_server import Server, as_somebody, installed

__all__ = ["RecycledStore", "Server", "as_somebody", "dsn", "fresh_schema", "installed", "server", "servers"]

numbers = itertools.count()


@cache
def server(binaries: Path) -> Server:
    """One for all tests of this process."""
    made = Server(binaries)
    atexit.register(made.remove)
    made.start()
    return made


def servers() -> dict[str, Path]:
    """Those that there are, by name: one that is named in the environment stands for all of them."""
    if "MAINSPRING_TEST_PG" in os.environ:
        return {"named": Path()}
    return {f"{'wheel' if 'pginstall' in path.parts else path.parent.name}": path for path in installed()}


def dsn(name: str | None = None) -> str:
    """Of the server of that name, or the first."""
    named = os.environ.get("MAINSPRING_TEST_PG")
    if named is not None:
        return named
    found = servers()
    return server(found[name or next(iter(found))]).dsn


def fresh_schema() -> str:
    """A name that no other test uses."""
    return f"test_{os.getpid()}_{next(numbers)}"


# -- schemas and connections that are used again: to make one costs more than most tests do ---------------

spare: defaultdict[str, list[str]] = defaultdict(list)
idle: defaultdict[tuple[str, int], list[Connection]] = defaultdict(list)  # by server and by process
TABLES = "jobs archive attempts steps dedupe counts halts workers audit audit_jobs documents changes readers numbers"
CLEAR = "".join(f"DELETE FROM {{schema}}.{table};" for table in TABLES.split())
CLEAR += "UPDATE {schema}.feed SET pruned_txid = 0, pruned_number = 0, numbers_pruned_at = 0, starts_until = 0;"
FORGET = "RESET ALL; SELECT pg_advisory_unlock_all()"


class RecycledStore(PostgresStore):
    """In a schema that is empty but perhaps not new, and is left so; with a connection of an earlier store."""

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        self._dsn = dsn(name)
        super().__init__(
            self._dsn, schema_name=spare[self._dsn].pop() if spare[self._dsn] else fresh_schema(), **settings
        )

    async def open(self) -> None:
        if not self._is_open and self._pool.dsn == self._dsn:
            self._pool._mine().free += idle.pop((self._dsn, os.getpid()), [])
        await super().open()

    async def close(self) -> None:
        pool = self._pool if self._pool.dsn == self._dsn else Pool(self._dsn)
        connection = await pool._take(pool._mine())
        await super().close()
        await connection.execute((CLEAR.format(schema=self.schema) + FORGET).encode(), prepare=False)
        idle[self._dsn, os.getpid()].append(connection)
        spare[self._dsn].append(self.schema)


@atexit.register
def close_idle_connections() -> None:
    for (_, process), connections in idle.items():
        for connection in connections if process == os.getpid() else ():
            connection.pgconn.finish()
