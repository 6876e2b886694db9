"""The worker: claims due jobs, runs them, and writes their outcomes.

`serve` is the table of contents. Nine supervised loops run side by side, and the heartbeat in its own thread:
claim (store → `Run`s), acks (outcomes → store), aftermath (what follows from acks), progress (reports → store), gate
(what is halted), breakers (what other processes opened or closed), timers (schedules → jobs), maintenance (takeovers,
retention), unknown tasks (jobs that no worker can run).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Self, Unpack, cast

from mainspring.app import Mainspring
from mainspring.chunk import MAX_CHUNK_SIZE
from mainspring.clock import Millis, since_boot
from mainspring.errors import ConfigurationError, StoreError, StoreUnavailable, WorkerStuck
from mainspring.events import JobStarted, WorkerHeartbeat, WorkerStarted, WorkerStopped
from mainspring.features.batches.api import TASK as TASK_OF_BATCHES
from mainspring.guards import Ending, Refusal
from mainspring.job import Claim, Inserted, Move, NewJob, Outcome, Status
from mainspring.log import get_log, running
from mainspring.stores.protocol import Claims, Pulse, Wake, WorkerInfo
from mainspring.task import Task
from mainspring.tuning import tuned
from mainspring.worker import outcomes, unknown_tasks
from mainspring.worker.acks import Acks
from mainspring.worker.admission import Admissions
from mainspring.worker.after_ack import AfterAck
from mainspring.worker.background import Background
from mainspring.worker.chunk_run import ChunkRun
from mainspring.worker.chunker import Chunker, PendingChunk
from mainspring.worker.claiming import Prefetch, SoloTurns, wants
from mainspring.worker.executor import Executor
from mainspring.worker.gate import Gate
from mainspring.worker.heartbeat import Heartbeat
from mainspring.worker.maintenance import Maintenance
from mainspring.worker.outage import Outage
from mainspring.worker.progress import Progress
from mainspring.worker.reporter import Reporter
from mainspring.worker.run import Run, Stop
from mainspring.worker.settings import WorkerOptions, WorkerSettings
from mainspring.worker.slots import SlotPool, shed_cancellation
from mainspring.worker.stuck import StuckSlots
from mainspring.worker.supervise import Backoff, supervised

log = get_log("mainspring.worker")

EXIT_ABANDONED = 1  # exit code if a handler did not end and was left behind
EXIT_STUCK = 5  # exit code if the worker stopped because its slots are stuck: start it again
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONGEST_SLEEP = 10.0  # seconds between claims when nothing is due and nothing wakes the worker
MAX_BUFFER_WAIT = 2.0  # seconds that a claimed job may wait for a free slot before the worker hands it back for others
REFRESH_EVERY = 600.0  # seconds between checks whether schedules are as the code and tzdata say
SAME_SIGNAL_WITHIN = 0.1  # seconds; two signals closer together count as one
STOP_TIMEOUT = 3.0  # seconds that stopped handlers have to end, after the grace
WRITE_TIMEOUT = 3.0  # seconds that the store has to take their outcomes, after that


class Worker:
    """`Worker(app, queues=["mail", "default"], concurrency=50).run()`; see WorkerSettings.

    In a program with its own event loop: `async with Worker(app):`, or `await Worker(app).serve()`.
    """

    def __init__(
        self, app: Mainspring, settings: WorkerSettings | None = None, **options: Unpack[WorkerOptions]
    ) -> None:
        if settings is not None and options:
            msg = f"give settings or {', '.join(options)}, not both: the settings say everything"
            raise ConfigurationError(msg)
        self.app = app
        self.store = app.store
        self.settings = settings or WorkerSettings.of(**options)
        self.id = self.settings.id
        self._queues = {subscription.queue for subscription in self.settings.queues}
        self._limited = any(subscription.concurrency is not None for subscription in self.settings.queues)
        self._reporter = Reporter(app.bus, self.id, log_completions=self.settings.log_completions)
        self._outage = Outage(self.id, noticed=self._on_outage)
        self._prefetch = Prefetch(self.settings.prefetch)
        self._wrapped = app.middleware.runs  # middleware around each run, if there is any
        self._random = random.Random()  # noqa: S311 - draws the order of the queues
        self._held: dict[str, Run] = {}  # claimed, and the outcome is not decided yet
        self._buffer: deque[Run | PendingChunk] = deque()  # claimed ahead, not started
        self._running: set[Run] = set()  # in slots
        self._detached: set[Run] = set()  # in slots but not in _held: stuck, or their jobs were claimed here again
        self._stuck = StuckSlots(self.id, self.store.stall_grace / 1000)
        self._exits_stuck = False
        self._serving = False  # in `serve`, with loops of its own; `draining` instead runs step by step
        self._solo = SoloTurns()
        self._released = 0  # jobs handed back because the worker stops
        self._stopping, self._stop_now = asyncio.Event(), asyncio.Event()  # a worker that has stopped is done
        self._gate = self._new_gate()
        self._told_to_stop = False
        self._abandoned = 0  # handlers that did not end
        self._signalled_at = float("-inf")
        self._impatience: list[threading.Timer] = []  # each ends the process when it fires
        self._reconciled = False
        self._has_joined = asyncio.Event()
        self._background: Background | None = None  # set while the worker serves by `async with`

    # -- life -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, then finish running jobs within the grace. A second signal stops at once.

        Return the exit code for the process. What handlers leave behind, such as threads of `asyncio.to_thread` or
        coroutines that swallow their cancellation, gets a moment to end. Then the process ends without it.
        """
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        try:
            with tuned(collect=True), asyncio.Runner() as runner:
                try:
                    code = runner.run(self._run())
                finally:
                    for number in STOP_SIGNALS:  # another signal must not kill the process now, in its orderly end
                        runner.get_loop().remove_signal_handler(number)
                        signal.signal(number, signal.SIG_IGN)
                    self._end_within(STOP_TIMEOUT)
        finally:
            self._be_patient()
            for number, handler in before.items():
                signal.signal(number, handler)
        return code

    def _end_within(self, seconds: float) -> None:
        """End this process after so many seconds, whatever still keeps it, unless `_be_patient` is called before."""
        timer = threading.Timer(seconds, end_process, [self.id, self._exit_code or EXIT_ABANDONED])
        timer.daemon = True
        timer.start()
        self._impatience.append(timer)

    def _be_patient(self) -> None:
        for timer in self._impatience:
            timer.cancel()

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            with contextlib.suppress(WorkerStuck):  # it is logged, and the exit code tells it
                await self.serve()
        finally:
            await self.app.close()
        return self._exit_code

    @property
    def _exit_code(self) -> int:
        if self._exits_stuck:
            return EXIT_STUCK
        return EXIT_ABANDONED if self._abandoned else 0

    def _on_signal(self) -> None:
        """Stop. Two signals in quick succession count as one: `timeout` and terminals signal process and group."""
        now = self._loop.time()
        if now - self._signalled_at > SAME_SIGNAL_WITHIN:
            self._signalled_at = now
            self.stop()
            if self._stop_now.is_set():
                self._end_within(3 * STOP_TIMEOUT)  # a store that never answers must not keep the process alive

    def stop(self) -> None:
        """Claim no more jobs and let running ones end. A second call stops at once. Unfinished jobs are handed back."""
        if self._told_to_stop:
            self._stop_now.set()
        self._told_to_stop = True
        self._begin_stopping()

    def _begin_stopping(self) -> None:
        self._stopping.set()
        self._gate.shut()

    async def serve(self) -> None:
        """Work until `stop` is called. Raise WorkerStuck if `exit_when_stuck` ended the worker."""
        self._prepare()
        if not await self._join():
            return
        async with self._joined():
            self._serving = True
            loops = [
                asyncio.create_task(supervised("claim", self._claim_step, self._outage), name="mainspring-claim"),
                asyncio.create_task(
                    supervised("progress", self._progress.step, self._outage), name="mainspring-progress"
                ),
                asyncio.create_task(
                    supervised("aftermath", self._after_ack.step, self._outage), name="mainspring-aftermath"
                ),
                asyncio.create_task(supervised("gate", self._gate.step, self._outage), name="mainspring-gate"),
                asyncio.create_task(
                    supervised("breakers", self._breakers_step, self._outage), name="mainspring-breakers"
                ),
                asyncio.create_task(supervised("timers", self._timer_step, self._outage), name="mainspring-timers"),
                asyncio.create_task(
                    supervised("maintenance", self._maintenance_step, self._outage), name="mainspring-maintenance"
                ),
                asyncio.create_task(
                    supervised(unknown_tasks.LOOP, self._unknown.step, self._outage), name="mainspring-unknown-tasks"
                ),
            ]
            self._has_joined.set()
            try:
                await self._until_stopped(loops)
                log.info("worker_stopping", worker=self.id, running=self._slots, grace=self.settings.grace)
                await self._claim_finished()
                await self._drain()
            finally:  # also if we are cancelled: no loop may claim for a worker that has left
                for task in loops:
                    task.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
        if self._exits_stuck:
            raise WorkerStuck

    async def _until_stopped(self, loops: Sequence[asyncio.Task[None]]) -> None:
        """Wait for `stop`. Raise if a loop ends before that: without it the worker would look alive and do nothing."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            ended, _ = await asyncio.wait([stopping, *loops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in ended - {stopping}:
            msg = f"worker {self.id}: its task {task.get_name()} ended unexpectedly"
            raise RuntimeError(msg) from (None if task.cancelled() else task.exception())

    async def __aenter__(self) -> Self:
        """Serve in the background of the running event loop. When this returns, the worker has joined and claims jobs.

        While the database is away, this waits for it. A store that cannot be used at all is an error at once.
        """
        if self._background is not None or self._stopping.is_set():
            msg = f"worker {self.id} is serving or has stopped; make another one with app.worker(…)"
            raise ConfigurationError(msg)
        self._background = Background(self.id, self.serve())
        await self._background.begun(self._has_joined)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop; running jobs have the grace to finish. If the worker died, raise why, unless the block raised."""
        assert self._background is not None  # noqa: S101 - set by __aenter__
        self.stop()
        try:
            await self._background.ended()
        except Exception:
            if kind is None:  # else the block's own exception is raised; this one is in the log
                raise

    async def drain(self) -> int:
        """Run all due jobs, and those that become due by running them; return the number of runs."""
        runs = 0
        async with self.draining() as run_due:
            while jobs := (await run_due()).jobs:
                runs += len(jobs)
        return runs

    @contextlib.asynccontextmanager
    async def draining(self) -> AsyncIterator[Callable[[], Awaitable[Claims]]]:
        """Yield a function that runs one claim's worth of due jobs. If none are due, it says when the next one is."""
        self._prepare()
        await self._join()
        async with self._joined():
            await self._reconcile()
            loops = [
                asyncio.create_task(
                    supervised("progress", self._progress.step, self._outage), name="mainspring-progress"
                ),
                asyncio.create_task(supervised("gate", self._gate.step, self._outage), name="mainspring-gate"),
            ]
            try:
                yield self._run_due
            finally:
                for task in loops:
                    task.cancel()

    async def _run_due(self) -> Claims:
        next_timer = await self.app.timers.run_due()
        claims = await self._claim(self.settings.concurrency)
        if claims.suspects and not claims.jobs:
            claims = await self._claim_suspect()
        if claims.jobs:
            self._take(claims.jobs)
            await self._fill_chunks(claims)
        self._chunker.flush()
        await self._idle.wait()
        await self._acks.flush()
        await self._after_ack.settle()
        await self.app.guards.settled()  # then the jobs that they have woken are due
        await self._progress.write()
        await self._unknown.look()
        if not claims.jobs:
            claims.next_due = min((at for at in (claims.next_due, next_timer) if at is not None), default=None)
        return claims

    async def _fill_chunks(self, claims: Claims) -> None:
        """Claim more due jobs to fill the chunks. Then they start even if not full, as more may never come."""
        await self._admissions.settled()
        while self._chunker.missing and len(claims.jobs) < MAX_CHUNK_SIZE:  # the jobs may enqueue each other for ever
            more = await self._claim(self._chunker.missing)
            if not more.jobs:
                break
            self._take(more.jobs)
            claims.jobs += more.jobs
            await self._admissions.settled()

    def _prepare(self) -> None:
        """Create what belongs to the running event loop."""
        self._wake, self._room, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._claiming = asyncio.Lock()
        self._some_due, self._refreshed_at = asyncio.Event(), float("-inf")
        self._state_changed = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self._slot_pool = SlotPool(self.settings.concurrency, self._buffer, self._execute)
        self._chunker = Chunker(self._post)
        self._progress = Progress(self.store, self._reporter, self._held)
        self._gate = self._new_gate()
        if self._stopping.is_set():
            self._gate.shut()
        self._executor = Executor(
            self.app, self.id, self._progress, processes=self.settings.child_processes, may_start=self._may_start
        )
        self._acks = Acks(self.store, self.settings.ack_delay, self._confirmed, self._outage)
        self._after_ack = AfterAck(self.app)
        self._admissions = Admissions(
            self.app,
            self._after_ack,
            let_in=self._let_in,
            turn_away=self._turn_away,
            hand_back=self._hand_back,
            may_wait=lambda: self._serving and not self._stopping.is_set(),
        )
        self._heartbeat = Heartbeat(
            self.store, self.id, self.settings.heartbeat_interval, self._tokens, self._on_pulse, outage=self._outage,
            stuck=lambda: self._stuck.slots,
        )  # fmt: skip
        self._maintenance = Maintenance(
            self.app, self._reporter, self._after_ack, self._stopping, beaten_at=lambda: self._heartbeat.beaten_at
        )
        self._unknown = unknown_tasks.UnknownTasks(self.app, self.id, self._outage)

    @contextlib.asynccontextmanager
    async def _joined(self) -> AsyncIterator[None]:
        self._heartbeat.start()
        acks = asyncio.create_task(self._acks.serve(), name="mainspring-acks")
        self.app.bus.emit(WorkerStarted(worker=self.id, queues=tuple(sorted(self._queues))))
        try:
            yield
        finally:
            for run in self._held.values():
                run.end(Stop.SHUTDOWN)
            await self._slot_pool.close()
            self._admissions.cancel()
            acks.cancel()
            await asyncio.gather(acks, return_exceptions=True)
            self._executor.close()
            await self._heartbeat.stop()
            with contextlib.suppress(StoreError):  # then the other workers will notice that this one is gone
                await self.store.leave(self.id)
            self.app.contact.forget(self.id)
            log.info("worker_stopped", worker=self.id, abandoned=self._abandoned)
            self.app.bus.emit(WorkerStopped(worker=self.id, released=self._released))
            await self.app.bus.flush()

    async def _join(self) -> bool:
        """Join the store, waiting while it is away; return False if told to stop meanwhile.

        A store that cannot be used at all is an error at once.
        """
        self._started_at = datetime.now(UTC)
        self._tasks = self._known_tasks()
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                await self.store.open()
                await self.store.join(self._info(), self._on_wake)
            except StoreUnavailable as error:
                self._outage.failed("join", error)
                await backoff.wait(unless=self._stopping)
            else:
                self._outage.worked("join")
                self._tell_of_start()
                return True
        self.app.contact.forget(self.id)
        return False

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(sorted(self._queues)),
            concurrency=self.settings.concurrency,
            heartbeat=self.settings.heartbeat_interval,
            tasks=tuple(sorted(self._tasks)),
            version=version("mainspring"),
            started_at=self._started_at,
        )

    def _known_tasks(self) -> frozenset[str]:
        return frozenset([*self.app.tasks, TASK_OF_BATCHES])

    async def _announce_tasks(self) -> None:
        """Tell the store of tasks that were defined, or removed, since this worker joined."""
        if (tasks := self._known_tasks()) != self._tasks:
            self._tasks = tasks
            await self.store.join(self._info(), self._on_wake)

    def _tell_of_start(self) -> None:
        tasks, queues = sorted(self.app.tasks), sorted(self._queues)
        log.info("worker_started", worker=self.id, queues=queues, tasks=tasks, store=self.store.url)
        if not tasks:
            advice = "import the modules that declare tasks where the application is made"
            log.warning("worker_has_no_tasks", worker=self.id, advice=advice)

    def _on_outage(self, error: StoreError | None) -> None:
        """Pass on that an outage has begun, or is over (None). Any thread may call it; subscribers run on our loop."""
        contact = self.app.contact
        tell = partial(contact.answered, self.id) if error is None else partial(contact.failed, self.id, error)
        with contextlib.suppress(RuntimeError):  # our loop is closed
            self._loop.call_soon_threadsafe(tell)

    # -- timers ---------------------------------------------------------------------------------

    async def _timer_step(self) -> None:
        """Fire what is due. Other workers do the same; the second one finds that it is done."""
        self._some_due.clear()
        if self._loop.time() - self._refreshed_at >= REFRESH_EVERY:
            await self._reconcile()
            await self.app.timers.refresh()
            self._refreshed_at = self._loop.time()
        await self._sleep_until(await self.app.timers.run_due(), self._some_due)

    async def _reconcile(self) -> None:
        """Write the schedules of the code to the store, once.

        While programs are being replaced, the last one to start has the newest code, and the others must not undo it.
        """
        if not self._reconciled:
            await self.app.schedules.reconcile()
            self._reconciled = True

    # -- claim ----------------------------------------------------------------------------------

    async def _claim_step(self) -> None:
        if self._stopping.is_set():
            await asyncio.sleep(LONGEST_SLEEP)
            return
        self._wake.clear()
        if self._suspects_in() == 0:
            await self._run_suspects()
        await self._wait_for_room()
        claims = await self._claim(self._free())
        self._solo.noticed(claims.suspects, self._loop.time())
        if claims.jobs:
            self._solo.others_came(self._loop.time())
            self._take(claims.jobs)
            await asyncio.sleep(0)  # let them start before the next claim
        else:
            pause = self._suspects_in()
            await self._sleep_until(claims.next_due, self._wake, LONGEST_SLEEP if pause is None else pause)

    def _suspects_in(self) -> float | None:
        return self._solo.due_in(self._loop.time(), idle=self._idle.is_set())

    async def _run_suspects(self) -> None:
        """Give the suspects a turn: wait until nothing else runs here, then run one after the other."""
        began, alone = self._loop.time(), False
        try:
            more = alone = await self._alone(self._solo.patience)
            while more:
                more = await self._run_suspect() and self._loop.time() - began < SoloTurns.TURN_LENGTH
        finally:
            self._solo.ended(began, self._loop.time(), alone=alone)

    async def _run_suspect(self) -> bool:
        """Run one suspect to its end. Return False if there is none, as another worker has taken it."""
        claims = await self._claim_suspect()
        if not claims.jobs:
            return False
        self._take(claims.jobs)
        await asyncio.sleep(0)
        self._chunker.flush()
        await self._idle.wait()  # meanwhile this worker claims nothing else
        await self._acks.flush()
        return True

    async def _claim(self, limit: int) -> Claims:
        return await self._ask(limit, solo=False)

    async def _claim_suspect(self) -> Claims:
        return await self._ask(1, solo=True)

    async def _ask(self, limit: int, *, solo: bool) -> Claims:
        """Claim jobs. A claim that is under way cannot be taken back; if we are cancelled, `leave` returns its jobs."""
        wanted = wants(
            self.settings.queues, strict=self.settings.strict, room=limit, in_hand=self._in_hand(), rng=self._random
        )
        async with self._claiming:
            if not wanted or limit <= 0 or self._stopping.is_set():
                return Claims([])
            await self._announce_tasks()
            began = since_boot()
            claims = await self.store.claim(self.id, wanted, limit=limit, solo=solo, tasks=self._tasks)
            self._outage.worked("claim")
            if claims.jobs and since_boot() - began > self.store.lease:
                self._hand_back_late(claims)
            if claims.unknown:
                self._unknown.met(claims.unknown)
            if claims.jobs and self._gate.stops_something:  # perhaps the store gave them out because a halt is over
                with contextlib.suppress(StoreError):
                    await self._gate.look()
            if not claims.jobs:
                self._chunker.claimed([], of=0)
            return claims

    def _hand_back_late(self, claims: Claims) -> None:
        """Start none of these jobs: this process was stopped meanwhile, and another worker may have taken them over."""
        for claim in claims.jobs:
            task = cast("Task[..., Any, Any]", self.app.task_named(claim.task))
            self._end(Run(claim, task, self._loop.time()), Stop.CROWDED)
        claims.jobs = []

    async def _alone(self, patience: float) -> bool:
        """Wait until nothing else runs here; return whether that is so. A suspect may kill all jobs of its process."""
        if not self._idle.is_set():
            await self._wait_idle(patience)
        if not self._idle.is_set():
            return False
        await self._acks.flush()  # if the process died, finished jobs that are not written would count as killed
        return self._idle.is_set()

    def _in_hand(self) -> Counter[str]:
        """Return how many jobs of each queue are buffered or running here; empty if no queue has a limit here."""
        return (
            Counter(run.claim.queue for run in (*self._held.values(), *self._detached)) if self._limited else Counter()
        )

    def _free(self) -> int:
        """Return how many more jobs this worker can use: in free slots, ahead of those, or to fill chunks."""
        singly = len(self._held) + len(self._detached) - self._chunker.together - self._admissions.standing_by
        room = self.settings.concurrency + self._prefetch.ahead - singly
        if self._buffer or singly - len(self._chunker) >= self.settings.concurrency:
            return room
        return max(room, self._chunker.lacking)

    async def _wait_for_room(self) -> None:
        """Wait until a slot is free or half of the prefetched jobs are used up, and the store keeps up with acks."""
        unwritten = self.settings.concurrency + self.settings.prefetch  # if the worker died, all these would run again
        while len(self._buffer) * 2 > self._prefetch.ahead or self._free() <= 0 or self._acks.unwritten > unwritten:
            self._room.clear()
            await self._room.wait()

    async def _sleep_until(self, due: Millis | None, wake: asyncio.Event, most: float = LONGEST_SLEEP) -> None:
        seconds = min(most, LONGEST_SLEEP)
        if due is not None:
            seconds = min(seconds, max(0.0, (due - self.store.clock.now()) / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()

    def _on_wake(self, wake: Wake) -> None:
        if Wake.JOBS in wake:
            self._wake.set()
        if Wake.CANCELLATIONS in wake:
            self._heartbeat.poke()
        if Wake.DOCUMENTS in wake:
            self._some_due.set()
        if Wake.HALTS in wake:
            self._gate.poke()
        if Wake.STATE in wake:
            self._state_changed.set()

    def _take(self, claims: list[Claim]) -> None:
        now = self._loop.time()
        guarded: list[Run] = []
        for_chunks: list[Run] = []
        concerned = self.app.guards.concern(claims)
        for claim in claims:
            task = self.app.task_named(claim.task)
            run = Run(claim, cast("Task[..., Any, Any]", task), now)
            if task is None:  # it was removed while the claim was under way; the next claim will not ask for it
                self._acks.add(run, outcomes.unknown_task(run, self.store.clock.now()))
                continue
            before, self._held[claim.id] = self._held.get(claim.id), run
            if before is not None:  # another worker took the job from us, and now we have claimed it again
                self._end(before, Stop.LOST)
                if before in self._running:
                    self._detached.add(before)
            if task.chunk is not None:
                for_chunks.append(run)
            if claim.id in concerned:
                run.guarded = True
                guarded.append(run)
            else:
                self._ready(run)
        self._chunker.claimed(for_chunks, of=len(claims))
        if guarded:
            self._admissions.admit(guarded)
        self._chunker.settle()
        self._slot_pool.feed()
        (self._idle.clear if self._held else self._idle.set)()

    def _ready(self, run: Run) -> None:
        if not self._gate.clear and (self._stopping.is_set() or self._gate.stops(run.claim.queue)):
            self._end(run, Stop.SHUTDOWN if self._stopping.is_set() else Stop.HALTED)
        elif run.task.chunk is None:
            self._buffer.append(run)
        else:
            self._chunker.add(run)

    def _post(self, pending: PendingChunk) -> None:
        self._buffer.append(pending)
        self._slot_pool.feed()

    def _let_in(self, runs: list[Run]) -> None:
        for run in runs:
            self._ready(run)
        self._chunker.settle()
        self._slot_pool.feed()

    def _turn_away(self, run: Run, refusal: Refusal) -> None:
        run.guarded, run.look_again, run.ended = False, refusal.look_again, True
        self._let_go(run)
        self._acks.add(run, refusal.outcome)

    def _hand_back(self, run: Run) -> None:
        self._end(run, Stop.CROWDED)

    # -- execute --------------------------------------------------------------------------------

    async def _execute(self, run: Run | PendingChunk, slot: asyncio.Task[None]) -> None:
        """Run one job in one slot, until its outcome is on the way to the store."""
        if isinstance(run, PendingChunk):
            await self._execute_chunk(run.take(), slot)
            return
        if run.guarded and run.claim.options is not None:
            await self._ask_guards_again([run])
        if since_boot() > self._gate.open_until and not self._may_begin(run):
            await self._end_unstartable([run])
        if run.ended:  # handed back while it waited
            return
        self._begin(run, slot)
        running.set(run.claim)
        try:
            if run.is_plain and not self._wrapped:  # a coroutine that needs nothing from us, as most are
                args, kwargs = run.task.payload.load(run.claim.payload)
                value = await run.task.function(*args, **kwargs)
            else:
                value = await self._executor.call(run)
        except BaseException as error:  # noqa: BLE001 - every exception decides the outcome
            outcome = self._raised(run, error)
        else:
            outcome = outcomes.returned(run, value, self.store.clock.now())
        self._finish(run, outcome)
        if slot.cancelling():  # also if the handler swallowed the cancellation
            await shed_cancellation(slot)
        if run.written is not None:
            await run.written

    async def _execute_chunk(self, runs: list[Run], slot: asyncio.Task[None]) -> None:
        """Run several jobs in one slot by one call of their handler, until their outcomes are on the way."""
        if any(run.guarded for run in runs):
            await self._ask_guards_again(runs)
        if not all(map(self._may_begin, runs)):
            await self._end_unstartable(runs)
        runs = [run for run in runs if not run.ended]
        if not runs:  # all of them were taken away while they waited for this slot
            self._room.set()
            return
        self._chunker.together += len(runs) - 1
        for run in runs:
            self._begin(run, slot)
        chunk = ChunkRun(runs, slot, self._executor.context)
        try:
            endings = chunk.returned(await self._executor.call_chunk(chunk))
        except BaseException as error:  # noqa: BLE001 - every exception decides the outcomes
            endings = chunk.raised(error)
        self._chunker.together -= len(runs) - 1
        for run, (value, failure) in endings:
            self._finish(run, self._ended(run, value, failure))
        if slot.cancelling():
            await shed_cancellation(slot)
        for run in runs:
            if run.written is not None:
                await run.written

    def _may_begin(self, run: Run) -> bool:
        return self._gate.permits(run.claim.queue) and not self._stopping.is_set()

    async def _end_unstartable(self, runs: list[Run]) -> None:
        """End the runs that may not start. If the last look at the halts is too old, look again first."""
        unsure = False
        if not self._stopping.is_set():
            try:
                await self._gate.refresh()
            except StoreError as error:
                self._outage.failed("gate", error)
                unsure = True
        for run in runs:
            if self._stopping.is_set():  # they were claimed before the worker was told to stop
                self._end(run, Stop.SHUTDOWN)
            elif unsure or self._gate.stops(run.claim.queue):
                self._end(run, Stop.CROWDED if unsure else Stop.HALTED)

    def _may_start(self, run: Run) -> bool:
        """Return whether a run that has begun may still call its handler. Any thread may ask."""
        return self._gate.permits(run.claim.queue) and (not run.guarded or self.app.guards.permits(run.claim))

    async def _ask_guards_again(self, runs: list[Run]) -> None:
        """End runs that passed their guards but may not start any more: a breaker opened, or they expired."""
        waiting = {run.claim.id: run for run in runs if run.guarded and not run.ended}
        claims = [run.claim for run in waiting.values()]
        try:
            refused = await self.app.guards.recheck(claims, self.store.clock.now())
        except Exception as error:  # noqa: BLE001 - whatever failed, the slot must go on
            log.warning("admission_failed", jobs=len(claims), error=f"{type(error).__name__}: {error}")
            for run in waiting.values():
                self._end(run, Stop.CROWDED)
            return
        for job_id, refusal in refused.items():
            if not waiting[job_id].ended:
                self._refuse_start(waiting[job_id], refusal)

    def _refuse_start(self, run: Run, refusal: Refusal) -> None:
        """End a run that passed its guards before. It stays guarded, so those guards are told that it has ended."""
        run.look_again, run.ended = refusal.look_again, True
        self._let_go(run)
        self._acks.add(run, refusal.outcome)

    def _ended(self, run: Run, value: Any, error: BaseException | None) -> Outcome | None:
        return self._raised(run, error) if error is not None else outcomes.returned(run, value, self.store.clock.now())

    def _begin(self, run: Run, slot: asyncio.Task[None]) -> None:
        self._running.add(run)
        run.slot = slot
        run.started_at = self.store.clock.now()
        if self.app.bus.wants(JobStarted):
            self._reporter.started(run.claim, run.started_at)
        if len(self._buffer) * 2 <= self._prefetch.ahead:
            self._room.set()

    def _raised(self, run: Run, error: BaseException) -> Outcome | None:
        if run.context is not None and run.context.effects.committed:
            shown = f"{type(error).__name__}: {outcomes.message_of(error)}"
            log.warning("raised_after_commit", job_id=run.claim.id, task=run.claim.task, error=shown)
        if run.guarded:
            run.error = TimeoutError() if run.stop is Stop.TIMEOUT else error
        try:
            return outcomes.raised(run, error, self.store.clock.now())
        except Exception as broken:  # noqa: BLE001 - say of the user's own subclass of Wish; the slot must survive it
            return outcomes.failed(run, broken, self.store.clock.now())

    # -- finish ---------------------------------------------------------------------------------

    def _finish(self, run: Run, outcome: Outcome | None) -> None:
        self._running.discard(run)
        if run.stop is not None:
            self._detached.discard(run)
            self._stuck.ended(run)
        if run.ended:  # it was abandoned, and handed back already
            return
        run.ended = True
        self._let_go(run)
        if outcome is None:
            if run.guarded:
                self._after_ack.ended(run.claim)
            return
        if run.context is not None and run.context.effects.committed:
            if run.guarded:
                self._after_ack.ended(run.claim, Ending(outcome, run.error))
            self._reporter.ended(run, outcome, Status.COMPLETED)
            self._reporter.lost_result(run, outcome)
            self._tell_of(run.context.effects.enqueued)
            return
        sync = run.task.ack == "sync"
        if sync:
            run.written = self._loop.create_future()
        self._acks.add(run, outcome, urgent=sync or not self._held)

    def _let_go(self, run: Run) -> None:
        if self._held.get(run.claim.id) is run:  # else the worker holds a newer claim of the same job
            del self._held[run.claim.id]
        if run.context is not None:
            self._progress.forget(run.claim.id)
        if not self._held:
            self._idle.set()
        if not self._buffer:
            self._room.set()
        if self._limited:
            self._wake.set()  # its queue may have been at its limit, so that the last claim left it out

    def _confirmed(self, written: list[tuple[Run, Outcome]], statuses: Sequence[Status | None]) -> None:
        self._prefetch.finished(len(written), self._loop.time())
        self._room.set()
        all_wanted = self._reporter.hears_success()
        for (run, outcome), status in zip(written, statuses, strict=True):
            if all_wanted or status is not Status.COMPLETED:
                self._reporter.ended(run, outcome, status)
                self._released += run.stop is Stop.SHUTDOWN and outcome.move is Move.RELEASE
            if outcome.follow_ups and status is not None:
                self._tell_of(outcome.follow_ups)
            if run.guarded:
                self._after_ack.ended(run.claim, Ending(outcome, run.error))
            if status is Status.CANCELLED and (run.claim.token > 1 or (run.durable and run.durable.spawned)):
                self._after_ack.cancelled(run.claim.id)
            if run.look_again is not None and outcome.waits_for is not None and status is Status.SUSPENDED:
                self._after_ack.suspended(outcome.waits_for, run.look_again)
            if run.written is not None and not run.written.done():
                run.written.set_result(None)

    def _tell_of(self, follow_ups: Sequence[NewJob]) -> None:
        """Announce follow-up jobs. Leave out those with a dedupe key: an ack does not say whether they were created."""
        created = [job for job in follow_ups if job.dedupe_key is None]
        self.app.pipeline.announce(created, [Inserted(job.id, created=True) for job in created])

    # -- heartbeat ------------------------------------------------------------------------------

    def _tokens(self) -> dict[str, int]:
        """Return the claims to ask about: those we hold, and those of stuck runs that no other worker has taken yet."""
        stuck = {run.claim.id: run.claim.token for run in list(self._stuck.runs) if run.stop is not Stop.LOST}
        return stuck | {job_id: run.claim.token for job_id, run in list(self._held.items())}

    def _on_pulse(self, pulse: Pulse, asked: Mapping[str, int]) -> None:
        for job_id in pulse.lost:
            if (run := self._claimed(job_id, asked[job_id])) is not None:
                self._end(run, Stop.LOST)
        for job_id, reason in pulse.cancelled.items():
            if (run := self._claimed(job_id, asked[job_id])) is not None:
                self._end(run, Stop.CANCEL, reason)
        if self.app.bus.wants(WorkerHeartbeat):
            self.app.bus.emit(
                WorkerHeartbeat(worker=self.id, running=self._slots, halted=self._gate.halted, stuck=self._stuck.slots)
            )

    def _claimed(self, job_id: str, token: int) -> Run | None:
        run = self._held.get(job_id)
        return run if run is not None and run.claim.token == token else self._stuck.find(job_id, token)

    def _end(self, run: Run, stop: Stop, reason: str = "") -> None:
        """Stop a run, wherever it is. One that has not started never will."""
        run.end(stop, reason)
        if run.slot is None and not run.ended:
            if not self._chunker.discard(run):
                with contextlib.suppress(ValueError):  # a slot has just taken it out to start it
                    self._buffer.remove(run)
            run.ended = True
            self._let_go(run)
            outcome = outcomes.raised(run, asyncio.CancelledError(), self.store.clock.now())
            if outcome is not None:
                self._acks.add(run, outcome)
            elif run.guarded:
                self._after_ack.ended(run.claim)

    # -- halts and breakers ---------------------------------------------------------------------

    def _new_gate(self) -> Gate:
        return Gate(
            self.store, self.id, closed=self._hand_back_halted, settled=self._handed_back,
            confirm=lambda: self._heartbeat.confirm(self.store.lease),
        )  # fmt: skip

    def _hand_back_halted(self) -> None:
        """Hand back halted jobs that have not started, wherever they wait: in the buffer, a chunk, or at a guard."""
        for run in list(self._held.values()):
            if (run.slot is None or run.waits_for_child) and self._gate.stops(run.claim.queue):
                self._end(run, Stop.HALTED)

    async def _handed_back(self) -> None:
        """Return when the store has taken back all halted jobs, including those of a claim that was under way."""
        await self._claim_finished()
        await self._acks.flush()

    async def _breakers_step(self) -> None:
        """Look at breakers that another process has opened or closed."""
        await self._state_changed.wait()
        self._state_changed.clear()
        await self.app.breakers.refresh()

    # -- maintenance ----------------------------------------------------------------------------

    async def _maintenance_step(self) -> None:
        if self._maintenance.clock_jumped():
            self._wake.set()
            self._some_due.set()
        self._hand_back_stale()
        self._look_for_stuck()
        await self._maintenance.look_after_others(self.settings.maintenance_interval)
        self._outage.worked("maintenance")
        await asyncio.sleep(self.settings.maintenance_interval)

    def _hand_back_stale(self) -> None:
        """Hand back jobs that were claimed ahead and cannot start soon, so that other workers can run them.

        To the store, they look as if they ran.
        """
        before = self._loop.time() - MAX_BUFFER_WAIT
        singly = (run for run in self._buffer if isinstance(run, Run))
        waiting = [*singly, *(run for run in self._held.values() if run.waits_for_child)]
        for run in [*(run for run in waiting if run.claimed_at < before), *self._chunker.stale(before)]:
            self._end(run, Stop.CROWDED)
            self._prefetch.overestimated()

    # -- stuck slots ----------------------------------------------------------------------------

    @property
    def _slots(self) -> int:
        """Return how many jobs are in slots; each job of a chunk counts."""
        return len(self._running)

    def _look_for_stuck(self) -> None:
        """Let go of jobs whose slots are stuck, so that the worker can stop or run a suspect without them.

        Until they end, they still count as slots in use and against the limit of their queue.
        """
        for run in self._stuck.look(self._running, time.monotonic()):
            self._detached.add(run)
            if self._held.get(run.claim.id) is run:
                del self._held[run.claim.id]
        if not self._held:
            self._idle.set()
        share = self.settings.exit_when_stuck
        if share is not None and self._stuck.slots >= share * self.settings.concurrency and self._serving:
            self._exit_stuck()

    def _exit_stuck(self) -> None:
        if not self._stopping.is_set():
            log.error(
                "worker_exits_stuck", worker=self.id, stuck=self._stuck.slots, slots=self.settings.concurrency,
                exit_code=EXIT_STUCK, advice="its supervisor starts it again; the lines slot_stuck say where it hangs",
            )  # fmt: skip
            self._exits_stuck = True
            self._begin_stopping()

    # -- drain ----------------------------------------------------------------------------------

    async def _claim_finished(self) -> None:
        """Wait for the answer of a claim that is under way."""
        async with self._claiming:
            await asyncio.sleep(0)

    async def _drain(self) -> None:
        """Hand back what has not started, wait for the rest within the grace, then stop and hand back what is left."""
        for run in [*(run for run in self._buffer if isinstance(run, Run)), *self._chunker.waiting]:
            self._end(run, Stop.SHUTDOWN)
        await self._wait_idle(self.settings.grace, unless=self._stop_now)
        for run in list(self._held.values()):
            self._end(run, Stop.SHUTDOWN)
        if self._held:
            await self._wait_idle(STOP_TIMEOUT)
        for run in [*self._held.values(), *self._detached]:
            self._abandon(run)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._acks.flush()
                await self._after_ack.settle()
                await self.app.guards.settled()

    async def _wait_idle(self, seconds: float, unless: asyncio.Event | None = None) -> None:
        waiting = [asyncio.ensure_future(self._idle.wait())]
        if unless is not None:
            waiting.append(asyncio.ensure_future(unless.wait()))
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()

    def _abandon(self, run: Run) -> None:
        """Leave behind a handler that does not stop. The process is about to end, and its threads with it."""
        log.warning("thread_abandoned", job_id=run.claim.id, task=run.claim.task, worker=self.id)
        self._abandoned += 1
        self._stuck.forget(run)
        outcome = outcomes.raised(run, asyncio.CancelledError(), self.store.clock.now())
        run.ended = True
        self._let_go(run)
        if outcome is not None:
            self._acks.add(run, outcome)


def end_process(worker: str, exit_code: int = EXIT_ABANDONED) -> None:
    """End a process that is held up by what handlers left behind, or by a store that never answers."""
    log.warning("left_behind", worker=worker, threads=threading.active_count())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
