"""What a dead worker leaves behind in limits is set right by `recover`, on every store."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from mainspring import Fair, Limit, Mainspring, Rate
from mainspring.features.limits.options import COLLECTION
from mainspring.features.limits.storage import UNUSED_RETENTION, Bucket, Slots, State, Turns
from mainspring.features.limits.timer import EMPTY_FOR, LimitTimer, may_be_wrong
from mainspring.ids import new_id
from mainspring.job import UNTIL_WOKEN, NewJob, Status
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.protocol import EVERY_QUEUE, Want, WorkerInfo
from tests.features.conftest import NewApp

pytestmark = pytest.mark.slow


def declare(app: Mainspring, limit: Limit | Rate) -> None:
    @app.task(name="work", limits=[limit])
    async def work(who: str) -> None: ...


async def keep(app: Mainspring, group: str, state: State, key: str = "") -> None:
    now = app.store.clock.now()
    write = Write(
        Key(COLLECTION, group, key),
        json.dumps(state.to_data()),
        due_at=state.due_at(now, None),
        expires_at=state.expires_at(now),
    )
    await app.store.write([Bundle((write,))])


async def suspend(app: Mainspring, waits_for: str, *, number: int = 1) -> list[str]:
    """Jobs as a worker leaves them that dies right after it has suspended them."""
    await app.store.open()
    jobs = [NewJob(new_id(), "work", '{"who": "a"}', waits_for=waits_for, run_at=UNTIL_WOKEN) for _ in range(number)]
    await app.store.insert(jobs)
    return [job.id for job in jobs]


async def statuses(app: Mainspring) -> Counter[Status]:
    return Counter([job.status async for job in app.jobs.all()])


async def test_jobs_suspended_without_a_note_get_the_free_places(new_app: NewApp) -> None:
    app = new_app()
    declare(app, Limit(2))
    await suspend(app, "limit:work", number=3)
    await keep(app, "limit:work", Slots(2))
    await app.runtime.timers.recover()
    assert await statuses(app) == {Status.PENDING: 2, Status.SUSPENDED: 1}


async def test_a_suspended_job_gets_the_next_slot_that_becomes_free(new_app: NewApp) -> None:
    app = new_app()
    declare(app, Limit(1))
    running = await app.tasks["work"].enqueue(who="a")
    await app.store.join(WorkerInfo("w", "h", 1, (EVERY_QUEUE,)), lambda _: None)
    (claim,) = (await app.store.claim("w", [Want(EVERY_QUEUE, 1)])).jobs
    await keep(app, "limit:work", Slots(1, {running.id: claim.token}))
    await suspend(app, "limit:work")
    await app.runtime.timers.recover()
    state = await app.limits.get("work")
    assert state is not None
    assert (state.waiting, state.jobs) == (True, (running.id,))


async def test_the_place_of_a_run_that_is_gone_is_free(new_app: NewApp) -> None:
    app = new_app()
    declare(app, Limit(1))
    await suspend(app, "limit:work")
    await keep(app, "limit:work", Slots(1, {new_id(): 1}, waiting=True))
    await app.runtime.timers.recover()
    assert await statuses(app) == {Status.PENDING: 1}


async def test_a_limit_that_nothing_waits_for_is_left_as_it_was(new_app: NewApp) -> None:
    app = new_app()
    declare(app, Limit(2))
    await app.store.open()
    await keep(app, "limit:work", Slots(2))
    await app.runtime.timers.recover()
    state = await app.limits.get("work")
    assert state is not None
    assert not state.waiting


async def test_jobs_suspended_by_a_rate_get_its_tokens(new_app: NewApp) -> None:
    app = new_app()
    declare(app, Rate(2, per=60))
    await suspend(app, "rate:work", number=3)
    await keep(app, "rate:work", Bucket.full(2 / 60_000, 2, app.store.clock.now()))
    await app.runtime.timers.recover()
    assert (await statuses(app))[Status.PENDING] >= 1


async def test_jobs_of_a_fair_key_that_are_not_out_of_the_line_are_not_counted(new_app: NewApp) -> None:
    """Two were counted as ready or running: one really is, the other ended with the worker that should have said so."""
    app = new_app()

    @app.task(name="work", fair=Fair(lambda p: p.who, 2))
    async def work(who: str) -> None: ...

    await suspend(app, "fair:work=a", number=3)
    await work.enqueue(who="a")
    await keep(app, "fair:work", Turns(2, {}, waiting=True, woken=2, woken_at=app.store.clock.now()), "a")
    await app.runtime.timers.recover()
    assert await statuses(app) == {Status.PENDING: 2, Status.SUSPENDED: 2}


async def test_limits_are_recovered_although_others_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")
    declare(app, Limit(1))
    await suspend(app, "limit:work")
    await keep(app, "limit:work", Slots(1))
    wake_next, rivals = LimitTimer._wake_next, iter([Slots(1), Slots(1)])

    async def beside_a_rival(self: LimitTimer, *args: object) -> object:
        if (state := next(rivals, None)) is not None:
            await keep(app, "limit:work", state)
        return await wake_next(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(LimitTimer, "_wake_next", beside_a_rival)
    await app.runtime.timers.recover()
    assert await statuses(app) == {Status.PENDING: 1}


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [
        (Slots(1), EMPTY_FOR - 1, True),
        (Slots(1), EMPTY_FOR, False),
        (Slots(1, {"job": 1}), EMPTY_FOR, True),
        (Slots(1, {}, waiting=True), EMPTY_FOR, True),
        (Bucket.full(0.001, 1, 0), EMPTY_FOR, True),
    ],
)
def test_only_limits_that_were_empty_for_minutes_are_passed_over(state: State, age: int, expected: bool) -> None:
    group = "rate:work" if isinstance(state, Bucket) else "limit:work"
    document = Document(Key(COLLECTION, group, ""), json.dumps(state.to_data()), "v", None, state.expires_at(0))
    assert document.expires_at in (None, UNUSED_RETENTION) or isinstance(state, Bucket)
    assert may_be_wrong(document, state, age) is expected
