"""No connection is open while the process forks.

SQLite keeps account of its locks per process, and a child gets a copy of that account without the locks. Its own
connections would then write unguarded; and its parent, on closing, would delete the write-ahead log under it, with the
jobs that stand in there. So before a fork each link waits for its user to finish and closes its connection, which is
opened again when next needed. Where a transaction goes on for too long, the child may not open that database at all.
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

PATIENCE = 1.0  # seconds to wait for those who use a connection
inherited: set[Path] = set()  # files that were in use when this process was forked


class FileConnection(Protocol):
    path: Path

    def pause(self, seconds: float) -> bool: ...
    def go_on(self) -> None: ...


class Store(Protocol):
    def forget_parent(self) -> None: ...


_links: weakref.WeakSet[FileConnection] = weakref.WeakSet()
_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_lock = threading.Lock()  # held during a fork, and while something is opened that is no link
_paused: list[FileConnection] = []
_stuck: list[FileConnection] = []  # kept in the child for ever: to close such a connection there would harm the parent


def close_for_forks(link: FileConnection) -> None:
    with _lock:
        _links.add(link)


def tell_children(store: Store) -> None:
    with _lock:
        _stores.add(store)


@contextmanager
def postponed() -> Iterator[None]:
    with _lock:
        yield


def _before() -> None:
    _lock.acquire()
    end = time.monotonic() + PATIENCE
    for link in list(_links):
        paused = link.pause(max(0.0, end - time.monotonic()))
        (_paused if paused else _stuck).append(link)


def _after_in_parent() -> None:
    _stuck.clear()
    _go_on()


def _after_in_child() -> None:
    inherited.update(link.path for link in _stuck)
    for store in list(_stores):
        store.forget_parent()
    _go_on()


def _go_on() -> None:
    for link in _paused:
        link.go_on()
    _paused.clear()
    _lock.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
