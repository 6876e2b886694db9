"""How much is claimed, when and from which queues, and how crash suspects get their turns."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Context, Mainspring
from mainspring.events import JobDeadLettered, JobReleased, JobRetrying
from mainspring.ids import new_id
from mainspring.job import Move, NewJob, Outcome, Status
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Want
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.worker import Subscription, Worker, intake, outage
from mainspring.worker.intake import PREFETCH_SECONDS, Prefetch, SoloTurns, wants
from tests.in_memory import execute
from tests.worker.working import DEADLINE, QUICK, ended, eventually, member, new_app, reached, record, working

NAMES = "abcdef"


@st.composite
def subscribed(draw: st.DrawFn) -> list[Subscription]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    limits = st.none() | st.integers(1, 20)
    return [Subscription(name, draw(st.integers(1, 50)), draw(limits)) for name in names]


in_hands = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 25))


def asked(found: list[Want]) -> Counter[str]:
    total: Counter[str] = Counter()
    for want in found:
        total[want.queue] += want.limit
    return total


@pytest.mark.slow
@given(subscribed(), st.booleans(), st.integers(1, 100), in_hands, st.randoms(use_true_random=False))
def test_a_queue_is_asked_for_no_more_than_its_limit_leaves(
    subscriptions: list[Subscription], strict: bool, room: int, in_hand: dict[str, int], rng: random.Random
) -> None:
    total = asked(wants(subscriptions, strict=strict, room=room, in_hand=in_hand, rng=rng))
    for subscription in subscriptions:
        if subscription.concurrency is not None:
            assert total[subscription.queue] <= max(0, subscription.concurrency - in_hand.get(subscription.queue, 0))


@pytest.mark.slow
@given(subscribed(), st.booleans(), st.integers(1, 100), in_hands, st.randoms(use_true_random=False))
def test_one_queue_can_fill_all_the_room(
    subscriptions: list[Subscription], strict: bool, room: int, in_hand: dict[str, int], rng: random.Random
) -> None:
    """If the others are empty nothing is held back for them."""
    found = wants(subscriptions, strict=strict, room=room, in_hand=in_hand, rng=rng)
    assert all(want.limit > 0 for want in found)
    total = asked(found)
    for subscription in subscriptions:
        left = (
            room if subscription.concurrency is None else subscription.concurrency - in_hand.get(subscription.queue, 0)
        )
        assert total[subscription.queue] >= min(room, max(0, left))


@given(subscribed(), st.integers(1, 100), st.randoms(use_true_random=False))
def test_strict_queues_are_asked_in_the_order_given(
    subscriptions: list[Subscription], room: int, rng: random.Random
) -> None:
    found = wants(subscriptions, strict=True, room=room, in_hand={}, rng=rng)
    assert [want.queue for want in found] == [subscription.queue for subscription in subscriptions]


@pytest.mark.slow
@given(subscribed(), st.integers(10, 200), st.randoms(use_true_random=False))
def test_each_queue_gets_its_share_before_the_rest_is_given_out(
    subscriptions: list[Subscription], room: int, rng: random.Random
) -> None:
    found = wants(subscriptions, strict=False, room=room, in_hand={}, rng=rng)
    assert {want.queue for want in found[: len(subscriptions)]} == {
        subscription.queue for subscription in subscriptions
    }


def test_shares_follow_the_weights() -> None:
    mail, default = Subscription("mail", 3), Subscription("default", 1)
    found = wants([mail, default], strict=False, room=100, in_hand={}, rng=random.Random(7))
    assert sorted(found[:2], key=lambda want: want.queue) == [Want("default", 25), Want("mail", 75)]


def test_with_room_for_one_the_weights_decide_how_often_each_is_first() -> None:
    rng, first = random.Random(1), Counter[str]()
    pair = [Subscription("heavy", 9), Subscription("light", 1)]
    for _ in range(4000):
        first[wants(pair, strict=False, room=1, in_hand={}, rng=rng)[0].queue] += 1
    assert 0.87 < first["heavy"] / 4000 < 0.93


def test_a_limit_of_every_queue_counts_jobs_of_all_queues() -> None:
    star = [Subscription(EVERY_QUEUE, concurrency=3)]
    assert wants(star, strict=False, room=10, in_hand={"a": 1, "b": 1}, rng=random.Random()) == [Want("*", 1)]
    assert wants(star, strict=False, room=10, in_hand={"a": 2, "b": 1}, rng=random.Random()) == []


# -- prefetch -------------------------------------------------------------------------------------


def measured(prefetch: Prefetch, rate: float, seconds: float, start: float = 0.0) -> float:
    now = start
    while now < start + seconds:
        now += 0.01
        prefetch.finished(round(rate * 0.01), now)
    return now


def test_nothing_is_claimed_ahead_before_the_rate_is_known() -> None:
    assert Prefetch(1000).ahead == 0


def test_quick_jobs_are_claimed_ahead_for_a_moment() -> None:
    prefetch = Prefetch(1000)
    measured(prefetch, 10_000, 2)
    assert prefetch.ahead == pytest.approx(10_000 * PREFETCH_SECONDS, rel=0.1)


def test_the_first_measurement_counts_fully() -> None:
    prefetch = Prefetch(2000)
    measured(prefetch, 10_000, 0.06)
    assert prefetch.ahead == pytest.approx(10_000 * PREFETCH_SECONDS, rel=0.25)


def test_fewer_jobs_are_claimed_ahead_when_jobs_become_slow() -> None:
    prefetch = Prefetch(1000)
    now = measured(prefetch, 10_000, 2)
    for second in range(1, 20):
        prefetch.finished(1, now + second)
    assert prefetch.ahead == 0


def test_slow_jobs_are_never_claimed_ahead() -> None:
    prefetch = Prefetch(1000)
    for second in range(30):
        prefetch.finished(4, float(second))
    assert prefetch.ahead == 0


def test_an_overestimate_is_forgotten_at_once() -> None:
    prefetch = Prefetch(1000)
    measured(prefetch, 10_000, 2)
    prefetch.overestimated()
    assert prefetch.ahead == 0


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 10)), max_size=50))
def test_prefetch_stays_within_its_bounds(most: int, steps: list[tuple[int, float]]) -> None:
    prefetch, now = Prefetch(most), 0.0
    for number, seconds in steps:
        now += seconds
        prefetch.finished(number, now)
        assert 0 <= prefetch.ahead <= most


# -- turns of suspects and others -----------------------------------------------------------------


NOW = 100.0


def busy(now: float = NOW) -> SoloTurns:
    """Of a worker with other jobs, which has just noticed suspects."""
    turns = SoloTurns()
    turns.others_came(now)
    turns.noticed(True, now)
    return turns


def test_no_solo_turn_is_due_without_suspects() -> None:
    turns = busy()
    turns.noticed(False, NOW)
    assert turns.due_in(NOW + 60, idle=True) is None


def test_an_idle_worker_runs_suspects_at_once() -> None:
    turns = SoloTurns()
    turns.noticed(True, NOW)
    assert turns.due_in(NOW, idle=True) == 0
    turns.ended(NOW, NOW + 5, alone=True)
    assert turns.due_in(NOW + 5, idle=True) == 0


def test_a_busy_worker_first_leaves_suspects_to_idle_ones() -> None:
    turns = busy()
    assert turns.due_in(NOW, idle=False) == SoloTurns.HOLD_BACK
    assert turns.due_in(NOW + SoloTurns.HOLD_BACK, idle=False) == 0


def test_after_a_solo_turn_other_jobs_run_four_times_as_long() -> None:
    turns, now = busy(), NOW + SoloTurns.HOLD_BACK
    turns.ended(now, now + 0.1, alone=True)
    turns.others_came(now + 0.1)
    assert turns.due_in(now + 0.1, idle=False) == pytest.approx(0.4)
    assert turns.due_in(now + 0.1, idle=True) == pytest.approx(0.4)  # between two jobs it is idle for a moment
    turns.noticed(True, now + 0.3)  # they still wait: nothing begins anew
    assert turns.due_in(now + 0.3, idle=False) == pytest.approx(0.2)


def test_suspects_that_have_waited_for_long_get_half_of_the_time() -> None:
    turns, now = busy(), NOW + SoloTurns.OLD_AFTER + 1
    turns.ended(now, now + 2, alone=True)
    assert turns.due_in(now + 2, idle=False) == pytest.approx(2)


def test_solo_turns_wait_longer_while_the_worker_is_never_idle() -> None:
    turns, patience = busy(), []
    for _ in range(12):
        patience.append(turns.patience)
        turns.ended(NOW, NOW + turns.patience, alone=False)
    assert patience[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert patience[-1] == SoloTurns.LONGEST_PATIENCE
    turns.noticed(False, NOW)
    assert turns.patience == SoloTurns.FIRST_PATIENCE


def test_a_turn_that_found_the_worker_busy_is_followed_by_a_pause() -> None:
    turns = busy()
    turns.ended(NOW + 10, NOW + 11, alone=False)
    assert turns.due_in(NOW + 11, idle=False) == pytest.approx(4)
    assert turns.due_in(NOW + 11, idle=True) == 0  # now the long job has ended


# -- queues and room ------------------------------------------------------------------------------


NEVER = 3600.0  # seconds


class Gauge:
    """How many run at once, and the most there ever were."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def measure(self, name: str, seconds: float = 0.002) -> None:
        for key in (name, "all"):
            self.now[key] += 1
            self.most[key] = max(self.most[key], self.now[key])
        await asyncio.sleep(seconds)
        for key in (name, "all"):
            self.now[key] -= 1


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.mark.slow
async def test_the_concurrency_of_the_worker_is_not_exceeded(app: Mainspring) -> None:
    gauge = Gauge()

    @app.task()
    async def work() -> None:
        await gauge.measure("default")

    async with working(app, concurrency=7):
        await ended(app, *[job.id for job in await work.enqueue_many([{}] * 100)])
    assert gauge.most["all"] == 7


