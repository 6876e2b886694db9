"""Errors of SQLite and of the operating system as `StoreError`s that name the database and say what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from mainspring.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreReadOnly

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
