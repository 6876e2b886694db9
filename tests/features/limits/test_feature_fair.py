"""Fairness by key: a key with many jobs does not keep others waiting."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, cast

import pytest

from mainspring import Context, Fair, Limit, Mainspring, Rate, Retry
from mainspring.errors import ConfigurationError, Discard, InvalidPayload, StoreError, SystemHalted
from mainspring.features.limits import storage
from mainspring.features.limits.fair_share import FairShare
from mainspring.features.limits.feature import LimitsFeature
from mainspring.features.limits.storage import EXPECTED_FOR, LOST_AFTER, UNWRITTEN_FOR, Turns
from mainspring.job import Status
from mainspring.stores.documents import Bundle
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing import ManualClock, manual
from tests.features.conftest import NewApp
from tests.worker.working import eventually, working

pytestmark = pytest.mark.slow


class Counters:
    """Handlers that stay until one of them is let go."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.ended = 0
        self._gate = asyncio.Semaphore(0)

    async def serve(self, who: str) -> None:
        self.seen.append(who)
        await self._gate.acquire()
        self.ended += 1

    def release(self, number: int = 1) -> None:
        for _ in range(number):
            self._gate.release()

    @property
    def inside(self) -> int:
        return len(self.seen) - self.ended


def serve(app: Mainspring, counters: Counters, size: int | None = None, *limits: Limit) -> Any:
    return app.task(name="serve", fair=Fair(lambda p: p.who, size), limits=limits)(counters.serve)


def has_seen(counters: Counters, number: int) -> bool:
    return len(counters.seen) == number


async def statuses(app: Mainspring) -> Counter[Status]:
    return Counter([job.status async for job in app.jobs.all()])


async def ended(app: Mainspring, number: int) -> bool:
    return (await statuses(app))[Status.COMPLETED] == number


async def test_anothers_single_job_waits_for_two_service_times_at_most(new_app: NewApp) -> None:
    app, counters, slots = new_app(), Counters(), 3
    task = serve(app, counters)
    async with working(app, concurrency=slots):
        await task.enqueue_many([{"who": "a"}] * 40)
        await eventually(lambda: counters.inside == slots)
        await task.enqueue(who="b")
        rounds = 0
        while "b" not in counters.seen:
            rounds += 1
            before = len(counters.seen)
            counters.release(slots)  # as long as one job takes, all slots are done with theirs
            await eventually(partial(has_seen, counters, before + slots))
        assert rounds <= 2
        counters.release(100)
        await eventually(lambda: ended(app, 41))


async def test_a_key_without_competition_uses_all_slots(new_app: NewApp) -> None:
    one, two, counters = new_app(), new_app(), Counters()
    tasks = [serve(app, counters) for app in (one, two)]
    async with working(one, concurrency=4), working(two, concurrency=4):
        await tasks[0].enqueue_many([{"who": "a"}] * 30)
        await eventually(lambda: counters.inside == 8)
        counters.release(100)
        await eventually(lambda: ended(one, 30))
    assert not any(state.jobs for state in await one.limits.list())


async def test_fair_keys_take_turns() -> None:
    app, counters = Mainspring("memory://"), Counters()
    task = serve(app, counters)
    counters.release(100)
    async with working(app, concurrency=1, prefetch=0):
        for who in "abc":
            await task.enqueue_many([{"who": who}] * 12)
        await eventually(lambda: ended(app, 36))
    assert Counter(counters.seen) == {"a": 12, "b": 12, "c": 12}
    first_of_c = counters.seen.index("c")
    assert counters.seen[first_of_c : first_of_c + 24].count("c") >= 6  # about every third


async def test_only_what_is_next_is_in_the_ready_line() -> None:
    app, counters = Mainspring("memory://"), Counters()
    task = serve(app, counters, 5)
    await task.enqueue_many([{"who": "a"}] * 100)
    await task.enqueue_many([{"who": "a"}] * 100)
    await task.enqueue(who="b")
    assert await statuses(app) == {Status.PENDING: 6, Status.SUSPENDED: 195}
    assert {state.key: state.used for state in await app.limits.list()} == {"a": 5, "b": 1}
    (waiting, *_) = [job async for job in app.jobs.all() if job.status is Status.SUSPENDED]
    assert waiting.waits_for == "fair:serve=a"


async def test_jobs_for_later_and_retries_take_their_turn_when_their_time_has_come() -> None:
    app = Mainspring("memory://")
    runs: Counter[str] = Counter()

    @app.task(fair=Fair(lambda p: p.who, 2), max_attempts=3)
    async def work(who: str) -> None:
        runs[who] += 1
        if who == "fails":
            raise ValueError
        if who == "gives up":
            raise Discard

    async with manual(app) as kit:
        for _ in range(5):
            await work.using(delay=60).enqueue(who="later")
            await work.enqueue(who="fails")
            await work.enqueue(who="gives up")
        await kit.time.advance(hours=12)
        assert runs == {"later": 5, "fails": 15, "gives up": 5}
        assert await app.limits.list("work") == []  # forgotten, since long unused


