"""Settings of the process, for a worker that has the process to itself, and for the time of a long import."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

SWITCH_INTERVAL = 0.0001  # seconds after which a thread that waits for the interpreter gets it
THRESHOLDS = (50_000, 20, 20)  # for gc.set_threshold

_lock = threading.Lock()
_users = 0
_before = contextlib.ExitStack()


@contextlib.contextmanager
def tuned(*, collect: bool = False) -> Iterator[None]:
    """Tune the process within the block. Blocks may overlap: the first applies the settings, the last restores them."""
    _begin(collect=collect)
    try:
        yield
    finally:
        _end()


def _begin(*, collect: bool) -> None:
    global _users  # noqa: PLW0603 - these are settings of the process
    with _lock:
        if not _users:
            _before.enter_context(quick_switches())
            _before.enter_context(rare_collections(collect=collect))
        _users += 1


def _end() -> None:
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if not _users:
            _before.close()


@contextlib.contextmanager
def quick_switches() -> Iterator[None]:
    """Let the thread that writes to the store run while the event loop is busy.

    It needs the interpreter for microseconds between long statements, and would wait Python's usual 5 ms each time.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def rare_collections(*, collect: bool) -> Iterator[None]:
    """Collect garbage rarely, and skip the objects that exist already.

    Waiting jobs, and people that are being imported, are thousands of objects without a cycle. Python would scan them
    all after every few hundred new ones. That took a seventh of a worker's time and a quarter of an import's. With
    `collect`, garbage is collected once at the start, which takes a while if there are many objects.
    """
    before = gc.get_threshold()
    if collect:
        gc.collect()
    gc.freeze()
    if 0 < before[0] < THRESHOLDS[0]:  # otherwise the application has chosen its own thresholds
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
