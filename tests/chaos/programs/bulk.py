"""A worker that carries out bulk changes in small steps."""

from __future__ import annotations

from typing import Any

from mainspring.bulk import change, timer
from mainspring.retry import Retry
from tests.chaos.programs.tasks import Shop
from tests.chaos.programs.work import run

PAGE_SIZE = 10


def work(folder: str, who: str, settings: str = "", step_lease: int = 0, **worker: Any) -> int:
    """Until SIGTERM. A step of a killed worker is repeated after `step_lease` milliseconds."""
    change.PAGE_SIZE, timer.STEP_LEASE = PAGE_SIZE, step_lease
    shop = Shop(folder, who, settings)
    shop.app.task(name="failing", retry=Retry(max_attempts=2, base=3600))(fail)
    return run(shop, **worker)


async def fail() -> None:
    raise RuntimeError("always")
