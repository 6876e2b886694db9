"""A program that runs jobs with callbacks, and sends the callbacks."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import Retry
from mainspring.context import Context
from mainspring.service import ServiceSettings, add_http_task
from mainspring.stores.engine import ack
from tests.chaos.programs.tasks import Shop
from tests.chaos.programs.work import run

SOON = Retry(max_attempts=2, base=0.01)


def work(folder: str, who: str, settings: str = "", **worker: Any) -> int:
    """Until SIGTERM. A job is not blamed for the kills that it meets, however many."""
    ack.MAX_CRASHES = 1_000  # type: ignore[attr-defined] # the name that the engine reads
    shop = Shop(folder, who, settings)
    add_http_task(shop.app, ServiceSettings(outgoing_allow=("127.0.0.0/8",)))

    @shop.app.task(retry=SOON)
    async def sell(ctx: Context, *, number: int) -> int:
        with shop.noted(ctx):
            await asyncio.sleep(0.01)
            if number % 4 == 0:
                msg = f"sold out: {number}"
                raise LookupError(msg)
            return number

    return run(shop, **worker)
