"""Jobs in a dictionary; see store.py."""

from mainspring.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
