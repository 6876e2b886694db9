"""What a worker sets for the process that is its own."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

SWITCH_INTERVAL = 0.0001  # seconds after which a thread that waits for the interpreter gets it
THRESHOLDS = (10_000, 20, 20)


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    with quick_switches(), rare_collections():
        yield


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
def rare_collections() -> Iterator[None]:
    """Look for cycles seldom, and not among what was there before the first job.

    Jobs that wait their turn are thousands of objects without a cycle; Python would go through them all every few
    hundred, and that took a seventh of a worker's time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    if 0 < before[0] < THRESHOLDS[0]:  # else the application has decided
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
