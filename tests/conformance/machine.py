"""Run random histories on a store, and check each step against a small model.

    from hypothesis import settings
    from tests.conformance.machine import store_machine

    TestMyStoreHistories = store_machine(lambda clock: MyStore("my://…", clock=clock)).TestCase
    TestMyStoreHistories.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)

Each history needs an empty store that uses the given clock. After each step, the machine checks that:

- no job is lost, and none appears from nowhere;
- no job is claimed by two workers at once, and its token only grows;
- each job has the status that `TRANSITIONS` leads to, and the attempts and crashes that follow from its history;
- a job is a dead letter exactly if its attempts are used up or it crashed three times;
- the statistics count what is in the store;
- a job that waits for a key, or for another job's end, waits until then and no longer;
- a worker that lost its claim can write nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.job import (
    CLAIMABLE,
    FINISHED,
    LIVE,
    MAX_CRASHES,
    TRANSITIONS,
    UNTIL_WOKEN,
    Claim,
    Move,
    NewJob,
    Outcome,
    Save,
    Status,
    Step,
    awaited_job,
    end_of,
    is_end,
)
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Filter, Halt, Store, Takeover, TakeoverCause, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import by_silence, join, new_job

T = TypeVar("T")

KEEP = {"keep": 120_000, "keep_dead": 240_000}
COUNTED = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
YIELDS_TO_CANCEL = frozenset({Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH})

# -- what can happen ------------------------------------------------------------------------------

wanted = st.sampled_from(["a", "b", "*", "*"])
workers = st.sampled_from([0, 1])
any_of = st.integers(0, 20)  # which of the current candidates, modulo their number
delays = st.sampled_from([0, 0, 5_000, 40_000])
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
STEPS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {  # method: its weight and its arguments
    "enqueue": (2, (st.lists(specs, min_size=1, max_size=3),)),
    "claim": (3, (workers, wanted, st.integers(1, 5))),
    "claim_suspect": (2, (workers, wanted)),
    "done": (2, (any_of,)),
    "fail": (3, (any_of, delays)),
    "snooze": (1, (any_of, delays)),
    "release": (2, (any_of, delays)),
    "suspend": (2, (any_of, delays, st.sampled_from([None, "bell", "end of another"]), any_of)),
    "wake": (1, (st.integers(0, 3),)),
    "save": (1, (any_of,)),
    "stale_ack": (4, (any_of, st.sampled_from(sorted(TRANSITIONS[Status.RUNNING])))),
    "heartbeat": (1, (workers,)),
    "crash": (2, (workers,)),
    "tick": (3, (st.sampled_from([1, 10, 30, 60]),)),
    "cancel": (2, (any_of,)),
    "manual_retry": (3, (any_of,)),
    "delete": (1, (any_of,)),
    "halt": (1, (st.sampled_from(["a", None]),)),
    "resume": (2, (st.sampled_from(["a", None]),)),
    "prune": (1, ()),
}
steps = st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), *STEPS[name][1])
)


def store_machine(make_store: Callable[[ManualClock], Store]) -> type[StoreMachine]:
    """Return a state machine for one kind of store. `make_store` returns a store that is not open yet."""
    return type("StoreMachine", (StoreMachine,), {"make_store": staticmethod(make_store)})


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
    waits_for: str | None = None
    steps: int = 0

    def apply(self, move: Move) -> None:
        self.status = TRANSITIONS[self.status][move]

    def end(self, move: Move, delay: Millis, now: Millis, waits_for: str | None = None) -> None:
        """End a run. The last allowed crash makes a dead letter; otherwise a requested cancel takes effect."""
        self.attempts += move in COUNTED
        last_crash = move is Move.CRASH and self.crashes + 1 >= MAX_CRASHES
        cancelled = self.cancel_requested and move in YIELDS_TO_CANCEL and not last_crash
        self.crashes += move is Move.CRASH and not cancelled
        self.apply(Move.CANCEL if cancelled else Move.DEAD if last_crash else move)
        if self.status in CLAIMABLE and move is not Move.CRASH and (delay or move is not Move.RELEASE):
            self.run_at = min(now + delay, UNTIL_WOKEN)
        if self.status is Status.SUSPENDED:
            self.attempts = self.crashes = 0
            self.waits_for = waits_for
        self.date(now)

    def date(self, now: Millis) -> None:
        keep = self.spec.keep_dead if self.status is Status.DEAD_LETTER else self.spec.keep
        self.expires_at = now + keep if self.status in FINISHED else None

    def manual_retry(self, now: Millis) -> None:
        self.apply(Move.MANUAL_RETRY)
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
            if job.status in CLAIMABLE and job.spec.queue not in self.halted
        }
        return {job_id: job for job_id, job in jobs.items() if queue in ("*", job.spec.queue)}

    def wake(self, key: str, number: int, now: Millis) -> int:
        waiting = [job for job in self.jobs.values() if job.status is Status.SUSPENDED and job.waits_for == key]
        woken = sorted(waiting, key=lambda job: (job.spec.priority, job.spec.id))[:number]
        for job in woken:
            job.apply(Move.WAKE)
            job.run_at = now
        return len(woken)

    def wake_waiters_of(self, job: ModelJob, now: Millis) -> None:
        """Wake the jobs that wait for this job's end, if it has finished or is gone."""
        if job.status in FINISHED or job.spec.id not in self.jobs:
            self.wake(end_of(job.spec.id), len(self.jobs), now)

    def wake_if_awaited_has_ended(self, job: ModelJob, now: Millis) -> None:
        """Wake a suspended job at once if the job that it waits for has already ended."""
        if job.status is Status.SUSPENDED and is_end(job.waits_for):
            awaited = self.jobs.get(awaited_job(job.waits_for))
            if awaited is None or awaited.status in FINISHED:
                self.wake(job.waits_for, len(self.jobs), now)

    def counts(self) -> Counter[tuple[str, Status]]:
        return Counter((job.spec.queue, job.status) for job in self.jobs.values())


