"""What a worker sets for the process that is its own, and a long import for as long as it lasts."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

SWITCH_INTERVAL = 0.0001  # seconds after which a thread that waits for the interpreter gets it
THRESHOLDS = (50_000, 20, 20)

_lock = threading.Lock()
_users = 0
_before = contextlib.ExitStack()


@contextlib.contextmanager
def tuned(*, collect: bool = False) -> Iterator[None]:
    """Several may ask for it at once: the first sets all of it, and the last to end restores what was before."""
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
    """Let the thread that writes get its turn while the event loop is busy.

    It needs the interpreter for microseconds between long statements, and would wait Python's usual 5 ms for each.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def rare_collections(*, collect: bool) -> Iterator[None]:
    """Look for cycles seldom, and not among what was there before.

    Jobs that wait their turn, and people on their way into a store, are thousands of objects without a cycle. Python
    would go through them all every few hundred, and that took a seventh of a worker's time, and a quarter of an
    import's. `collect` looks for cycles first; with many objects that takes a while.
    """
    before = gc.get_threshold()
    if collect:
        gc.collect()
    gc.freeze()
    if 0 < before[0] < THRESHOLDS[0]:  # else the application has decided
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
