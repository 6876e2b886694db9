"""A connection that follows its file, for one user at a time.

It is opened when needed, opened anew when the file was replaced (the old one would go on writing into a file that
nobody sees any more), and closed while the process forks.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.stores.sqlite import fork
from mainspring.stores.sqlite.file import DatabaseFile, Identity
from mainspring.stores.sqlite.write_lock import WriteLock


class FileConnection:
    """To read."""

    def __init__(self, file: DatabaseFile) -> None:
        self.path = file.path
        self.file = file
        self._connection: sqlite3.Connection | None = None
        self._opened: Identity | None = None
        self._lock = threading.Lock()
        fork.close_for_forks(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self.file.errors():
            yield self._current()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def pause(self, seconds: float) -> bool:
        """Before a fork; False: someone is using it and does not come to an end."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._disconnect()
        return True

    def go_on(self) -> None:
        self._lock.release()

    def _current(self) -> sqlite3.Connection:
        identity = self.file.identity()
        if self._connection is None or identity != self._opened:
            self._disconnect()
            self._connection, self._opened = self._connect(), identity
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        return self.file.connect(readonly=True)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class WriteConnection(FileConnection):
    """To write: whoever uses it holds the gate."""

    _gate: WriteLock | None = None

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        with super().use() as connection:
            assert self._gate is not None  # noqa: S101 - opened together
            with self._gate as waited:
                if waited:  # perhaps for long
                    self.file.check_identity()
                yield connection

    @contextmanager
    def use_at_once(self) -> Iterator[sqlite3.Connection | None]:
        """None: somebody else is using it, or holds the gate."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            with self.file.errors():
                connection = self._current()
                assert self._gate is not None  # noqa: S101 - opened together
                with self._gate.if_free() as entered:
                    yield connection if entered else None
        finally:
            self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        self._gate = WriteLock(self.path)
        return self.file.connect()

    def _disconnect(self) -> None:
        super()._disconnect()
        if self._gate is not None:
            self._gate.close()
            self._gate = None
