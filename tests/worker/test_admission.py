"""What claimed jobs must pass before they start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from mainspring import Mainspring
from mainspring.clock import Millis
from mainspring.errors import StoreUnavailable
from mainspring.feature import Candidate, Feature, Refusal, refuse
from mainspring.ids import new_id
from mainspring.job import UNTIL_WOKEN, Claim, Move, NewJob, Status
from mainspring.stores.protocol import Want, WorkerInfo
from tests.worker.working import ended, eventually, working


class Doorman(Feature):
    """Lets in whom he is told to, and remembers who left."""

    def __init__(self, option: str = "door", *, refuses: Mapping[str, Refusal] | None = None) -> None:
        self.option = option
        self.asked: list[tuple[str, object]] = []
        self.left: list[str] = []
        self.how: list[object] = []
        self.refuses: dict[str, Refusal] = dict(refuses or {})
        self.broken = False

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        if self.broken:
            raise StoreUnavailable
        self.asked += [(job.claim.id, job.option) for job in jobs]
        return {job.claim.id: self.say(job) for job in jobs if job.option != "in"}

    def say(self, job: Candidate) -> Refusal:
        if job.option == "later":
            return refuse(job.claim, Move.SNOOZE, delay=60_000, reason="not now")
        return refuse(job.claim, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="door", recheck=self.is_open)

    async def is_open(self) -> bool:
        return self.option == "open"

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        self.left += [job.claim.id for job in jobs]
        self.how += [
            (job.run_result.outcome.move, type(job.run_result.error)) if job.run_result else None for job in jobs
        ]


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://")
    app.ran = []  # type: ignore[attr-defined]

    @app.task()
    async def work(number: int) -> None:
        app.ran.append(number)  # type: ignore[attr-defined]

    return app


async def put(app: Mainspring, number: int, options: str | None) -> str:
    job = NewJob(new_id(), "work", f'{{"number": {number}}}', options=options)
    await app.runtime.pipeline.insert([job])
    return job.id


async def status_of(app: Mainspring, job_id: str) -> tuple[Status, int]:
    job = await app.jobs.get(job_id)
    return job.status, job.attempts


class Hesitant(Doorman):
    """May yet let in whom he refuses."""

    def __init__(self, option: str = "door") -> None:
        super().__init__(option)
        self.pending: dict[str, asyncio.Future[bool]] = {}

    def say(self, job: Candidate) -> Refusal:
        self.pending[job.claim.id] = pending = asyncio.get_running_loop().create_future()
        return refuse(job.claim, Move.SUSPEND, delay=UNTIL_WOKEN, waits_for="door", pending=pending)


async def test_admitted_jobs_run_and_refused_ones_use_no_attempt(app: Mainspring) -> None:
    door = Doorman()
    app.runtime.features.add(door)
    inside, later = await put(app, 1, '{"door": "in"}'), await put(app, 2, '{"door": "later"}')
    free, other = await put(app, 3, None), await put(app, 4, '{"retry": null}')
    await app.worker().drain()
    assert sorted(app.ran) == [1, 3, 4]  # type: ignore[attr-defined]
    assert sorted(door.asked) == sorted([(inside, "in"), (later, "later")])
    assert door.left == [inside]
    assert await status_of(app, later) == (Status.PENDING, 0)
    assert {await status_of(app, handle) for handle in (inside, free, other)} == {(Status.COMPLETED, 1)}


@pytest.mark.parametrize(
    ("number", "how"), [(0, (Move.DONE, type(None))), (-1, (Move.RETRY, OSError)), (-2, (Move.RETRY, TimeoutError))]
)
async def test_features_get_the_outcome_of_a_run(number: int, how: object) -> None:
    app, door = Mainspring("memory://"), Doorman()
    app.runtime.features.add(door)

    @app.task()
    async def work(number: int) -> None:
        if number == -1:
            raise OSError
        await asyncio.sleep(-3 * number - 1)

    await app.runtime.pipeline.insert(
        [NewJob(new_id(), "work", f'{{"number": {number}}}', timeout=5, options='{"door": "in"}')]
    )
    await app.worker().drain()
    assert door.how == [how]


async def test_a_suspended_job_is_woken_if_its_condition_was_met_meanwhile(app: Mainspring) -> None:
    closed, opened = Doorman(), Doorman("open")
    app.runtime.features.add(closed)
    app.runtime.features.add(opened)
    waits, passes = await put(app, 1, '{"door": "wait"}'), await put(app, 2, '{"open": "wait"}')

    async def once(jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        opened.admit = admit_all  # type: ignore[method-assign]
        return {job.claim.id: opened.say(job) for job in jobs}

    async def admit_all(jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del jobs, now
        return {}

    opened.admit = once  # type: ignore[method-assign]
    await app.worker().drain()
    assert await status_of(app, passes) == (Status.COMPLETED, 1)
    assert (await status_of(app, waits))[0] is not Status.COMPLETED


async def test_a_job_refused_by_the_second_feature_has_ended_for_the_first(app: Mainspring) -> None:
    first, second = Doorman("first"), Doorman("second")
    app.runtime.features.add(first)
    app.runtime.features.add(second)
    job_id = await put(app, 1, '{"second": "later", "first": "in"}')
    await app.worker().drain()
    assert (first.left, second.left) == ([job_id], [])


async def test_a_job_is_handed_back_if_a_feature_raises(app: Mainspring) -> None:
    door = Doorman()
    door.broken = True
    app.runtime.features.add(door)
    job_id = await put(app, 1, '{"door": "in"}')
    await app.worker().drain()
    job = await app.jobs.get(job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert app.ran == []  # type: ignore[attr-defined]


async def test_a_feature_may_choose_jobs_itself_and_let_some_pass_at_once(app: Mainspring) -> None:
    rang: list[bool] = []

    class Choosing(Doorman):
        def concerns(self, claim: Claim) -> bool:
            return claim.payload != '{"number": 1}'

        def pass_at_once(self, claims: list[Claim]) -> list[Claim]:
            return [claim for claim in claims if claim.payload != '{"number": 2}']

        async def settled(self) -> None:
            rang.append(True)

    door = Choosing()
    app.runtime.features.add(door)
    for number in (1, 2, 3):
        await put(app, number, None)
    third = await put(app, 4, '{"door": "in"}')
    await app.worker().drain()
    await app.runtime.features.settled()
    assert [option for _, option in door.asked] == [None, "in"]
    assert (door.left, rang[-1:]) == ([third], [True])
    assert sorted(app.ran) == [1, 2, 4]  # type: ignore[attr-defined]


# -- jobs that were refused, and may yet pass ------------------------------------------------------------


async def test_a_job_that_concerns_several_features_does_not_stand_by(app: Mainspring) -> None:
    """While they decide, it could pass after all, and nothing would start it."""

    class Curious(Doorman):
        async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
            assert [run.cancelled() for run in first.pending.values()] == [True]
            return await super().admit(jobs, now)

    first, second = Hesitant(), Curious("gate")
    app.runtime.features.add(first)
    app.runtime.features.add(second)
    refused = await put(app, 1, '{"door": "no", "gate": "in"}')
    await put(app, 2, '{"gate": "in"}')
    await app.worker().drain()
    assert app.ran == [2]  # type: ignore[attr-defined]
    assert (await status_of(app, refused))[0] is Status.SUSPENDED


async def test_no_job_goes_on_standing_by_if_another_feature_raises(app: Mainspring) -> None:
    first, second = Hesitant(), Doorman("gate")
    second.broken = True
    app.runtime.features.add(first)
    app.runtime.features.add(second)
    await put(app, 1, '{"door": "no"}')
    await put(app, 2, '{"gate": "in"}')
    with pytest.raises(StoreUnavailable):
        await app.runtime.features.admit((await claimed(app)), 0)
    assert [run.cancelled() for run in first.pending.values()] == [True]


async def claimed(app: Mainspring) -> list[Claim]:
    await app.store.join(WorkerInfo("worker", "localhost", 1, ("default",)), lambda _: None)
    return (await app.store.claim("worker", [Want("default", 10)])).jobs


async def test_a_job_that_was_granted_meanwhile_runs_and_ends(app: Mainspring) -> None:
    class Quick(Hesitant):
        def say(self, job: Candidate) -> Refusal:
            refusal = super().say(job)
            self.pending[job.claim.id].set_result(True)
            return refusal

    door = Quick()
    app.runtime.features.add(door)
    job = await put(app, 1, '{"door": "no"}')
    await app.worker().drain()  # a drain waits for no other worker
    assert app.ran == [1]  # type: ignore[attr-defined]
    assert door.left == [job]


async def test_a_job_cancelled_during_admission_gives_its_place_back(app: Mainspring) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow(Hesitant):
        async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
            asked.set()
            await answer.wait()
            return await super().admit(jobs, now)

    door = Slow()
    app.runtime.features.add(door)
    job = await put(app, 1, '{"door": "no"}')
    async with working(app):
        await asked.wait()
        await app.jobs.cancel(job)
        await ended(app, job)
        answer.set()
        await eventually(lambda: [run.cancelled() for run in door.pending.values()] == [True])
