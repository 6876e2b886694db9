"""Close all connections while the process forks.

SQLite tracks its locks per process. A forked child gets a copy of that record, but not the locks. So the child's
connections would write without locks; and its parent, on closing, would delete the write-ahead log that the child still
uses, with the jobs in it. So before a fork, every connection waits for its user to finish and is closed. It is opened
again when it is next needed. If a transaction takes too long, the child may not open that database at all.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

FORK_WAIT = 1.0  # seconds that a fork waits for connections in use
inherited: set[Path] = set()  # files with a connection in use when this process was forked


class FileConnection(Protocol):
    path: Path

    def pause(self, seconds: float) -> bool: ...
    def resume(self) -> None: ...


class Store(Protocol):
    def forget_parent(self) -> None: ...


_connections: weakref.WeakSet[FileConnection] = weakref.WeakSet()
_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_lock = threading.Lock()  # held during a fork, and while a connection is open that is not registered here
_paused: list[FileConnection] = []
_stuck: list[FileConnection] = []  # the child keeps them for ever: closing them there would harm the parent


def close_for_forks(connection: FileConnection) -> None:
    """Have the connection closed before each fork."""
    with _lock:
        _connections.add(connection)


def tell_children(store: Store) -> None:
    """Have `forget_parent` of the store called in each forked child."""
    with _lock:
        _stores.add(store)


@contextmanager
def postponed() -> Iterator[None]:
    """Make forks wait until the block has ended."""
    with _lock:
        yield


def _before() -> None:
    _lock.acquire()
    end = time.monotonic() + FORK_WAIT
    for connection in list(_connections):
        paused = connection.pause(max(0.0, end - time.monotonic()))
        (_paused if paused else _stuck).append(connection)


def _after_in_parent() -> None:
    _stuck.clear()
    _resume()


def _after_in_child() -> None:
    inherited.update(connection.path for connection in _stuck)
    for store in list(_stores):
        store.forget_parent()
    _resume()


def _resume() -> None:
    for connection in _paused:
        connection.resume()
    _paused.clear()
    _lock.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
