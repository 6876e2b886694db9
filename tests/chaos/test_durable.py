"""kill -9 at every commit of a durable function of twenty, on each side of it: only the step in flight is repeated."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

import pytest

from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.features.durable.twenty import A_FEW, BOUNDARIES, RESULT, Boundary, Ledger, problems

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

AT_ONCE = 6


@each_store
def test_only_the_step_in_flight_is_repeated(nursery: Nursery, chaos: Chaos) -> None:
    victims = kill_one_at_each(nursery, BOUNDARIES if chaos.long else A_FEW)
    survivor = nursery.start("durable:finish", settings=nursery.database.watchful, concurrency=4)
    nursery.wait_until_all_is_finished()
    survivor.kill()
    ledger = Ledger(nursery.folder / "twenty")
    found: list[str] = []
    for at, victim in victims.items():
        job_id = (nursery.folder / f"{victim.who}.job").read_text()
        found += problems(ledger, job_id, at)
        found += ends(nursery, job_id, at)
    assert found == []
    assert nursery.ask("SELECT count(*) FROM all_jobs") == [(2 * len(victims),)]  # each with one child


def kill_one_at_each(nursery: Nursery, boundaries: Sequence[Boundary]) -> dict[Boundary, Process]:
    """A job and a process for each boundary; who gets past it has not died."""
    victims: dict[Boundary, Process] = {}
    for at in boundaries:
        where = {"method": at.method, "number": at.number, "side": at.side}
        settings = nursery.database.watchful
        victims[at] = nursery.start("durable:die_at", who=f"victim-{len(victims)}", settings=settings, **where)
        if len(victims) % AT_ONCE == 0:
            wait_for_deaths(victims)
    wait_for_deaths(victims)
    return victims


def wait_for_deaths(victims: dict[Boundary, Process]) -> None:
    for at, victim in victims.items():
        assert victim.wait() == -signal.SIGKILL, f"{at} was not reached:\n{victim.said()}"


def ends(nursery: Nursery, job_id: str, at: Boundary) -> list[str]:
    ((status, result),) = nursery.ask("SELECT status, result FROM all_jobs WHERE id = ?", job_id)
    value = json.loads(result) if isinstance(result, str) else result
    return [] if (status, value) == ("completed", RESULT) else [f"{at}: {status} with {value}"]
