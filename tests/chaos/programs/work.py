"""Programs that work."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.cli import logs
from mainspring.clock import SETTLE_SECONDS
from mainspring.job import LIVE
from mainspring.stores.protocol import Filter
from mainspring.stores.sqlite import file_watch, listener
from mainspring.worker import Worker, outage, program
from mainspring.worker import worker as worker_module
from tests.chaos.programs.tasks import Shop, shop_by_wound_clock
from tests.chaos.waiting import DEADLINE


def work(folder: str, who: str, settings: str = "", **worker: Any) -> int:
    """Until SIGTERM. The worker's id is the process's name in the ledger."""
    return run(Shop(folder, who, settings), **worker)


def work_by_wound_clock(
    folder: str, who: str, settings: str = "", settle: float = SETTLE_SECONDS, **worker: Any
) -> int:
    return run(shop_by_wound_clock(folder, who, settings, settle), **worker)


def run(
    shop: Shop, last_words: float = DEADLINE, last_writes: float = DEADLINE, log_level: str = "info", **worker: Any
) -> int:
    """As patient at its end as the test: a machine that has other things to do is no reason to leave in disorder."""
    worker_module.STOP_TIMEOUT, worker_module.WRITE_TIMEOUT = last_words, last_writes
    program.LEFT_BEHIND_TIMEOUT, program.STOP_NOW_TIMEOUT = last_words, 3 * last_words
    logs.set_up(log_level, as_json=True, final=True)
    return Worker(shop.app, id=shop.who, **worker).run()


def work_without_polling(folder: str, who: str, **worker: Any) -> int:
    """It hears of jobs by messages to its socket only: not by looking, and not by writes to the file."""
    listener.POLL_INTERVAL = 3600.0
    file_watch.libc = lambda: None
    outage.LONGEST_SLEEP = 3600.0
    return work(folder, who, **worker)


def retry_dead(folder: str, who: str) -> None:
    """Run every dead letter again, as a person would who found out that the jobs were not to blame."""
    asyncio.run(_retry_dead(Shop(folder, who)))


async def _retry_dead(shop: Shop) -> None:
    async with shop.app as app:
        await app.jobs.retry_where(app.jobs.dead(), reason="their workers were killed by a test")
        async with app.worker(id=shop.who):
            while await app.store.count(Filter(statuses=tuple(LIVE))):  # noqa: ASYNC110 - some wait for their next attempt
                await asyncio.sleep(0.05)
