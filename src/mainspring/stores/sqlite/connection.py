"""Connections that follow their file. Each serves one user at a time.

A connection is opened when it is first needed, and closed while the process forks. It is opened again when the file was
replaced: the old connection would write into a deleted file.
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
    """A connection for reading."""

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
        """Close the connection before a fork and block its use; False if its current user takes too long."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._disconnect()
        return True

    def resume(self) -> None:
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
    """A connection for writing. It holds the write lock while it is in use."""

    _write_lock: WriteLock | None = None

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        with super().use() as connection:
            assert self._write_lock is not None  # noqa: S101 - opened together
            with self._write_lock as waited:
                if waited:  # the file may have been replaced meanwhile
                    self.file.check_identity()
                yield connection

    @contextmanager
    def use_at_once(self) -> Iterator[sqlite3.Connection | None]:
        """Yield the connection without waiting; None if it is in use, or another connection holds the write lock."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            with self.file.errors():
                connection = self._current()
                assert self._write_lock is not None  # noqa: S101 - opened together
                with self._write_lock.if_free() as entered:
                    yield connection if entered else None
        finally:
            self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        self._write_lock = WriteLock(self.path)
        return self.file.connect()

    def _disconnect(self) -> None:
        super()._disconnect()
        if self._write_lock is not None:
            self._write_lock.close()
            self._write_lock = None
