"""The SQLite stores: jobs in one file on this machine, or in the memory of this process."""

from mainspring.stores.sqlite.memory import MemoryStore
from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