@pytest.mark.slow
async def test_the_concurrency_of_a_queue_is_used_fully_and_not_exceeded(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = Gauge()

    @app.task()
    async def work(queue: str) -> None:
        await gauge.measure(queue)

    monkeypatch.setattr(outage, "LONGEST_SLEEP", NEVER)  # it looks again when one has ended, not after a while
    async with working(app, queues=["slim", "wide", "free"], queue_concurrency={"slim": 1, "wide": 4}, concurrency=20):
        jobs = [
            await work.using(queue=queue).enqueue(queue=queue) for _ in range(60) for queue in ("slim", "wide", "free")
        ]
        await ended(app, *[job.id for job in jobs])
    assert (gauge.most["slim"], gauge.most["wide"]) == (1, 4)


@pytest.mark.slow
async def test_a_limit_of_every_queue_holds_across_them(app: Mainspring) -> None:
    gauge = Gauge()

    @app.task()
    async def work(queue: str) -> None:
        await gauge.measure(queue)

    async with working(app, queues=[Subscription("*", concurrency=3)]):
        jobs = [await work.using(queue=queue).enqueue(queue=queue) for _ in range(15) for queue in "abc"]
        await ended(app, *[job.id for job in jobs])
    assert gauge.most["all"] == 3


@pytest.mark.slow
async def test_a_worker_claims_only_from_its_queues(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    async with working(app, queues=["mine"]):
        other = await work.using(queue="other").enqueue()
        await (await work.using(queue="mine").enqueue()).result(10)
        assert (await other.get()).status is Status.PENDING


async def order_of(app: Mainspring, number: int, **settings: Any) -> list[str]:
    """The queues, in the order in which their jobs ran, one at a time."""
    ran: list[str] = []

    @app.task()
    async def work(queue: str) -> None:
        ran.append(queue)

    jobs = [NewJob(new_id(), "work", f'{{"queue": "{queue}"}}', queue) for _ in range(number) for queue in "ab"]
    await app.store.insert(jobs)
    async with working(app, concurrency=1, prefetch=0, **settings) as worker:
        worker.parts.intake._random = random.Random(5)
        await eventually(lambda: len(ran) == 2 * number)
    return ran


@pytest.mark.slow
async def test_strict_order_empties_the_first_queue_first(app: Mainspring) -> None:
    assert await order_of(app, 30, queues=["b", "a"], strict=True) == ["b"] * 30 + ["a"] * 30


@pytest.mark.slow
async def test_queues_share_the_worker_by_weight(app: Mainspring) -> None:
    ran = await order_of(app, 200, queues={"a": 4, "b": 1})
    first = Counter(ran[:200])
    assert 0.7 < first["a"] / 200 < 0.9
    assert first["b"] > 0


@pytest.mark.slow
async def test_a_job_starts_at_once_or_at_its_time(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon that is on a machine that has nothing else to do, the benchmarks tell."""
    monkeypatch.setattr(outage, "LONGEST_SLEEP", NEVER)

    @app.task()
    async def work() -> float:
        return time.time()

    async with working(app):
        await (await work.enqueue()).result(DEADLINE)
        due = time.time() + 0.2
        assert await (await work.using(delay=0.2).enqueue()).result(DEADLINE) >= due - 0.002


@pytest.mark.slow
async def test_idle_workers_rarely_claim() -> None:
    class Counting(MemoryStore):
        claims = 0

        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            self.claims += 1
            return await super().claim(*args, **kwargs)

    store = Counting()
    app = Mainspring(store)
    async with working(app):
        await eventually(lambda: store.claims > 0)
        before = store.claims
        await asyncio.sleep(0.3)  # the time in which nothing happens is what is measured
        assert store.claims - before <= 2


# -- prefetch -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_quick_jobs_are_claimed_ahead_and_slow_ones_are_not(app: Mainspring) -> None:
    gate, held = asyncio.Event(), []

    @app.task()
    async def quick() -> None: ...

    @app.task(queue="slow")
    async def slow() -> None:
        await gate.wait()

    async with working(app, concurrency=2) as worker:
        slow_jobs = await slow.enqueue_many([{}] * 10)
        await eventually(lambda: len(worker.parts.runs.running) == 2)
        held.append(len(worker.parts.runs.held))
        gate.set()
        await ended(app, *[job.id for job in slow_jobs])
        while not worker.parts.intake.prefetch.ahead:
            await ended(app, *[job.id for job in await quick.enqueue_many([{}] * 500)])
    assert held == [2]


@pytest.mark.slow
async def test_jobs_claimed_ahead_that_cannot_start_are_handed_back(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_BUFFER_WAIT", 0.05)
    events, gate = record(app, JobReleased), asyncio.Event()

    @app.task()
    async def work() -> None:
        await gate.wait()

    async with working(app, concurrency=1) as worker:
        worker.parts.intake.prefetch.ahead = 5
        jobs = await work.enqueue_many([{}] * 4)
        await eventually(lambda: len(events) == 3)
        assert worker.parts.intake.prefetch.ahead == 0
        assert len(worker.parts.runs.held) == 1
        waiting = await reached(app, *[job.id for job in jobs[1:]], statuses=(Status.PENDING,))
        assert [job.attempts for job in waiting] == [0, 0, 0]
        gate.set()
        await ended(app, *[job.id for job in jobs])


@pytest.mark.slow
async def test_all_slots_are_used_again_however_jobs_end(app: Mainspring) -> None:
    """Whatever way runs end: no slot leaks."""

    @app.task(max_attempts=1, timeout=0.02)
    async def mixed(kind: int) -> None:
        if kind == 0:
            raise ValueError
        if kind == 1:
            await asyncio.sleep(3600)
        if kind == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    @app.task(ack="sync", max_attempts=1)
    def synced(kind: int) -> None:
        if kind == 0:
            raise ValueError

    async with working(app, concurrency=4) as worker:
        jobs = await mixed.enqueue_many([{"kind": n % 4} for n in range(60)])
        jobs += await synced.enqueue_many([{"kind": n % 2} for n in range(20)])
        await app.store.insert([NewJob(new_id(), "unknown", "{}") for _ in range(10)])
        await ended(app, *[job.id for job in jobs])
        await eventually(lambda: len(worker.parts.runs.running) == 0 and not worker.parts.runs.held)
        together = asyncio.Barrier(4)

        @app.task()
        async def meet() -> None:
            await together.wait()

        await ended(app, *[job.id for job in await meet.enqueue_many([{}] * 4)])


class SlowToWrite(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        await self.go.wait()
        return await super().ack(outcomes)


@pytest.mark.slow
async def test_the_worker_claims_no_more_while_many_outcomes_are_unwritten() -> None:
    store = SlowToWrite()
    app, ran = Mainspring(store), 0

    @app.task()
    async def quick() -> None:
        nonlocal ran
        ran += 1

    async with working(app, concurrency=5, prefetch=10) as worker:
        await quick.enqueue_many([{}] * 500)
        runs = worker.parts.runs
        await eventually(lambda: runs.acker.unwritten > 15 and not runs.held and not runs.room.is_set())
        assert ran <= 3 * (5 + 10)  # being written, waiting for that, and claimed just before it was too much
        store.go.set()
        await eventually(lambda: ran == 500)


# -- suspects -------------------------------------------------------------------------------------


async def make_suspect(app: Mainspring, job_id: str, crashes: int = 1) -> None:
    """As if workers had died with it."""
    for number in range(crashes):
        claims = await app.store.claim("dead", [Want("*", 100)], solo=number > 0)
        for claim in claims.jobs:
            move = Move.CRASH if claim.id == job_id else Move.RELEASE
            await app.store.ack([Outcome(claim.id, claim.token, move)])


@pytest.mark.slow
async def test_suspects_run_alone_and_all_get_a_turn(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake.SoloTurns, "HOLD_BACK", 0.02)
    monkeypatch.setattr(intake.SoloTurns, "TURN_LENGTH", 0.0)  # one suspect per turn
    now: set[str] = set()
    beside: list[set[str]] = []
    ran: list[str] = []

    @app.task()
    async def work(name: str) -> None:
        now.add(name)
        if any(running.startswith("suspect") for running in now):
            beside.append(set(now))
        await asyncio.sleep(0.02)
        if any(running.startswith("suspect") for running in now):
            beside.append(set(now))
        now.remove(name)
        ran.append(name)

    suspects = [await work.enqueue(name=f"suspect {n}") for n in range(3)]
    for job in suspects:
        await make_suspect(app, job.id)
    others = await work.enqueue_many([{"name": f"other {n}"} for n in range(60)])
    async with working(app, concurrency=4):
        await ended(app, *[job.id for job in [*suspects, *others]])
    assert all(len(together) == 1 for together in beside)
    first = min(ran.index(f"suspect {n}") for n in range(3))
    last = max(ran.index(f"suspect {n}") for n in range(3))
    assert first < 60  # they did not have to wait for all others,
    assert last - first > 2  # nor did the others have to wait for all of them


@pytest.mark.slow
async def test_nothing_is_claimed_while_the_last_suspect_runs(app: Mainspring) -> None:
    gate = asyncio.Event()
    began: list[str] = []

    @app.task()
    async def work(name: str) -> None:
        began.append(name)
        if name == "suspect":
            await gate.wait()

    suspect = await work.enqueue(name="suspect")
    await make_suspect(app, suspect.id)
    async with working(app, concurrency=10):
        await eventually(lambda: began == ["suspect"])
        other = await work.enqueue(name="other")
        await asyncio.sleep(0.1)  # time in which it could be claimed
        assert began == ["suspect"]
        gate.set()
        await ended(app, suspect.id, other.id)


@pytest.mark.slow
async def test_a_long_job_does_not_keep_others_from_running_while_a_suspect_waits(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.SoloTurns, "HOLD_BACK", 0.02)
    gate = asyncio.Event()

    @app.task()
    async def long() -> None:
        await gate.wait()

    @app.task()
    async def short() -> str:
        return "done"

    async with working(app, concurrency=5) as worker:
        running = await long.enqueue()
        await reached(app, running.id, statuses=(Status.RUNNING,))
        await app.pause("fragile")
        suspect = await short.using(queue="fragile").enqueue()
        execute(app.store, "UPDATE mainspring_jobs SET crashes = 1 WHERE id = ?", suspect.id)
        await app.resume("fragile")
        await eventually(lambda: worker.parts.intake.solo.patience > intake.SoloTurns.FIRST_PATIENCE)  # a turn in vain
        for _ in range(3):
            assert await (await short.enqueue()).result(10) == "done"
        assert (await suspect.get()).status is Status.PENDING
        gate.set()
        assert await suspect.result(10) == "done"


@pytest.mark.slow
async def test_drain_runs_suspects_too(app: Mainspring) -> None:
    @app.task()
    async def work() -> None: ...

    jobs = await work.enqueue_many([{}] * 3)
    for job in jobs[:2]:
        await make_suspect(app, job.id)
    assert await Worker(app, **QUICK).drain() == 3


# -- taking over ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_jobs_of_a_dead_worker_are_taken_over() -> None:
    app = new_app(lease=0.15)
    retrying = record(app, JobRetrying)

    @app.task()
    async def work(ctx: Context) -> str:
        return ctx.worker

    job = await work.enqueue()
    await app.store.join(member("silent"), lambda _wake: None)
    await app.store.claim("silent", [Want("*", 1)])
    async with working(app) as worker:
        assert await job.result(10) == worker.id
    assert ((await job.get()).crashes, (await job.get()).attempts) == (1, 1)
    assert [(event.worker, event.reason, event.max_attempts) for event in retrying] == [("silent", "crash", 3)]


@pytest.mark.slow
async def test_a_job_that_killed_three_workers_is_a_dead_letter() -> None:
    app = new_app(lease=0.1)
    dead = record(app, JobDeadLettered)

    @app.task()
    async def work() -> None:
        raise AssertionError("never run here")

    job = await work.enqueue()
    await make_suspect(app, job.id, crashes=2)
    await app.store.claim("silent", [Want("*", 1)], solo=True)
    async with working(app):
        found = (await ended(app, job.id))[0]
        await app.runtime.bus.flush()
    assert (found.status, found.crashes) == (Status.DEAD_LETTER, 3)
    assert [event.job_id for event in dead] == [job.id]


@pytest.mark.slow
async def test_a_stalled_job_is_taken_from_a_worker_that_is_alive(caplog: pytest.LogCaptureFixture) -> None:
    from mainspring.events import JobStalled

    app = new_app(clock=ManualClock(), stall_grace=5000, lease=3600.0)  # the jump is no silence
    clock: Any = app.store.clock
    events = record(app, JobStalled, JobRetrying)
    runs: list[str] = []

    @app.task(timeout=60, max_attempts=2)
    async def work(ctx: Context) -> str:
        runs.append(ctx.worker)
        if len(runs) == 1:
            await asyncio.sleep(3600)
        return "done"

    async with working(app) as worker:
        job = await work.enqueue()
        await eventually(lambda: runs)
        await app.store.reap()  # sees the run: from now on its time is measured
        clock.advance(66)
        await eventually(lambda: events)
        clock.advance(3600)  # beyond the delay of its retry policy
        assert await job.result(DEADLINE) == "done"
        await app.runtime.bus.flush()
        await eventually(lambda: not worker.parts.runs.held)
    assert [type(event).__name__ for event in events] == ["JobStalled", "JobRetrying"]
    assert events[1].reason == "timeout"
    assert (await job.get()).attempts == 2


@pytest.mark.slow
async def test_a_suspect_that_another_worker_took_does_not_delay_other_jobs(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.worker.outage.LONGEST_SLEEP", DEADLINE * 10)
    ran = asyncio.Event()

    @app.task()
    async def work() -> None:
        ran.set()

    await work.enqueue()
    claim, answers = app.store.claim, [Claims([], suspects=True), Claims([])]

    async def claim_late(*args: Any, **options: Any) -> Claims:
        return answers.pop(0) if answers else await claim(*args, **options)

    monkeypatch.setattr(app.store, "claim", claim_late)
    async with working(app):
        await asyncio.wait_for(ran.wait(), DEADLINE)
