"""Random histories for a store, checked step by step against a model that fits on a page.

    from hypothesis import settings
    from mainspring.testing.machine import store_machine

    TestMyStoreHistories = store_machine(lambda clock: MyStore("my://…", clock=clock)).TestCase
    TestMyStoreHistories.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)

Each history needs an empty store that takes its time from the clock it is given. What holds after each step:

- no job is lost, and none appears from nowhere;
- no job is in two hands at once, and its token only ever grows;
- each job has the status that `TRANSITIONS` leads to, and the attempts and crashes that its history makes;
- a job is a dead letter exactly if its attempts are used up or it crashed three times;
- the statistics count what is there;
- a worker that lost its claim can write nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.job import FINISHED, LIVE, MAX_CRASHES, TRANSITIONS, WAITING, Claim, Move, NewJob, Outcome, Status
from mainspring.stores.protocol import Action, By, Filter, Halt, Store, Takeover, TakeoverCause, Want
from mainspring.testing.clock import ManualClock
from mainspring.testing.conformance.scene import by_silence, join, new_job

T = TypeVar("T")
Die = Callable[[Store, ManualClock, str], Awaitable[list[Takeover]]]

BY = By("machine")
KEEP = {"keep": 120_000, "keep_dead": 240_000}
COUNTED = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
YIELDS_TO_CANCEL = frozenset({Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH})

wanted = st.sampled_from(["a", "b", "*"])
workers = st.sampled_from([0, 1])
any_of = st.integers(0, 20)  # which of the candidates there are at that moment
delays = st.sampled_from([0, 5_000, 40_000])
specs = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(["a", "b"]),
        "priority": st.integers(0, 3),
        "delay": delays,
        "timeout": st.sampled_from([0, 10_000]),
        "max_attempts": st.integers(1, 3),
        "dedupe_key": st.sampled_from([None, None, "k1", "k2"]),
    }
)


def store_machine(make_store: Callable[[ManualClock], Store], die: Die = by_silence) -> type[StoreMachine]:
    """A state machine for one kind of store; `make_store` gives an unopened one, `die` kills one of its workers."""
    return type("StoreMachine", (StoreMachine,), {"make_store": staticmethod(make_store), "die": staticmethod(die)})


# -- the model ------------------------------------------------------------------------------------


@dataclass(slots=True)
class ModelJob:
    spec: NewJob
    run_at: Millis
    status: Status = Status.PENDING
    token: int = 0
    attempts: int = 0
    crashes: int = 0
    worker: str | None = None
    claimed_at: Millis = 0
    cancel_requested: bool = False
    expires_at: Millis | None = None

    def apply(self, move: Move) -> None:
        self.status = TRANSITIONS[self.status][move]

    def end(self, move: Move, delay: Millis, now: Millis) -> None:
        """A run ends. A cancel that was asked for is not lost, and the last crash is the end."""
        self.attempts += move in COUNTED
        cancelled = self.cancel_requested and move in YIELDS_TO_CANCEL
        self.crashes += move is Move.CRASH and not cancelled
        last_crash = move is Move.CRASH and self.crashes >= MAX_CRASHES
        self.apply(Move.CANCEL if cancelled else Move.DEAD if last_crash else move)
        if self.status in WAITING and move is not Move.CRASH and (delay or move is not Move.RELEASE):
            self.run_at = now + delay
        self.date(now)

    def date(self, now: Millis) -> None:
        keep = self.spec.keep_dead if self.status is Status.DEAD_LETTER else self.spec.keep
        self.expires_at = now + keep if self.status in FINISHED else None

    def replay(self, now: Millis) -> None:
        self.apply(Move.REPLAY)
        self.attempts = self.crashes = 0
        self.cancel_requested = False
        self.run_at = now
        self.expires_at = None

    def stalled(self, now: Millis, grace: Millis) -> bool:
        running = self.status is Status.RUNNING and self.spec.timeout > 0
        return running and now >= self.claimed_at + self.spec.timeout + grace


@dataclass(slots=True)
class Model:
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    halted: set[str | None] = field(default_factory=set)

    def holder(self, key: str | None) -> str | None:
        live = (job_id for job_id, job in self.jobs.items() if job.status in LIVE and job.spec.dedupe_key == key)
        return None if key is None else next(live, None)

    def due(self, queue: str, now: Millis, *, suspects: bool = False) -> set[str]:
        return {
            job_id for job_id, job in self.waiting(queue).items() if job.run_at <= now and (job.crashes > 0) is suspects
        }

    def waiting(self, queue: str) -> dict[str, ModelJob]:
        if None in self.halted:
            return {}
        jobs = {
            job_id: job
            for job_id, job in self.jobs.items()
            if job.status in WAITING and job.spec.queue not in self.halted
        }
        return {job_id: job for job_id, job in jobs.items() if queue in ("*", job.spec.queue)}

    def counts(self) -> Counter[tuple[str, Status]]:
        return Counter((job.spec.queue, job.status) for job in self.jobs.values())


# -- the machine ----------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """Use `store_machine`, which says of which store."""

    make_store: Callable[[ManualClock], Store]
    die: Die

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = self.make_store(self.clock)
        self.model = Model()
        self.held: list[Claim] = []
        self.lost: list[Claim] = []
        self.workers = ["w0", "w1"]
        self.run(self.store.open())
        for worker in self.workers:
            self.run(join(self.store, worker))

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(step)

    # -- jobs come and go ---------------------------------------------------------------------

    @rule(spec=specs)
    def enqueue(self, spec: dict[str, Any]) -> None:
        job = new_job(**spec, **KEEP)
        holder = self.model.holder(job.dedupe_key)
        (inserted,) = self.run(self.store.insert([job]))
        assert (inserted.id, inserted.created) == (holder or job.id, holder is None)
        if inserted.created:
            self.model.jobs[job.id] = ModelJob(job, self.clock.now() + job.delay)

    @rule(worker=workers, queue=wanted, limit=st.integers(1, 5))
    def claim(self, worker: int, queue: str, limit: int) -> None:
        due = self.model.due(queue, self.clock.now())
        claims = self.run(self.store.claim(self.workers[worker], [Want(queue, limit)]))
        assert {taken.id for taken in claims.jobs} <= due
        assert len(claims.jobs) == min(limit, len(due))
        assert claims.suspects is bool(self.model.due(queue, self.clock.now(), suspects=True))
        self.take(claims.jobs, self.workers[worker])

    @rule(worker=workers, queue=wanted)
    def claim_suspect(self, worker: int, queue: str) -> None:
        due = self.model.due(queue, self.clock.now(), suspects=True)
        claims = self.run(self.store.claim(self.workers[worker], [Want(queue, 5)], solo=True))
        assert {taken.id for taken in claims.jobs} <= due
        assert len(claims.jobs) == min(1, len(due))
        self.take(claims.jobs, self.workers[worker])

    def take(self, claims: Sequence[Claim], worker: str) -> None:
        assert len({taken.id for taken in claims}) == len(claims)
        for taken in claims:
            job = self.model.jobs[taken.id]
            assert taken.token > job.token
            assert (taken.attempts, taken.crashes) == (job.attempts, job.crashes)
            job.apply(Move.CLAIM)
            job.token, job.worker, job.claimed_at = taken.token, worker, self.clock.now()
            self.held.append(taken)

    # -- runs end -----------------------------------------------------------------------------

    @precondition(lambda self: self.held)
    @rule(which=any_of)
    def done(self, which: int) -> None:
        self.end(which, Move.DONE)

    @precondition(lambda self: self.held)
    @rule(which=any_of, delay=delays)
    def fail(self, which: int, delay: Millis) -> None:
        held = self.held[which % len(self.held)]
        self.end(which, Move.RETRY if held.attempt < held.max_attempts else Move.DEAD, delay)

    @precondition(lambda self: self.held)
    @rule(which=any_of, delay=delays)
    def snooze(self, which: int, delay: Millis) -> None:
        self.end(which, Move.SNOOZE, delay)

    @precondition(lambda self: self.held)
    @rule(which=any_of, delay=delays)
    def release(self, which: int, delay: Millis) -> None:
        self.end(which, Move.RELEASE, delay)

    @precondition(lambda self: self.held)
    @rule(which=any_of)
    def suspend(self, which: int) -> None:
        self.end(which, Move.SUSPEND)

    def end(self, which: int, move: Move, delay: Millis = 0) -> None:
        held = self.held.pop(which % len(self.held))
        job = self.model.jobs[held.id]
        job.end(move, delay, self.clock.now())
        (status,) = self.run(self.store.ack([Outcome(held.id, held.token, move, delay=delay)]))
        assert status is job.status
        self.lost.append(held)

    @precondition(lambda self: self.lost)
    @rule(which=any_of, move=st.sampled_from(sorted(TRANSITIONS[Status.RUNNING])))
    def stale_ack(self, which: int, move: Move) -> None:
        """A zombie: its job was taken over, handed back or ended long ago. What it writes must leave no trace."""
        lost = self.lost[which % len(self.lost)]
        zombie = Outcome(lost.id, lost.token, move, follow_ups=(new_job(),))
        assert self.run(self.store.ack([zombie])) == [None]

    # -- workers live and die -----------------------------------------------------------------

    @rule(worker=workers)
    def heartbeat(self, worker: int) -> None:
        mine = {held.id: held for held in self.held if self.model.jobs[held.id].worker == self.workers[worker]}
        gone = {lost.id: lost for lost in self.lost[-3:] if lost.id not in mine}
        tokens = {job_id: claim.token for job_id, claim in {**mine, **gone}.items()}
        pulse = self.run(self.store.heartbeat(self.workers[worker], tokens))
        assert pulse.lost == set(gone)
        assert set(pulse.cancelled) == {job_id for job_id in mine if self.model.jobs[job_id].cancel_requested}

    @rule(worker=workers)
    def crash(self, worker: int) -> None:
        victim = self.workers[worker]
        took = self.run(_as_coroutine(self.die(self.store, self.clock, victim)))
        self.taken_over(took, victim)
        assert not [job for job in self.model.jobs.values() if job.status is Status.RUNNING and job.worker == victim]
        self.workers[worker] = f"{victim}'"
        self.run(join(self.store, self.workers[worker]))

    @rule()
    def expire(self) -> None:
        """Long enough for what has a timeout to stall, with everyone alive."""
        self.pass_time(60)

    @rule(seconds=st.sampled_from([1, 10, 30]))
    def tick(self, seconds: int) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for worker in self.workers:
            self.run(self.store.heartbeat(worker, {}))
        self.taken_over(self.run(self.store.reap()))

    def taken_over(self, took: Sequence[Takeover], victim: str | None = None) -> None:
        for takeover in took:
            self.follow(takeover, victim)
        taken = {takeover.job_id for takeover in took}
        self.lost += [held for held in self.held if held.id in taken]
        self.held = [held for held in self.held if held.id not in taken]
        assert not [job for job in self.model.jobs.values() if job.stalled(self.clock.now(), self.store.stall_grace)]

    def follow(self, takeover: Takeover, victim: str | None) -> None:
        job = self.model.jobs[takeover.job_id]
        if takeover.cause is TakeoverCause.STALLED:
            assert job.stalled(self.clock.now(), self.store.stall_grace)
            move = Move.DEAD if job.attempts + 1 >= job.spec.max_attempts else Move.RETRY
        else:
            assert job.worker == victim
            move = Move.CRASH
        job.end(move, 0, self.clock.now())
        assert (takeover.status, takeover.worker) == (job.status, job.worker)

    # -- by hand ------------------------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(which=any_of)
    def cancel(self, which: int) -> None:
        job = self.pick(which)
        changed = self.run(self.store.change(Action.CANCEL, Filter(ids=(job.spec.id,)), BY))
        if job.status is Status.RUNNING:
            job.cancel_requested = True
            assert changed.requested == (job.spec.id,)
        elif Move.CANCEL in TRANSITIONS[job.status]:
            job.apply(Move.CANCEL)
            job.date(self.clock.now())
            assert changed.ids == (job.spec.id,)

    @precondition(lambda self: self.model.jobs)
    @rule(which=any_of)
    def replay(self, which: int) -> None:
        job = self.pick(which)
        holder = self.model.holder(job.spec.dedupe_key)
        changed = self.run(self.store.change(Action.REPLAY, Filter(ids=(job.spec.id,)), BY))
        if Move.REPLAY not in TRANSITIONS[job.status]:
            assert changed.ids == ()
        elif holder not in (None, job.spec.id):
            assert dict(changed.conflicts) == {job.spec.id: holder}
        else:
            assert changed.ids == (job.spec.id,)
            job.replay(self.clock.now())

    @precondition(lambda self: self.model.jobs)
    @rule(which=any_of)
    def delete(self, which: int) -> None:
        job = self.pick(which)
        changed = self.run(self.store.change(Action.DELETE, Filter(ids=(job.spec.id,)), BY))
        assert bool(changed.ids) is (job.status is not Status.RUNNING)
        if changed.ids:
            del self.model.jobs[job.spec.id]

    def pick(self, which: int) -> ModelJob:
        jobs = list(self.model.jobs.values())
        return jobs[which % len(jobs)]

    @rule(queue=st.sampled_from([None, "a"]))
    def halt(self, queue: str | None) -> None:
        self.run(self.store.halt(Halt("machine", "", to_datetime(self.clock.now()), queue=queue)))
        self.model.halted.add(queue)

    @precondition(lambda self: self.model.halted)
    @rule(queue=st.sampled_from([None, "a"]))
    def resume(self, queue: str | None) -> None:
        assert self.run(self.store.resume(BY, queue)) is (queue in self.model.halted)
        self.model.halted.discard(queue)

    @rule()
    def prune(self) -> None:
        now = self.clock.now()
        expired = [
            job_id for job_id, job in self.model.jobs.items() if job.expires_at is not None and job.expires_at <= now
        ]
        assert self.run(self.store.prune()) == len(expired)
        for job_id in expired:
            del self.model.jobs[job_id]

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def every_job_is_where_the_model_says(self) -> None:
        page = self.run(self.store.find(Filter(), limit=1000))
        assert {job.id: (job.status, job.token, job.attempts, job.crashes) for job in page.jobs} == {
            job_id: (job.status, job.token, job.attempts, job.crashes) for job_id, job in self.model.jobs.items()
        }
        due = {job.id: to_millis(job.run_at) for job in page.jobs if job.status in WAITING and not job.crashes}
        assert due == {job_id: self.model.jobs[job_id].run_at for job_id in due}
        self.dead_letters_are_those_that_used_up_their_chances()

    def dead_letters_are_those_that_used_up_their_chances(self) -> None:
        for job in self.model.jobs.values():
            used_up = job.attempts >= job.spec.max_attempts or job.crashes >= MAX_CRASHES
            assert used_up or job.status is not Status.DEAD_LETTER
            assert not (used_up and job.status in LIVE)

    @invariant()
    def no_job_is_in_two_hands(self) -> None:
        ids = [held.id for held in self.held]
        assert len(set(ids)) == len(ids)
        assert set(ids) == {job_id for job_id, job in self.model.jobs.items() if job.status is Status.RUNNING}

    @invariant()
    def statistics_count_what_is_there(self) -> None:
        counts = self.run(self.store.stats()).queues
        assert self.model.counts() == {
            (each.queue, status): each[status] for each in counts for status in Status if each[status]
        }


async def _as_coroutine(step: Awaitable[T]) -> T:
    return await step
