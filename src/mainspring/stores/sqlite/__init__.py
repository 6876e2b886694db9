"""The SQLite stores: jobs in one file on this machine, or in the memory of this process."""

from mainspring.stores.sqlite.file_store import SqliteStore
from mainspring.stores.sqlite.memory import MemoryStore

__all__ = ["MemoryStore", "SqliteStore"]