async def test_a_fair_task_may_have_limits_too() -> None:
    app, counters = Mainspring("memory://"), Counters()
    task = serve(app, counters, None, Limit(2))
    async with working(app, concurrency=10):
        await task.enqueue_many([{"who": who} for who in "aaaaabbbbb"])
        await eventually(lambda: counters.inside == 2)
        counters.release(100)
        await eventually(lambda: ended(app, 10))


async def test_jobs_of_a_fair_task_with_a_rate_give_their_turns_back() -> None:
    """They are claimed together, and tokens are drawn for all of them at once."""
    app = Mainspring("memory://")
    counters = Counters()
    work = app.task(name="serve", fair=Fair(lambda p: p.who, 5), limits=[Rate(1000, per=1)])(counters.serve)
    await work.enqueue_many([{"who": "a"}] * 20)
    async with working(app, concurrency=10):
        for number in (5, 10, 15, 20):
            await eventually(partial(has_seen, counters, number))
            counters.release(5)


class Killed(StoreError):
    """The process has died."""


class Mortal:
    """A store as a process sees it that is killed after so many calls: the last one still took effect."""

    def __init__(self, store: Store, calls: int) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, found) if inspect.iscoroutinefunction(found) else found

    async def _call(self, method: Any, *args: Any, **options: Any) -> Any:
        if not self._calls:
            raise Killed
        self._calls -= 1
        return await method(*args, **options)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("before", ["quiet", "line"])
async def test_an_enqueue_that_is_killed_anywhere_holds_its_key_up_for_three_seconds_at_most(
    before: str, size: int
) -> None:
    for calls in range(50):
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        enqueuer, other = Mainspring(cast("Store", Mortal(store, calls))), Mainspring(store)
        counters = Counters()
        counters.release(100)
        task = serve(other, counters, size)
        if before == "line":  # jobs of the key have lined up before, a moment ago
            await task.enqueue_many([{"who": "a"}] * 5)
            await other.worker().drain()
        killed = await is_killed(serve(enqueuer, counters, size).enqueue_many([{"who": "a"}] * 5))
        await task.enqueue_many([{"who": "a"}] * 2)
        for _ in range(6):
            clock.advance(0.5)
            await other.worker().drain()
        assert set(await statuses(other)) == {Status.COMPLETED}, f"killed after {calls} calls"
        if not killed:
            return
    pytest.fail("it was killed each time")


async def is_killed(enqueue: Coroutine[Any, Any, Any]) -> bool:
    try:
        await enqueue
    except Killed:
        return True
    return False


async def test_concurrent_enqueues_for_one_key_share_its_room(new_app: NewApp) -> None:
    app = new_app()
    ran: list[str] = []

    @app.task(fair=Fair(lambda p: p.who, 2))
    async def work(who: str) -> None:
        ran.append(who)

    await asyncio.gather(*(work.enqueue(who="a") for _ in range(8)))
    assert await statuses(app) == {Status.PENDING: 2, Status.SUSPENDED: 6}
    await app.worker().drain()
    assert len(ran) == 8


async def test_a_job_that_was_not_inserted_takes_no_room() -> None:
    app, counters = Mainspring("memory://"), Counters()
    task = serve(app, counters, 2)
    for _ in range(5):
        await task.using(dedupe_key="once").enqueue(who="a")
    await app.halt(reject_new=True)
    with pytest.raises(SystemHalted):
        await task.enqueue(who="a")
    await app.resume()
    await task.enqueue(who="a")
    assert await statuses(app) == {Status.PENDING: 2}


async def test_wake_ups_are_lost_only_if_nothing_of_the_key_is_ready() -> None:
    app = Mainspring("memory://")
    ran: list[str] = []

    @app.task(fair=Fair(lambda p: p.who, 1))
    async def work(who: str) -> None:
        ran.append(who)

    async with manual(app) as kit:
        first, *_ = await work.enqueue_many([{"who": "a"}] * 3)
        await work.enqueue(who="b")
        kit.clock.advance(LOST_AFTER / 1000 + 1)
        await app.runtime.timers.run_due()
        assert await statuses(app) == {Status.PENDING: 2, Status.SUSPENDED: 2}  # no worker runs: they may come yet
        await app.jobs.cancel(first.id)  # the wake-up is lost with it
        kit.clock.advance(21)
        await app.runtime.timers.run_due()
        assert await statuses(app) == {Status.CANCELLED: 1, Status.PENDING: 2, Status.SUSPENDED: 1}
        await kit.drain()
        assert Counter(ran) == {"a": 2, "b": 1}


