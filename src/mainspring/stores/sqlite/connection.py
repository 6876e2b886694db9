"""Connections to the database file: which of them may write now, and whether they still are to the same file.

A connection is opened when it is first needed, and closed while the process forks. It is opened again when the file was
replaced: the old connection would write into a deleted file. Each connection serves one user at a time. To write, it
also needs the lock between all connections, of this process and of others.
"""

from __future__ import annotations

import contextvars
import fcntl
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from mainspring.errors import ConfigurationError, StoreError, StoreReadOnly, StoreVanished
from mainspring.stores.sqlite import fork, schema
from mainspring.stores.sqlite.errors import explain

Identity = tuple[int, int]
"""Device and inode: they identify the file, whatever its name."""

OLDEST_SQLITE = (3, 38, 0)  # STRICT tables came with 3.37, the ->> operator with 3.38
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)
MOUNTS = Path("/proc/self/mountinfo")
BUSY_TIMEOUT = 5.0  # seconds to wait for a program that holds SQLite's lock without Mainspring's write lock
CHECKPOINT_PAGES = 4000  # 16 MB of write-ahead log; each checkpoint then costs less per job


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
        with self._lock, self.file.errors():
            connection = self._current()
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


# -- the write lock --------------------------------------------------------------------------------------


class WriteLock:
    """A fair lock in front of SQLite's own, held during each write transaction.

    SQLite's own waiting (`busy_timeout`) polls and is unfair: of two busy writers, one gets nearly all the time. With a
    blocking `flock` on the file `<database>-lock`, the kernel serves processes in order. It releases the lock when the
    process dies. Each connection has its own, because a flock belongs to the open file.
    """

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


class Block(Protocol):
    """A `ctx.transaction()` block. While it has begun, it holds the write lock."""

    @property
    def begun(self) -> bool: ...


inside: contextvars.ContextVar[Block | None] = contextvars.ContextVar("mainspring_inside", default=None)


def refuse_inside() -> None:
    """Raise if the caller is inside `ctx.transaction()`.

    The block holds the file's only write lock. Another connection needs that lock, so waiting for it there would never
    end. Code that was started in the block inherits its context. Once the block has ended, such code may write again.
    """
    block = inside.get()
    if block is not None and block.begun:
        msg = (
            "inside ctx.transaction() only its own connection can write to the database: "
            "enqueue with using(connection=tx), or do this after the block"
        )
        raise ConfigurationError(msg)


# -- the file --------------------------------------------------------------------------------------------


class DatabaseFile:
    """The database file at a path. Its inode tells whether the file was replaced since it was opened."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self.path = Path(path).expanduser().absolute()
        self.busy_timeout = busy_timeout
        self._identity: Identity | None = None

    def prepare(self) -> None:
        """Check that the file can be used, and migrate it to the current schema."""
        self.check_place()
        if self.path in fork.inherited:
            msg = f"{self.path} was in a transaction when this process was forked from another; fork before, or spawn"
            raise ConfigurationError(msg)
        create = self._identity is None  # only at first: an empty file in place of a lost one would hide the loss
        with fork.postponed(), self.errors(), closing(self._open(create=create)) as connection:
            schema.prepare(connection, self.path, self.busy_timeout)
        self._identity = self._stat()

    @property
    def prepared(self) -> bool:
        """Whether `prepare` was called for the file that is there now."""
        return self._identity is not None and self._stat() == self._identity

    def check_place(self) -> None:
        """Raise if the version of SQLite or the directory does not suit the file."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            msg = f"SQLite {sqlite3.sqlite_version} is too old; Mainspring needs {oldest} or newer"
            raise ConfigurationError(msg)
        if not self.path.parent.is_dir():
            msg = f"{self.path.parent} does not exist; create the directory first"
            raise StoreReadOnly(msg)
        if (kind := file_system(self.path.parent)) in NETWORK_FILE_SYSTEMS:
            msg = f"{self.path} is on a network file system ({kind}), where locks cannot be trusted; use a local disk"
            raise ConfigurationError(msg)

    def connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        """Open a connection with Mainspring's settings to the existing file. Only `FileConnection`s call this."""
        connection = self._open()
        if readonly:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cache_size = -4096")  # each commit of another connection empties it
        return connection

    def identity(self) -> Identity:
        """Return the identity of the file that is there now; if it was replaced, prepare it first."""
        found = self._stat()
        if found is None:
            raise self._vanished()
        if found != self._identity:
            self.prepare()
        return self._identity or found

    def check_identity(self) -> None:
        """Raise if the file was deleted or replaced: an open connection would write into a file that is lost."""
        if self._stat() != self._identity:
            raise self._vanished()

    def _vanished(self) -> StoreVanished:
        msg = f"{self.path} is gone or was replaced while in use; put it back, and it will be opened again"
        return StoreVanished(msg)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of sqlite3 and of the operating system into `StoreError`s."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self.explain(error) from error

    def explain(self, error: sqlite3.Error | OSError) -> StoreError:
        return explain(error, self.path)

    def _open(self, *, create: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=self.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            for pragma in (f"wal_autocheckpoint = {CHECKPOINT_PAGES}", "cache_size = -65536", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:  # not a database: do not leave the file open
            connection.close()
            raise
        return connection

    def _stat(self) -> Identity | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory; "" if it is unknown."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    directory = directory.resolve()
    best, kind = Path("/"), ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4]))
        if directory.is_relative_to(mounted) and len(mounted.parts) >= len(best.parts):
            best, kind = mounted, rest.split()[0]
    return kind
