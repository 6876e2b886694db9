"""Wake a worker, or a reader of the change feed, when other processes have committed something for it.

Processes of Mainspring send a message to its socket. Commits by the application's own connections send none: they are
noticed by the write to the database's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from mainspring.errors import StoreError
from mainspring.queue_patterns import meet
from mainspring.stores.protocol import Wake
from mainspring.stores.sqlite.connection import DatabaseFile, FileConnection
from mainspring.stores.sqlite.file_watch import REPLACED, WRITTEN, FileWatch

LONGEST_SLEEP = 5.0  # seconds between looks for commits without a message, if the kernel tells of writes to the file
POLL_INTERVAL = 0.25  # seconds between such looks if it does not
WRITE_TO_COMMIT = 0.005  # seconds from a write to the first look: a commit is visible only once it is on the disk
LOOKS_AFTER_WRITE = (0.02, 0.1, 0.3, 1.0, 3.0)  # seconds before each further look: the disk may be slow
MAX_WAKES = 8  # per second, after commits that are found by such looks

Version = tuple[sqlite3.Connection, int]
"""A number of `PRAGMA data_version`, and the connection that it belongs to."""


class Listener:
    """Wakes a worker on its event loop: for each message to its socket, and after commits that send no message."""

    def __init__(
        self, listening: socket.socket | None, file: DatabaseFile, queues: Iterable[str], wake: Callable[[Wake], None]
    ) -> None:
        self._socket = listening
        self._file = file
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._poll = self._loop.create_task(self._notice_foreign_writes(), name="mainspring-poll")
        if listening is not None:
            self._loop.add_reader(listening, lambda: wake(read_wakes(listening, queues)))

    async def _notice_foreign_writes(self) -> None:
        """Wake the worker after each commit elsewhere, by any connection: `data_version` changes with it."""
        file_connection = FileConnection(self._file)
        watch = FileWatch({Path(f"{self._file.path}-wal"): WRITTEN, self._file.path: REPLACED})
        try:
            last, is_watched, pauses, pace = None, False, iter(LOOKS_AFTER_WRITE), WakePace()
            while True:
                before, last = last, self._wake_after_commit(file_connection, last)
                if last != before:
                    await pace.rest()
                if await watch.wait(next(pauses, LONGEST_SLEEP if is_watched else POLL_INTERVAL)):
                    pauses = iter(LOOKS_AFTER_WRITE)
                    await asyncio.sleep(WRITE_TO_COMMIT)
                is_watched = watch.arm()  # before the look, so that a write after it is noticed
        finally:
            watch.close()
            file_connection.close()

    def _wake_after_commit(self, file_connection: FileConnection, last: Version | None) -> Version | None:
        """Wake the worker if there was a commit since `last`; return the version that the database has now."""
        seen = None
        with contextlib.suppress(StoreError), file_connection.use() as connection:  # the writer reports errors
            seen = connection, connection.execute("PRAGMA data_version").fetchone()[0]
        if seen != last:  # numbers of a reopened connection cannot be compared with earlier ones
            self._wake(Wake.JOBS | Wake.DOCUMENTS)
        return seen

    def stop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self._loop.remove_reader(self._socket)
            self._socket.close()
        if not self._loop.is_closed():
            self._poll.cancel()


class WakePace:
    """Spaces out the wake-ups while many processes commit: each makes a worker look for jobs."""

    def __init__(self) -> None:
        self._times = deque[float](maxlen=MAX_WAKES)

    async def rest(self) -> None:
        """Return when the next wake-up may follow this one."""
        now = time.monotonic()
        self._times.append(now)
        if len(self._times) == MAX_WAKES:
            await asyncio.sleep(max(0.0, self._times[0] + 1 - now))


def read_wakes(listener: socket.socket, queues: Iterable[str]) -> Wake:
    """Read all messages from the socket; return the wake-ups that concern a worker of these queues."""
    wanted, heard = set(queues), Wake(0)
    while True:
        try:
            value, *about = listener.recv(65536).decode().split("\n")
        except BlockingIOError:
            return heard
        wake = Wake(int(value))
        if about and not meet(wanted, about):
            wake &= ~Wake.JOBS
        heard |= wake