# -- the machine ----------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """The state machine. Call `store_machine` to make one for your store."""

    make_store: Callable[[ManualClock], Store]

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
        return self.runner.get_loop().run_until_complete(step)

    @rule(step=steps)
    def step(self, step: tuple[Any, ...]) -> None:
        """Run any step. All steps are one rule: Hypothesis disables rules at random, and few histories would go far."""
        name, *arguments = step
        getattr(self, name)(*arguments)

    # -- jobs come and go ---------------------------------------------------------------------

    @initialize(batch=st.lists(specs, min_size=4, max_size=8))
    def begin(self, batch: list[dict[str, Any]]) -> None:
        """Enqueue enough jobs to work on: most histories that start with an empty store never go far."""
        self.enqueue(batch)
        self.keep_busy()

    def enqueue(self, batch: list[dict[str, Any]]) -> None:
        jobs = [new_job(**spec, **KEEP) for spec in batch]
        answers = self.run(self.store.insert(jobs))
        for job, inserted in zip(jobs, answers, strict=True):
            holder = self.model.holder(job.dedupe_key)
            assert (inserted.id, inserted.created) == (holder or job.id, holder is None)
            if inserted.created:
                self.model.jobs[job.id] = ModelJob(job, self.clock.now() + job.delay)

    def claim(self, worker: int, queue: str, limit: int) -> None:
        due = self.model.due(queue, self.clock.now())
        claims = self.run(self.store.claim(self.workers[worker], [Want(queue, limit)]))
        assert {taken.id for taken in claims.jobs} <= due
        assert len(claims.jobs) == min(limit, len(due))
        assert claims.suspects is bool(self.model.due(queue, self.clock.now(), suspects=True))
        self.take(claims.jobs, self.workers[worker])

    def claim_suspect(self, worker: int, queue: str) -> None:
        due = self.model.due(queue, self.clock.now(), suspects=True)
        claims = self.run(self.store.claim(self.workers[worker], [Want(queue, 5)], solo=True))
        assert {taken.id for taken in claims.jobs} <= due
        assert len(claims.jobs) == min(1, len(due))
        self.take(claims.jobs, self.workers[worker])

    def keep_busy(self) -> None:
        """Let each worker fill its two slots, as real workers do. An idle worker takes a suspect."""
        for number, worker in enumerate(self.workers):
            if (busy := self.busy(worker)) < 2:
                self.claim(number, "*", 2 - busy)
            if not self.busy(worker):
                self.claim_suspect(number, "*")

    def busy(self, worker: str) -> int:
        return sum(self.model.jobs[held.id].worker == worker for held in self.held)

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

    def done(self, which: int) -> None:
        self.end(which, Move.DONE)

    def fail(self, which: int, delay: Millis) -> None:
        """Fail a run, with another attempt if one is left, as a worker would decide."""
        self.end(which, Move.RETRY, delay)

    def snooze(self, which: int, delay: Millis) -> None:
        self.end(which, Move.SNOOZE, delay)

    def release(self, which: int, delay: Millis) -> None:
        self.end(which, Move.RELEASE, delay)

    def suspend(self, which: int, delay: Millis, waits_for: str | None, other: int) -> None:
        for job in self.pick(other) if waits_for == "end of another" else ():
            waits_for = end_of(job.spec.id)
        self.end(which, Move.SUSPEND, delay if waits_for is None else UNTIL_WOKEN, waits_for)

    def wake(self, number: int) -> None:
        woken = self.model.wake("bell", number, self.clock.now())
        assert self.run(self.store.wake({"bell": number})) == {"bell": woken}
        self.keep_busy()

    def save(self, which: int) -> None:
        """Record one more step of a job."""
        for held in self.held[which % len(self.held) :][:1] if self.held else ():
            job = self.model.jobs[held.id]
            job.steps += 1
            step = Step(f"step {job.steps}", job.steps, output="1")
            assert self.run(self.store.save([Save(held.id, held.token, (step,), ref=held.ref)])) == [[]]
            assert len(self.run(self.store.steps(held.id))) == job.steps

    def end(self, which: int, move: Move, delay: Millis = 0, waits_for: str | None = None) -> None:
        if not self.held:
            return
        held = self.held.pop(which % len(self.held))
        if move is Move.RETRY and held.attempt >= held.max_attempts:
            move = Move.DEAD
        job = self.model.jobs[held.id]
        job.end(move, delay, self.clock.now(), waits_for)
        outcome = Outcome(held.id, held.token, move, delay=delay, ref=held.ref, waits_for=waits_for)
        (status,) = self.run(self.store.ack([outcome]))
        assert status is job.status
        self.model.wake_waiters_of(job, self.clock.now())
        self.model.wake_if_awaited_has_ended(job, self.clock.now())
        self.lost.append(held)
        self.keep_busy()

    def stale_ack(self, which: int, move: Move) -> None:
        """Let a worker that lost its claim ack and save; prefer one whose job another worker runs by now."""
        replaced = [lost for lost in self.lost if any(held.id == lost.id for held in self.held)]
        if zombies := replaced or self.lost:
            zombie = zombies[which % len(zombies)]
            step = Step("too late", 1)
            outcome = Outcome(zombie.id, zombie.token, move, follow_ups=(new_job(),), ref=zombie.ref, steps=(step,))
            assert self.run(self.store.ack([outcome])) == [None]
            save = Save(zombie.id, zombie.token, (step,), (new_job(),), zombie.ref)
            assert self.run(self.store.save([save])) == [None]

    # -- workers live and die -----------------------------------------------------------------

    def heartbeat(self, worker: int) -> None:
        mine = {held.id: held for held in self.held if self.model.jobs[held.id].worker == self.workers[worker]}
        gone = {lost.id: lost for lost in self.lost[-3:] if lost.id not in mine}
        tokens = {job_id: claim.token for job_id, claim in {**mine, **gone}.items()}
        pulse = self.run(self.store.heartbeat(self.workers[worker], tokens))
        assert pulse.lost == set(gone)
        assert set(pulse.cancelled) == {job_id for job_id in mine if self.model.jobs[job_id].cancel_requested}

    def crash(self, worker: int) -> None:
        victim = self.workers[worker]
        took = self.run(by_silence(self.store, self.clock, victim))
        self.taken_over(took, victim)
        assert not [job for job in self.model.jobs.values() if job.status is Status.RUNNING and job.worker == victim]
        self.workers[worker] = f"{victim}'"
        self.run(join(self.store, self.workers[worker]))
        self.keep_busy()

    def tick(self, seconds: int) -> None:
        """Let time pass while all workers are alive, perhaps long enough for jobs with a timeout to stall."""
        assert self.run(self.store.reap()).takeovers == []  # the store watches what it sees here from now on
        self.clock.advance(seconds)
        for worker in self.workers:
            self.run(self.store.heartbeat(worker, {}))
        self.taken_over(self.run(self.store.reap()).takeovers)
        self.keep_busy()

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
        self.model.wake_waiters_of(job, self.clock.now())
        assert (takeover.status, takeover.worker) == (job.status, job.worker)

    # -- by hand ------------------------------------------------------------------------------

    def cancel(self, which: int) -> None:
        for job in self.pick(which):
            ids, requested, _ = self.change(Action.CANCEL, job)
            if job.status is Status.RUNNING:
                assert (ids, requested) == ((), (job.spec.id,))
                job.cancel_requested = True
            else:
                assert (bool(ids), requested) == (Move.CANCEL in TRANSITIONS[job.status], ())
                if ids:
                    job.apply(Move.CANCEL)
                    job.date(self.clock.now())
                    self.model.wake_waiters_of(job, self.clock.now())

    def manual_retry(self, which: int) -> None:
        for job in self.pick(which):
            holder = self.model.holder(job.spec.dedupe_key)
            ids, _, conflicts = self.change(Action.RETRY, job)
            allowed = Move.MANUAL_RETRY in TRANSITIONS[job.status]
            in_conflict = allowed and holder not in (None, job.spec.id)
            assert conflicts == ({job.spec.id: holder} if in_conflict else {})
            assert bool(ids) is (allowed and not in_conflict)
            if ids:
                job.manual_retry(self.clock.now())

    def delete(self, which: int) -> None:
        for job in self.pick(which):
            ids, _, _ = self.change(Action.DELETE, job)
            assert bool(ids) is (job.status is not Status.RUNNING)
            if ids:
                del self.model.jobs[job.spec.id]
                self.model.wake_waiters_of(job, self.clock.now())

    def pick(self, which: int) -> list[ModelJob]:
        """Return a list of one job, or an empty list if there are none."""
        jobs = list(self.model.jobs.values())
        return [jobs[which % len(jobs)]] if jobs else []

    def change(self, action: Action, job: ModelJob) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
        changed = self.run(self.store.change(action, Filter(ids=(job.spec.id,)), By("machine")))
        return changed.ids, changed.requested, dict(changed.conflicts)

    def halt(self, queue: str | None) -> None:
        self.run(self.store.halt(Halt("machine", "", to_datetime(self.clock.now()), queue=queue)))
        self.model.halted.add(queue)

    def resume(self, queue: str | None) -> None:
        assert self.run(self.store.resume(By("machine"), queue)) is (queue in self.model.halted)
        self.model.halted.discard(queue)

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
        due = {job.id: to_millis(job.run_at) for job in page.jobs if job.status in CLAIMABLE and not job.crashes}
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
