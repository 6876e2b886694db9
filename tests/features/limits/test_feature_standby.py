"""Short jobs under a full limit: the run that frees a slot hands it to a job that waits in the same worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from mainspring import Limit, Mainspring
from mainspring.feature import Candidate
from mainspring.features.limits.feature import MAX_STANDBYS, QUICK_SECONDS, LimitsFeature, Standbys
from mainspring.features.limits.options import Rate, Ticket
from mainspring.features.limits.rules import Acquire, LimitDecision, LimitRequest, Release
from mainspring.job import Status
from mainspring.stores.protocol import Want, WorkerInfo
from tests.features.conftest import NewApp
from tests.worker.working import eventually, working

PLACE = Ticket(Limit(1, name="work"), "")


def wishes(job_id: str, *tickets: Ticket) -> tuple[Acquire, Release]:
    return Acquire(job_id, 1, tickets or (PLACE,)), Release(job_id, 1, tickets or (PLACE,))


def busy(lasted: float) -> Standbys:
    """Two runs were inside, one has left after so long."""
    standbys = Standbys()
    for job_id in ("first", "second"):
        standbys.entered(wishes(job_id)[1])
    standbys.left(wishes("first")[1], lasted)
    return standbys


async def test_it_is_worth_to_wait_only_for_short_runs_of_this_process() -> None:
    assert Standbys().wait(PLACE, *wishes("a")) is None
    assert busy(QUICK_SECONDS).wait(PLACE, *wishes("a")) is None
    standbys = busy(0.01)
    assert standbys.wait(Ticket(Rate(1, name="work"), ""), *wishes("a")) is None
    assert standbys.wait(PLACE, *wishes("a")) is not None
    standbys.left(wishes("second")[1], 0.01)
    assert standbys.wait(PLACE, *wishes("b")) is None


async def test_so_many_wait_and_no_more() -> None:
    standbys = busy(0.01)
    waiting = [standbys.wait(PLACE, *wishes(str(number))) for number in range(MAX_STANDBYS + 1)]
    assert waiting[-1] is None
    assert waiting[0] is not None
    waiting[0].cancel()
    assert standbys.wait(PLACE, *wishes("another")) is not None


async def test_a_standby_that_left_is_forgotten_during_a_long_run() -> None:
    standbys = busy(0.01)
    for number in range(10 * MAX_STANDBYS):
        pending = standbys.wait(PLACE, *wishes(str(number)))
        assert pending is not None
        pending.cancel()
    assert len(standbys._waiting[PLACE.document]) == 1


async def test_the_longest_standby_gets_the_slot() -> None:
    standbys = busy(0.01)
    first, second = (standbys.wait(PLACE, *wishes(job_id)) for job_id in "ab")
    assert first is not None
    assert second is not None
    first.cancel()
    (heir,) = standbys.heirs([wishes("second")[1]])
    assert heir.acquire.job_id == "b"
    assert standbys.heirs([wishes("second")[1]]) == []


async def test_a_standby_is_dismissed_once_this_worker_holds_no_slot() -> None:
    standbys = busy(0.01)
    pending = standbys.wait(PLACE, *wishes("a"))
    assert pending is not None
    standbys.dismiss([wishes("first")[1]])
    assert not pending.done()
    standbys.left(wishes("second")[1], 0.01)
    standbys.dismiss([wishes("second")[1]])
    assert pending.result() is False


@pytest.mark.slow
async def test_short_jobs_hand_over_without_being_woken(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.limits.feature.QUICK_SECONDS", 60.0)  # the machine may be busy
    monkeypatch.setattr("mainspring.worker.admission.HANDOVER_WAIT", 60.0)
    app, woken = new_app(), list[int]()
    inside, most, jobs = 0, 0, 24

    @app.task(limits=Limit(1))
    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    wake = app.store.wake

    async def counting(keys: Mapping[str, int]) -> dict[str, int]:
        woken.append(sum(keys.values()))
        return await wake(keys)

    app.store.wake = counting  # type: ignore[method-assign]
    await work.enqueue_many([{}] * jobs)

    async def done() -> bool:
        return len([1 async for job in app.jobs.all() if job.status is Status.COMPLETED]) == jobs

    async with working(app, concurrency=5):
        await eventually(done)
    assert most == 1
    assert len(woken) < jobs * 2 / 3  # each would be woken on its own


async def test_a_place_that_came_too_late_is_given_back() -> None:
    app = Mainspring("memory://")

    @app.task(limits=Limit(1))
    async def work() -> None: ...

    await work.enqueue_many([{}] * 3)
    await app.store.join(WorkerInfo("worker", "localhost", 1, ("default",)), lambda _: None)
    jobs = [Candidate(claim, None) for claim in (await app.store.claim("worker", [Want("default", 3)])).jobs]
    now, feature = app.store.clock.now(), LimitsFeature(app.runtime.services, app.runtime.declared_limits)
    assert await feature.admit([jobs[0]], now) == {}
    await feature.ended([jobs[0]])  # that was quick
    assert await feature.admit([jobs[1]], now) == {}
    refusal = (await feature.admit([jobs[2]], now))[jobs[2].claim.id]
    coordinator = feature._loop().coordinator
    settle = coordinator.settle

    async def slow(requests: Sequence[LimitRequest]) -> LimitDecision:
        assert refusal.pending is not None
        refusal.pending.cancel()
        return await settle(requests)

    coordinator.settle = slow  # type: ignore[method-assign]
    await feature.ended([jobs[1]])
    assert [state.jobs for state in await app.limits.list()] == [()]
