"""The database file: check, open and migrate it, and explain its errors in plain words."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from mainspring.errors import (
    ConfigurationError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreVanished,
)
from mainspring.stores.sqlite import fork, schema

Identity = tuple[int, int]
"""Device and inode: they identify the file, whatever its name."""

OLDEST_SQLITE = (3, 38, 0)  # STRICT tables came with 3.37, the ->> operator with 3.38
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)
MOUNTS = Path("/proc/self/mountinfo")
BUSY_TIMEOUT = 5.0  # seconds to wait for a program that holds SQLite's lock without Mainspring's write lock
BUSY_PAUSE = 0.005  # seconds between two attempts where SQLite itself does not wait
CHECKPOINT_PAGES = 4000  # 16 MB of write-ahead log; each checkpoint then costs less per job

ERRORS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "{path} is locked by another program; end its transaction and try again"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "{path} is locked by another program; end its transaction and try again"),
    sqlite3.SQLITE_FULL: (
        StoreFull,
        "no room left on the disk of {path}; nothing was changed; free some and try again",
    ),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "{path} cannot be written; check its owner, mode and mount"),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "{path} cannot be written; check its owner, mode and mount"),
    sqlite3.SQLITE_CANTOPEN: (
        StoreReadOnly,
        "{path} cannot be opened; check that its directory exists and can be written",
    ),
    sqlite3.SQLITE_CORRUPT: (
        StoreCorrupt,
        "{path} is damaged; keep a copy, then restore a backup or run `sqlite3 {path} .recover`",
    ),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "{path} is not an SQLite database; is the path right?"),
    sqlite3.SQLITE_IOERR: (StoreError, "reading or writing {path} failed ({error}); check the disk"),
}
STALE_SNAPSHOT = (
    "your transaction has read {path}, and another program has written to it since, so SQLite does not let it write; "
    "roll back and try again, or start with BEGIN IMMEDIATE"
)
SYSTEM_ERRORS = {  # of files that Mainspring opens besides the database; they get the same messages
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
    errno.ENOENT: sqlite3.SQLITE_CANTOPEN,
    errno.ENOTDIR: sqlite3.SQLITE_CANTOPEN,
}


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
        with fork.postponed(), self.errors(), contextlib.closing(self._open(create=create)) as connection:
            self._migrate(connection)
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

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Run the missing migrations in one transaction, so that of several starting processes only one does it."""
        cursor = connection.cursor()
        schema.refuse_unusable(cursor, self.path)
        if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:  # an existing file keeps the application's choice
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        write_ahead(connection, self.busy_timeout)
        if schema.version_of(cursor) == len(schema.MIGRATIONS):  # the application's transaction may have created them
            return
        cursor.execute("BEGIN IMMEDIATE")
        try:
            schema.migrate(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk makes SQLite roll back by itself
                cursor.execute("ROLLBACK")
            raise

    def connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        """Open a connection with Mainspring's settings to the existing file. Only `FileConnection`s call this."""
        connection = self._open()
        if readonly:
            connection.execute("PRAGMA query_only = ON")
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

    @contextlib.contextmanager
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


def explain(error: sqlite3.Error | OSError, path: Path | str) -> StoreError:
    """Return the error as a `StoreError` that names the database and says what to do."""
    code = SYSTEM_ERRORS.get(error.errno or 0) if isinstance(error, OSError) else None
    code = code or getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python itself, not by SQLite
        return StoreError(f"{path}: {error}")
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreBusy(STALE_SNAPSHOT.format(path=path))
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # how a full disk shows in the shared memory file
        code = sqlite3.SQLITE_FULL
    kind, words = ERRORS.get(code & 0xFF, (StoreError, "{path}: {error}"))
    return kind(words.format(path=path, error=error))


def write_ahead(connection: sqlite3.Connection, patience: float) -> None:
    """Switch to write-ahead logging; retry for `patience` seconds while the file is locked.

    SQLite's busy timeout does not apply here: SQLite holds a read lock already, and waiting could be a deadlock.
    Without the retries, of two processes that create a file together, one would fail because the file is locked.
    """
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(BUSY_PAUSE)
        else:
            return


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
