"""How long a program takes to show that it is alive."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS_TO_LIFE = 10.0


def lines_of(process: subprocess.Popen[str], sign: str) -> Iterator[str]:
    """Yield the lines that a program prints, which was just started. Its first sign of life must come in time.

    The time in which the program could run but other programs had the processors does not count.
    """
    began, waits = time.monotonic(), True
    assert process.stdout is not None
    for line in process.stdout:
        if waits and sign in line:
            waits = False
            assert time.monotonic() - began - waited(process.pid) < SECONDS_TO_LIFE
        yield line


def waited(pid: int) -> float:
    """Return how many seconds the program has waited for a processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except OSError:  # only Linux tells
        return 0.0
