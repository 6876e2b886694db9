"""People who have an occasion at one instant, for the measurements of imports and bursts."""

from __future__ import annotations

import csv
import os
import random
import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INSTANT = datetime(2026, 6, 15, 7, tzinfo=UTC)  # nine o'clock in Berlin
BEFORE = timedelta(days=3)
AT = "BENCH_INSTANT"  # the Unix time at which a process takes it to be that instant; unset: it is days before


def ahead() -> float:
    """By how many seconds a process's time is ahead of the machine's."""
    at = float(os.environ.get(AT, time.time() + BEFORE.total_seconds()))
    return INSTANT.timestamp() - at


def write_people(path: Path, people: int) -> None:
    """As a CSV file; they are born in many years, on one day."""
    chance = random.Random(1)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "tz", "first_name", "last_name", "email", "birthday"])
        for number in range(people):
            name, born = f"p{number:07}", date(chance.randrange(1940, 2010), INSTANT.month, INSTANT.day)
            rows.writerow([name, "Europe/Berlin", "Ana", "Lee", f"{name}@example.com", born])
