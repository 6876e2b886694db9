"""What the figures were measured on, without naming it."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from pathlib import Path

SYNC_SECONDS = 1.0


def describe(place: Path, *, sqlite: bool) -> dict[str, str]:
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        **({"SQLite": sqlite3.sqlite_version} if sqlite else {}),
        "file system": _file_system(place),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(place: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, mount, found, *_ = line.split()
        if place.resolve().is_relative_to(mount) and len(mount) > len(best):
            best, kind = mount, found
    return kind


def syncs_per_second(place: Path) -> float:
    """How often 4 kB can be appended and made durable; that bounds everything which commits one by one."""
    path = place / "sync"
    syncs, begin = 0, time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() < begin + SYNC_SECONDS:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            syncs += 1
    path.unlink()
    return syncs / (time.perf_counter() - begin)
