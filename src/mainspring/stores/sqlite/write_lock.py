"""A fair lock in front of SQLite's write lock.

SQLite's own waiting (`busy_timeout`) polls and is unfair: of two busy writers, one gets nearly all the time. With a
blocking `flock` on the file `<database>-lock`, the kernel serves processes in order. It releases the lock when the
process dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType


class WriteLock:
    """Held during each write transaction. Each connection has its own, because a flock belongs to the open file."""

    def __init__(self, database: Path) -> None:
        self._file = os.open(f"{database}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> bool:
        """Take the lock; return whether it had to wait."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            return True
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Take the lock without waiting; yield whether it was free."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)
