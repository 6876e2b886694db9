"""Decides when to claim jobs, how many and from which queues; claims them, and passes them on to admission."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mainspring.clock import since_boot
from mainspring.errors import StoreError
from mainspring.options import MAX_CHUNK_SIZE
from mainspring.queue_patterns import covers
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Claims, Want
from mainspring.task import Task
from mainspring.worker.admission import Admission
from mainspring.worker.gate import Gate
from mainspring.worker.membership import Membership
from mainspring.worker.outage import LONGEST_SLEEP, Outage, sleep_until
from mainspring.worker.run import Run, Stop
from mainspring.worker.settings import Subscription, WorkerSettings
from mainspring.worker.slots import Runs
from mainspring.worker.unknown_tasks import UnknownTasks

MAX_BUFFER_WAIT = 2.0  # seconds that a claimed job may wait for a free slot before the worker hands it back for others
PREFETCH_SECONDS = 0.1  # of work to claim in advance, at the rate at which jobs finish: a few round trips of a claim
MIN_MEASURED_SECONDS = 0.05  # the shortest time over which the rate is measured
SMOOTHING = 0.5  # weight of the newest measurement, from 0 to 1


class Intake:
    """Claims jobs for one worker; belongs to one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: WorkerSettings,
        gate: Gate,
        runs: Runs,
        admission: Admission,
        *,
        membership: Membership,
        unknown: UnknownTasks,
        outage: Outage,
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._settings = settings
        self._gate = gate
        self._runs = runs
        self._acker = runs.acker
        self._admission = admission
        self._chunker = admission.chunker
        self._membership = membership
        self._unknown = unknown
        self._outage = outage
        self._loop = asyncio.get_running_loop()
        self._random = random.Random()  # noqa: S311 - draws the order of the queues
        self.prefetch = Prefetch(settings.prefetch)
        self._finished = 0  # outcomes that were written when `prefetch` was last told
        self.solo = SoloTurns()
        self._wake = asyncio.Event()
        self._limited = any(subscription.concurrency is not None for subscription in settings.queues)
        if self._limited:  # when a run ends, its queue may have been at its limit, so that the last claim left it out
            runs.freed = self._wake

    def wake(self) -> None:
        """Claim now, because jobs may be due."""
        self._wake.set()

    async def step(self) -> None:
        """Claim once, pass the jobs on, and wait until there is reason to claim again."""
        if self._gate.is_shut:
            await asyncio.sleep(LONGEST_SLEEP)
            return
        self._wake.clear()
        if self._suspects_in() == 0:
            await self._run_suspects()
        await self._wait_for_room()
        claims = await self._claim(self.free())
        self.solo.noticed(claims.suspects, self._loop.time())
        if claims.jobs:
            self.solo.others_came(self._loop.time())
            self._admission.take(claims.jobs)
            await asyncio.sleep(0)  # let them start before the next claim
        else:
            longest = max(LONGEST_SLEEP, self._store.poll)
            await sleep_until(claims.next_due, self._store.clock, self._wake, self._suspects_in(), longest)

    async def take_due(self) -> Claims:
        """Claim once and fill the chunks, which start even if not full. A worker that runs step by step calls this."""
        claims = await self._claim(self._settings.concurrency)
        if claims.suspects and not claims.jobs:
            claims = await self._claim(1, solo=True)
        if claims.jobs:
            self._admission.take(claims.jobs)
            await self._fill_chunks(claims)
        self._chunker.flush()
        return claims

    async def _fill_chunks(self, claims: Claims) -> None:
        """Claim more due jobs to fill the chunks."""
        await self._admission.settled()
        while self._chunker.missing and len(claims.jobs) < MAX_CHUNK_SIZE:  # the jobs may enqueue each other for ever
            more = await self._claim(self._chunker.missing)
            if not more.jobs:
                break
            self._admission.take(more.jobs)
            claims.jobs += more.jobs
            await self._admission.settled()

    def hand_back_stale(self) -> None:
        """Hand back jobs that were claimed ahead and cannot start soon, so that other workers can run them.

        To the store, they look as if they ran.
        """
        before = self._loop.time() - MAX_BUFFER_WAIT
        singly = (run for run in self._runs.ready if isinstance(run, Run))
        waiting = [*singly, *(run for run in self._runs.held.values() if run.waits_for_child)]
        for run in [*(run for run in waiting if run.claimed_at < before), *self._chunker.stale(before)]:
            self._runs.end(run, Stop.CROWDED)
            self.prefetch.overestimated()

    # -- claims ---------------------------------------------------------------------------------

    async def _claim(self, limit: int, *, solo: bool = False) -> Claims:
        """Claim jobs. A claim that is under way cannot be taken back; if we are cancelled, `leave` returns its jobs."""
        wanted = self._wants(limit)
        async with self._runs.claiming:
            if not wanted or limit <= 0 or self._gate.is_shut:
                return Claims([])
            if self._gate.outside is not None and await self._is_halted_outside():
                return Claims([])
            if self._runtime.tasks.keys() != self._membership.declared:
                await self._membership.announce_tasks()
            began, tasks = since_boot(), self._membership.tasks
            version = self._runtime.version
            claims = await self._store.claim(
                self._settings.id, wanted, limit=limit, solo=solo, tasks=tasks, version=version
            )
            self._outage.worked("claim")
            if claims.jobs and since_boot() - began > self._store.lease:
                self._hand_back_late(claims)
            if claims.unknown:
                self._unknown.met(claims.unknown)
            if claims.jobs and self._gate.knows_halts:  # perhaps the store gave them out because a halt is over
                with contextlib.suppress(StoreError):
                    await self._gate.look()
            if not claims.jobs and self._chunker.is_used:
                self._chunker.claimed([], of=0)
            return claims

    async def _is_halted_outside(self) -> bool:
        """Ask before claiming: the store does not know of this halt, and would give out the same jobs again."""
        with contextlib.suppress(StoreError):
            await self._gate.refresh()
        return self._gate.halted_outside

    def _hand_back_late(self, claims: Claims) -> None:
        """Start none of these jobs: this process was stopped meanwhile, and another worker may have taken them over."""
        for claim in claims.jobs:
            task = cast("Task[..., Any, Any]", self._runtime.task_named(claim.task))
            self._runs.end(Run(claim, task, self._loop.time()), Stop.CROWDED)
        claims.jobs = []

    def _wants(self, limit: int) -> list[Want]:
        runs = (*self._runs.held.values(), *self._runs.detached) if self._limited else ()
        in_hand = Counter(run.claim.queue for run in runs)
        queues, strict = self._settings.queues, self._settings.strict
        return wants(queues, strict=strict, room=limit, in_hand=in_hand, rng=self._random)

    # -- room -----------------------------------------------------------------------------------

    def free(self) -> int:
        """Return how many more jobs this worker can use: in free slots, ahead of those, or to fill chunks."""
        runs, concurrency = self._runs, self._settings.concurrency
        singly = len(runs.held) + len(runs.detached) - runs.together - self._admission.standing_by
        room = concurrency + self.prefetch.ahead - singly
        if not self._chunker.is_used or runs.ready or singly - len(self._chunker) >= concurrency:
            return room
        return max(room, self._chunker.lacking)

    async def _wait_for_room(self) -> None:
        """Wait until a slot is free or half of the prefetched jobs are used up, and the store keeps up with acks."""
        while not self._has_room():
            self._runs.room_below = self.prefetch.ahead // 2
            self._runs.room.clear()
            await self._runs.room.wait()

    def _has_room(self) -> bool:
        if finished := self._acker.written - self._finished:
            self._finished += finished
            self.prefetch.finished(finished, self._loop.time())
        few_ready = len(self._runs.ready) * 2 <= self.prefetch.ahead
        most = self._settings.concurrency + self._settings.prefetch
        few_unwritten = self._acker.unwritten <= most  # if the worker died, all these would run again
        return few_ready and self.free() > 0 and few_unwritten

    # -- suspects -------------------------------------------------------------------------------

    def _suspects_in(self) -> float | None:
        return self.solo.due_in(self._loop.time(), idle=self._runs.idle.is_set())

    async def _run_suspects(self) -> None:
        """Give the suspects a turn: wait until nothing else runs here, then run one after the other."""
        began, alone = self._loop.time(), False
        try:
            more = alone = await self._alone(self.solo.patience)
            while more:
                more = await self._run_suspect() and self._loop.time() - began < SoloTurns.TURN_LENGTH
        finally:
            self.solo.ended(began, self._loop.time(), alone=alone)

    async def _run_suspect(self) -> bool:
        """Run one suspect to its end. Return False if there is none, as another worker has taken it."""
        claims = await self._claim(1, solo=True)
        if not claims.jobs:
            return False
        self._admission.take(claims.jobs)
        await asyncio.sleep(0)
        self._chunker.flush()
        await self._runs.idle.wait()  # meanwhile this worker claims nothing else
        await self._acker.flush()
        return True

    async def _alone(self, patience: float) -> bool:
        """Wait until nothing else runs here; return whether that is so. A suspect may kill all jobs of its process."""
        if not self._runs.idle.is_set() and not await self._runs.wait_idle(patience):
            return False
        await self._acker.flush()  # if the process died, finished jobs that are not written would count as killed
        return self._runs.idle.is_set()


