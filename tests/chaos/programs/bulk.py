"""A worker that carries out bulk changes in small steps."""

from __future__ import annotations

from typing import Any

from mainspring.bulk import change, timer
from tests.chaos.programs.tasks import Shop
from tests.chaos.programs.work import run

PAGE_SIZE = 10


def work(folder: str, who: str, settings: str = "", step_lease: int = 0, **worker: Any) -> int:
    """Until SIGTERM. A step of a killed worker is repeated after `step_lease` milliseconds."""
    change.PAGE_SIZE, timer.STEP_LEASE = PAGE_SIZE, step_lease
    return run(Shop(folder, who, settings), **worker)
