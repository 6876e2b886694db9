"""What is seen of the processes from outside: memory, open files and threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

PAGE = os.sysconf("SC_PAGESIZE")
PARTS = 10  # a run is compared by tenths; the first fills caches


@dataclass(frozen=True)
class Sample:
    second: float  # since the start
    megabytes: float
    files: int
    threads: int


def take(pid: int, second: float) -> Sample:
    """Read /proc, so this works on Linux only."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text("utf-8").split()[1])
    return Sample(
        second, pages * PAGE / 1e6, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))
    )


def early_and_late(values: list[float]) -> tuple[float, float]:
    """Return the medians of the second tenth and of the last one."""
    size = max(len(values) // PARTS, 1)
    return median(values[size : 2 * size] or values), median(values[-size:])
