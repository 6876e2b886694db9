"""A worker that is busy is not dead: its heartbeat needs neither the event loop nor much of the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.conftest import each_store_if_long
from tests.chaos.processes import Nursery
from tests.chaos.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

WORKER: dict[str, Any] = {
    "concurrency": 1,
    "prefetch": 0,
    "heartbeat_interval": 0.1,
    "maintenance_interval": 0.1,
    "settings": "lease=1",
}


@each_store_if_long
@pytest.mark.parametrize("task", ["blocking", "hungry"])
def test_a_busy_event_loop_or_interpreter_does_not_cost_the_lease(nursery: Nursery, task: str) -> None:
    watcher = nursery.start("work:work", "watcher", queues=["other"], **WORKER)  # looks after all workers
    nursery.start("work:work", "busy", queues=["default"], **WORKER)
    nursery.run("enqueue:some", task=task, seconds=2)
    wait_until(lambda: nursery.ledger.done, watcher.said)
    assert nursery.ask("SELECT status, token, worker, crashes FROM archive") == [(4, 1, "busy", 0)]
