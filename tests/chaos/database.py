"""What the database says, asked in plain SQL: the checks do not lean on the code that they check."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
from psycopg.types.string import TextLoader

from mainspring.stores.connect import connect
from mainspring.stores.protocol import Finding, Severity
from mainspring.stores.sqlite.connection import WriteLock
from mainspring.stores.sqlite.schema import TABLES
from tests.chaos.programs.own import EFFECTS

LIVE = ("pending", "retrying", "running", "suspended")
AROUND = {"connection", "durability", "replication", "autovacuum", "dead rows", "transactions", "prepared", "notices"}
LEFTOVERS = "workers"  # files of the dead, of which the next worker is rid as soon as it looks: see Crew.finish
WATCHER = "watcher"  # our own connection, as the server knows it
BACKENDS = f"""
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> '{WATCHER}'
"""
numbers = itertools.count()


class Database(ABC):
    """Tables of the same names (without their prefix) and statuses of the same numbers, whatever the store."""

    kind: str  # the store, as tests name it
    url: str  # for the programs
    watchful = ""  # settings with which a worker notices soon that another one is dead

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Nothing while there is no database or no table yet. A parameter is `?`."""

    @abstractmethod
    def plant(self, statement: str) -> None:
        """A fault, which the checks must find."""

    @abstractmethod
    def beats(self) -> dict[str, int]:
        """The last heartbeat of each worker, as a number that grows."""

    def is_watched(self, worker: str) -> bool:
        """Whether others would notice its death before its lease ends."""
        del worker
        return True

    def leftovers(self, living: Iterable[str]) -> set[str]:
        """Workers that are dead and still listed, although every process can see it."""
        del living
        return set()

    def is_free(self) -> bool:
        """Whether nobody is in the middle of a write for which others would have to wait."""
        return True

    def documents(self, collection: str) -> list[str]:
        return [str(data) for (data,) in self.ask("SELECT data FROM documents WHERE collection = ?", collection)]

    def statuses(self) -> dict[str, str]:
        return dict(self.ask("SELECT id, status FROM all_jobs"))

    def totals(self) -> dict[str, int]:
        return dict(self.ask("SELECT status, count(*) FROM all_jobs GROUP BY status"))

    def unfinished(self) -> dict[str, int]:
        return {status: number for status, number in self.totals().items() if status in LIVE}

    def ailments(self) -> list[str]:
        """What `mainspring doctor` finds wrong with the tables; how durable the test's server is matters little."""

        async def diagnose() -> list[Finding]:
            store = connect(self.url)
            try:
                return await store.diagnose()
            finally:
                await store.close()

        found = [finding for finding in asyncio.run(diagnose()) if finding.severity is not Severity.OK]
        return [str(finding) for finding in found if finding.check not in {*AROUND, LEFTOVERS}]


OURS = re.compile(rf"\b(FROM|JOIN|UPDATE|INTO) (?=({'|'.join(name.removeprefix('mainspring_') for name in TABLES)})\b)")


def prefixed(statement: str) -> str:
    """On SQLite, where the application's tables are in the same file, the names of ours begin with `mainspring_`."""
    return OURS.sub(r"\1 mainspring_", statement)


class SqliteDatabase(Database):
    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def __exit__(self, *_: object) -> None:
        """It goes with the folder of the test."""

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            try:
                return connection.execute(prefixed(statement), parameters).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise

    def plant(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute(prefixed(statement))

    def beats(self) -> dict[str, int]:
        locks = Path(f"{self.path}-workers").glob("*.lock")
        return {lock.stem: lock.stat().st_mtime_ns for lock in locks}

    def leftovers(self, living: Iterable[str]) -> set[str]:
        return {lock.stem for lock in Path(f"{self.path}-workers").glob("*.lock")}.difference(living)

    def is_free(self) -> bool:
        lock = WriteLock(self.path)
        with closing(lock), lock.if_free() as entered:
            return entered

    @contextmanager
    def locked(self) -> Iterator[None]:
        """By another program, which has begun to write and takes its time."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield


class PostgresDatabase(Database):
    """One of its own, so that a transaction that is held open in it blocks no other test's."""

    kind = "postgres"
    watchful = "lease=4"  # seconds; far more than a process of a test is ever kept from running

    def __init__(self, server: str) -> None:
        self._server = server
        self.name = f"chaos_{os.getpid()}_{next(numbers)}"
        self.url = urlsplit(server)._replace(path=f"/{self.name}").geturl()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self.on_server(f"CREATE DATABASE {self.name}")
        self.on_server(f"ALTER DATABASE {self.name} SET search_path = public, mainspring")
        with self.connect() as connection:
            connection.execute(EFFECTS)  # here, since two processes that create a table at once do not both succeed

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self.on_server(f"DROP DATABASE {self.name} WITH (FORCE)")

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        try:
            return self._ask(statement.replace("?", "%s"), parameters)
        except psycopg.errors.UndefinedTable:
            return []
        except psycopg.OperationalError:  # the server was away since we last asked
            return self._ask(statement.replace("?", "%s"), parameters)

    def _ask(self, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._connected().execute(statement.encode(), parameters).fetchall()

    def plant(self, statement: str) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode())

    def beats(self) -> dict[str, int]:
        return dict(self.ask("SELECT id, beat FROM workers"))

    def is_watched(self, worker: str) -> bool:
        """Its session has a lock, and one of its heartbeats has said which."""
        return bool(self.ask("SELECT 1 FROM workers WHERE id = ? AND lock IS NOT NULL", worker))

    def is_free(self) -> bool:
        return not self.ask(f"{BACKENDS} AND state <> 'idle'")

    def cut(self, rng: random.Random) -> int:
        """End some connections, rather those that are in the middle of something; how many."""
        busy = [pid for (pid,) in self.ask(f"{BACKENDS} AND state <> 'idle'")]
        pids = busy or [pid for (pid,) in self.ask(BACKENDS)]
        chosen = rng.sample(pids, rng.randint(1, len(pids))) if pids else []
        return len(self.ask("SELECT pg_terminate_backend(pid) FROM unnest(?::integer[]) AS pid", chosen))

    def on_server(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """By a connection to another database: this one may not even be there."""
        with psycopg.connect(self._server, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, **options)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        """One that is kept, since tests ask many times a second."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect(autocommit=True, application_name=WATCHER)
            self._connection.adapters.register_loader("uuid", TextLoader)  # as texts, like everywhere else
        return self._connection
