"""Jobs that were not started in time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from mainspring import Debounce, Interval, Mainspring, Snooze, Status
from mainspring.errors import ConfigurationError
from mainspring.job import Save, Step
from mainspring.stores.protocol import Want
from mainspring.testing import Kit
from tests.features.conftest import START


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.ran = 0  # type: ignore[attr-defined]
    app.raises = []  # type: ignore[attr-defined]

    @app.task(expires=60)
    async def code() -> None:
        app.ran += 1  # type: ignore[attr-defined]
        if app.raises:  # type: ignore[attr-defined]
            raise app.raises.pop()  # type: ignore[attr-defined]

    return app


async def outcome(app: Mainspring, job_id: str) -> tuple[Status, str]:
    job = await app.jobs.get(job_id)
    return job.status, job.reason


def skip(kit: Kit, seconds: float) -> None:
    """Time in which no worker is there."""
    kit.clock.advance(seconds)


async def test_a_job_that_starts_in_time_runs(app: Mainspring, kit: Kit) -> None:
    job = await app.tasks["code"].enqueue()
    skip(kit, 60)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is Status.COMPLETED


async def test_an_expired_job_is_cancelled_with_the_reason(app: Mainspring, kit: Kit) -> None:
    job = await app.tasks["code"].enqueue()
    skip(kit, 61)
    await kit.drain()
    assert await outcome(app, job.id) == (Status.CANCELLED, "expired: not started by 2026-03-01 12:01:00 UTC")
    assert app.ran == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("using", "in_time"),
    [
        ({"delay": 3600}, 3660),
        ({"run_at": START + timedelta(hours=1)}, 3660),
        ({"run_at": START - timedelta(hours=1)}, 60),
        ({"expires": 5}, 5),
        ({"expires": timedelta(minutes=5)}, 300),
        ({"expires": START + timedelta(minutes=5)}, 300),
        ({"expires": START + timedelta(minutes=5), "delay": 200}, 300),
        ({"debounce": Debounce("a", wait=100)}, 160),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_expiry_counts_from_the_due_time(
    app: Mainspring, kit: Kit, using: dict[str, Any], in_time: float, late: bool
) -> None:
    job = await app.tasks["code"].using(**using).enqueue()
    skip(kit, in_time + late)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is (Status.CANCELLED if late else Status.COMPLETED)


async def test_expiry_of_a_debounced_job_counts_from_the_last_enqueue(app: Mainspring, kit: Kit) -> None:
    code = app.tasks["code"].using(debounce=Debounce("a", wait=50))
    job = await code.enqueue()
    for _ in range(5):
        skip(kit, 40)
        await code.enqueue()
    skip(kit, 100)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is Status.COMPLETED


async def test_retries_are_not_dropped(app: Mainspring, kit: Kit) -> None:
    app.raises = [OSError(), OSError()]  # type: ignore[attr-defined]
    job = await app.tasks["code"].enqueue()
    await kit.time.advance(days=1)
    assert (await outcome(app, job.id))[0] is Status.COMPLETED
    assert app.ran == 3  # type: ignore[attr-defined]


async def test_a_job_that_only_snoozed_is_dropped(app: Mainspring, kit: Kit) -> None:
    app.raises = [Snooze(3600)]  # type: ignore[attr-defined]
    job = await app.tasks["code"].enqueue()
    await kit.time.advance(days=1)
    assert (await outcome(app, job.id))[0] is Status.CANCELLED


async def test_a_durable_function_that_has_begun_is_not_dropped(app: Mainspring, kit: Kit) -> None:
    job = await app.tasks["code"].enqueue()
    (claim,) = (await app.store.claim("w", [Want("default", 1)])).jobs
    await app.store.save([Save(claim.id, claim.token, (Step("first", 1),))])
    await app.store.leave("w")
    skip(kit, 3600)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is Status.COMPLETED


async def test_a_manual_retry_runs_an_expired_job(app: Mainspring, kit: Kit) -> None:
    job = await app.tasks["code"].enqueue()
    skip(kit, 61)
    await kit.drain()
    await app.jobs.retry(job.id)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is Status.COMPLETED


@pytest.mark.parametrize("expires", [60, timedelta(minutes=5), "a time"])
async def test_a_reschedule_by_hand_runs_an_expired_job(app: Mainspring, kit: Kit, expires: Any) -> None:
    until = app.now() + timedelta(minutes=1) if expires == "a time" else expires
    job = await app.tasks["code"].using(expires=until).enqueue()
    await app.jobs.reschedule(job.id, delay=3600)
    skip(kit, 7200)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is Status.COMPLETED


@pytest.mark.parametrize(("late", "status"), [(60, Status.COMPLETED), (61, Status.CANCELLED)])
async def test_expiry_counts_from_the_end_of_the_jobs_before_it(
    app: Mainspring, kit: Kit, late: float, status: Status
) -> None:
    @app.task()
    async def first() -> None: ...

    before = await first.using(delay=3600).enqueue()
    job = await app.tasks["code"].using(after=[before], on_failed="run").enqueue()
    await kit.time.advance(minutes=50)  # it has looked a few times by then
    await app.jobs.cancel(before.id)
    skip(kit, late)
    await kit.drain()
    assert (await outcome(app, job.id))[0] is status


async def test_each_fire_of_a_schedule_has_its_own_time(app: Mainspring, kit: Kit) -> None:
    await app.schedules.put("codes", Interval("10m"), app.tasks["code"].prepare())
    await kit.time.advance(hours=1)
    assert app.ran == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("expires", [0, -1, timedelta(0), datetime(2026, 1, 1)])  # noqa: DTZ001 - that is the point
def test_invalid_options_are_refused(app: Mainspring, expires: Any) -> None:
    with pytest.raises(ConfigurationError, match="expires is"):
        app.tasks["code"].using(expires=expires)