class Prefetch:
    """Limits claiming ahead to what is soon done: thousands of quick jobs, but no slow job another worker could run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.ahead = 0  # jobs to claim in advance
        self._rate = 0.0
        self._finished = 0
        self._since: float | None = None

    def overestimated(self) -> None:
        """Forget the rate and measure it anew, because jobs have become slow."""
        self.ahead, self._rate = 0, 0.0

    def finished(self, number: int, now: float) -> None:
        """Count finished jobs and adjust `ahead`."""
        if self._since is None:
            self._since = now
        self._finished += number
        elapsed = now - self._since
        if elapsed >= MIN_MEASURED_SECONDS:
            rate = self._finished / elapsed
            self._rate += (rate - self._rate) * (SMOOTHING if self._rate else 1)
            self._finished, self._since = 0, now
            self.ahead = min(self._most, int(self._rate * PREFETCH_SECONDS))


class SoloTurns:
    """Decides when a worker runs crash suspects, each of which must run alone.

    A worker without other jobs runs suspects at once. A busy one holds back first, so that idle workers can take them.
    Then suspects get short turns: the worker claims nothing until it is idle, and runs suspects. After each turn the
    other jobs go on undisturbed for several times as long. So few of them wait, and none for much longer than a suspect
    takes. If long jobs keep the worker from becoming idle, the next turn waits longer for their end.
    """

    HOLD_BACK = 0.5  # seconds before the first turn of a busy worker
    QUIET_FOR = 1.0  # seconds without other jobs after which an idle worker does not hold back
    TURN_LENGTH = 0.05  # seconds; within them, a turn may start further suspects
    FIRST_PATIENCE, LONGEST_PATIENCE = 0.05, 30.0  # seconds a turn waits for running jobs; it doubles
    OTHERS_FACTOR = 4.0  # after a turn, the other jobs run undisturbed for this many times its length
    OLD_AFTER, OTHERS_FACTOR_THEN = 60.0, 1.0  # when suspects have waited this many seconds, they get half of the time

    def __init__(self) -> None:
        self.patience = self.FIRST_PATIENCE
        self._since: float | None = None  # when suspects were noticed; None: there are none
        self._next = 0.0  # when the next turn begins
        self._busy_at = float("-inf")  # when other jobs were last claimed

    def noticed(self, suspects: bool, now: float) -> None:  # noqa: FBT001 - the claim's answer, passed on
        """Note whether suspects are due."""
        if not suspects:
            self._since, self.patience = None, self.FIRST_PATIENCE
        elif self._since is None:
            self._since, self._next = now, now + self.HOLD_BACK

    def others_came(self, now: float) -> None:
        self._busy_at = now

    def due_in(self, now: float, *, idle: bool) -> float | None:
        """Return the seconds until the suspects' next turn; None if there are no suspects."""
        if self._since is None:
            return None
        begins = min(self._next, self._busy_at + self.QUIET_FOR) if idle else self._next
        return max(0.0, begins - now)

    def ended(self, began: float, now: float, *, alone: bool) -> None:
        """Note that a turn is over. `alone` says whether the worker became idle in time."""
        is_old = self._since is not None and now - self._since > self.OLD_AFTER
        self._next = now + (now - began) * (self.OTHERS_FACTOR_THEN if is_old else self.OTHERS_FACTOR)
        if not alone:
            self.patience = min(2 * self.patience, self.LONGEST_PATIENCE)


def wants(
    subscribed: Sequence[Subscription], *, strict: bool, room: int, in_hand: Mapping[str, int], rng: random.Random
) -> list[Want]:
    """Return what to ask of which queue.

    In strict order, the first queue may fill all the room, then the next. Otherwise each queue gets its share by
    weight, and any queue may fill what is left.
    """
    limits = {s.queue: room if s.concurrency is None else s.concurrency - held_of(s, in_hand) for s in subscribed}
    open_ = [s for s in subscribed if limits[s.queue] > 0]
    if strict or len(open_) < 2:
        return [Want(s.queue, min(room, limits[s.queue])) for s in open_]
    total = sum(s.weight for s in open_)
    drawn = sorted(open_, key=lambda s: rng.random() ** (1 / s.weight), reverse=True)  # heavier queues tend to be first
    shares = [Want(s.queue, min(limits[s.queue], max(1, room * s.weight // total))) for s in drawn]
    rest = [Want(s.queue, limits[s.queue] - share.limit) for s, share in zip(drawn, shares, strict=True)]
    return shares + [want for want in rest if want.limit > 0]


def held_of(subscription: Subscription, in_hand: Mapping[str, int]) -> int:
    return sum(number for queue, number in in_hand.items() if covers(subscription.queue, queue))
