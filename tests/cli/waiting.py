"""Waiting for something that can be observed, with a deadline."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

DEADLINE = 90.0  # seconds; far more than anything takes, for a machine that has other things to do


def wait_until(condition: Callable[[], object], what: Callable[[], str] = lambda: "it") -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            msg = f"waited {DEADLINE} s for {what()}"
            raise AssertionError(msg)
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A zombie, whose parent is gone and whom nobody has buried yet, is not."""
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
