"""Waiting for something that can be observed, with a deadline. No test sleeps to be safe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 60.0  # seconds; far more than anything takes, for a machine that has other things to do


def wait_until(
    condition: Callable[[], T],
    what: Callable[[], str] = lambda: "it",
    *,
    seconds: float = DEADLINE,
    every: float = 0.01,
) -> T:
    """What the condition gave when it first was true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            msg = f"waited {seconds} s for {what()}"
            raise AssertionError(msg)
        time.sleep(every)
    return found
