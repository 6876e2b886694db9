"""Jobs in an SQLite file. Start reading at store.py."""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
