"""The PostgreSQL server of a run: one for all peers, as durable as it ships, ended with the run."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from bench.ground import NoGround
from tests.postgres import as_somebody, installed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

USER = "bench"
START_SECONDS = 60.0
SHOWN_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
    "jit",
)
USER_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""


class NoServer(Exception):
    """No PostgreSQL was found: install the development requirements (`make bench` does), or PostgreSQL itself."""


class Server:
    """One data directory and the process that serves it on a free port of this machine, under a password."""

    def __init__(self, directory: Path) -> None:
        found = installed()
        if not found:
            raise NoServer(NoServer.__doc__)
        self._binaries = found[0]
        self._directory = directory
        self._password = secrets.token_urlsafe(16)
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._directory.mkdir()
        try:
            self._make()
            self._serve()
        except BaseException:
            self.stop()
            raise

    def _make(self) -> None:
        secret = self._directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(self._password, "utf-8")
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8")
        secret.unlink()

    def _serve(self) -> None:
        settings = ("listen_addresses=127.0.0.1", f"port={self._port}", "unix_socket_directories=")
        options = [word for setting in settings for word in ("-c", setting)]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*as_somebody(), str(self._binaries / "postgres"), "-D", self._data, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown: connections are cut
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*as_somebody(), str(self._binaries / program), *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoServer(f"{program} failed: {done.stderr[-1500:]}")

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                    raise NoServer((self._directory / "log").read_text("utf-8", "replace")[-1500:]) from None
                time.sleep(0.05)
            else:
                return

    # -- databases ----------------------------------------------------------------------------
    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def create(self, database: str, template: str | None = None) -> None:
        """A copy has the rows of its template, its statistics, and whatever else it knows of them."""
        how = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database))
        if template:
            how += sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(template))
        self._execute("postgres", [how])

    def drop(self, database: str) -> None:
        self._execute("postgres", [sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))])

    def freeze_statistics(self, database: str) -> None:
        """What the planner knows of these tables stays as it is, however they are filled."""
        off = "ALTER TABLE {} SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
        self._execute(database, [sql.SQL(off).format(sql.SQL(table)) for table in self._tables(database)])

    def analyze(self, database: str) -> None:
        self._execute(database, [sql.SQL("ANALYZE")])

    def settings(self) -> dict[str, str]:
        with psycopg.connect(self.url("postgres")) as connection:
            rows = [connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in SHOWN_SETTINGS]
        return {name: str(row[0]) for name, row in zip(SHOWN_SETTINGS, rows, strict=True) if row}

    def _tables(self, database: str) -> list[str]:
        with psycopg.connect(self.url(database)) as connection:
            return [name for (name,) in connection.execute(USER_TABLES)]

    def _execute(self, database: str, statements: Sequence[sql.Composed | sql.SQL]) -> None:
        try:
            with psycopg.connect(self.url(database), autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as error:
            raise NoGround(f"failed: {error}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