async def test_a_process_that_dies_before_it_wakes_the_next_does_not_stop_the_line_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Mainspring("memory://")
    ran: list[str] = []

    @app.task(fair=Fair(lambda p: p.who, 1))
    async def work(who: str) -> None:
        ran.append(who)

    async def dead(*_: object) -> None: ...

    async with manual(app) as kit:
        await work.enqueue_many([{"who": "a"}] * 3)
        with monkeypatch.context() as patch:
            patch.setattr(LimitsFeature, "ended", dead)
            await kit.drain()
        assert ran == ["a"]
        await work.enqueue(who="b")
        kit.clock.advance(LOST_AFTER / 1000 + 21)
        await app.runtime.timers.run_due()  # while others' jobs are ready
        assert await statuses(app) == {Status.COMPLETED: 1, Status.PENDING: 2, Status.SUSPENDED: 1}
        await kit.drain()
        assert Counter(ran) == {"a": 3, "b": 1}


async def test_a_turn_is_passed_on_without_a_write(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECK_AFTER", 3_600_000)  # the timer writes too, if this takes more than a second
    app, written = new_app(), Counter[str]()

    @app.task(fair=Fair(lambda p: p.who, 1))
    async def work(who: str) -> None: ...

    await work.enqueue_many([{"who": who} for who in "aaaab"])
    write = app.store.write

    async def counting(bundles: Sequence[Bundle]) -> Any:
        written.update(write.key.id for bundle in bundles for write in bundle.writes)
        return await write(bundles)

    app.store.write = counting  # type: ignore[method-assign]
    assert await app.worker().drain() == 5
    assert written == {"a": 1, "b": 1}  # when no further job came
    assert [state.key for state in await app.limits.list()] == ["a"]  # of b nothing is left to know


async def test_a_count_that_was_not_confirmed_for_long_is_written_again() -> None:
    turns = Turns(1, waiting=True, woken=1, woken_at=0)
    before = turns.to_data()
    turns.depart("job", 1, had_turn=True)
    assert turns.wake(1, UNWRITTEN_FOR - 1) == 1
    assert not turns.differs(before)
    turns.depart("job", 1, had_turn=True)
    assert turns.wake(1, UNWRITTEN_FOR) == 1
    assert turns.differs(before)


async def test_an_outdated_count_loses_no_turn(new_app: NewApp) -> None:
    """Two that end at once look like one that passes on its turn, to a process that knows of one only."""
    one, two = new_app(), new_app()

    async def work(who: str) -> None: ...

    narrow, _ = (app.task(name="work", fair=Fair(lambda p: p.who, size))(work) for app, size in ((one, 1), (two, 3)))
    await narrow.enqueue_many([{"who": "a"}] * 8)
    async with two.worker(concurrency=1).draining() as run_due:
        await run_due()
    async with one.worker(concurrency=2).draining() as run_due:
        await run_due()
    (state,) = await one.limits.list("work")
    assert (await statuses(one))[Status.PENDING] == state.used
    assert await two.worker().drain() + 3 == 8


async def test_a_retry_asks_for_its_turn(new_app: NewApp) -> None:
    app, counters = new_app(), Counters()

    @app.task(name="serve", fair=Fair(lambda p: p.who, 1), retry=Retry(max_attempts=2, base=0.01, jitter_share=0))
    async def fails_once(who: str, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError
        await counters.serve(who)

    async with working(app, concurrency=5):
        await fails_once.enqueue_many([{"who": "a"}] * 4)
        for number in range(1, 5):
            await eventually(partial(has_seen, counters, number))
            assert counters.inside == 1
            counters.release()
        await eventually(lambda: ended(app, 4))


async def test_a_wake_up_without_a_waiting_job_is_taken_back() -> None:
    turns = Turns(3)
    turns.note(0)
    assert (turns.wake(5, 0), turns.room) == (3, 0)
    turns.nobody_came(2, 1)
    assert (turns.room, turns.waiting) == (2, True)  # they may be on their way
    turns.nobody_came(0, EXPECTED_FOR + 2)
    assert not turns.waiting
    turns.give_up_woken(LOST_AFTER)
    assert turns.woken == 1
    turns.give_up_woken(LOST_AFTER + 1)
    assert turns.woken == 0


def test_the_busy_share_the_slots() -> None:
    crew, fair = FairShare(), Fair(str)
    assert crew.size("t", fair, "a", 0) == 1  # no worker runs yet
    assert FairShare().size("t", Fair(str, 7), "a", 0) == 7


async def test_bad_declarations_and_keys_are_refused() -> None:
    app = Mainspring("memory://")
    with pytest.raises(ConfigurationError, match="whole number"):
        Fair(str, 0)
    with pytest.raises(ConfigurationError, match="function of the payload"):
        Fair("tenant")  # type: ignore[arg-type]
    task = serve(app, Counters())
    with pytest.raises(InvalidPayload, match="key function"):
        await task.enqueue(who="")
