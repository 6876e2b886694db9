"""The worker: makes its parts, joins the store, keeps its loops running, and stops in order.

`serve` is the table of contents. The way of a job begins at `Intake.step`; the package's docstring lists the parts that
it passes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, Self, Unpack

from mainspring import subscribers
from mainspring.errors import ConfigurationError, WorkerStuck
from mainspring.events import WorkerStarted, WorkerStopped
from mainspring.live_settings import FRESH_FOR
from mainspring.log import get_log, worker_id
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Claims, Wake
from mainspring.worker import publication, unknown_tasks, unreadable_jobs
from mainspring.worker.executor import Executor
from mainspring.worker.outage import sleep_until, supervised_loops
from mainspring.worker.parts import Parts
from mainspring.worker.program import EXIT_ABANDONED, EXIT_STUCK, Background, Program
from mainspring.worker.run import Stop
from mainspring.worker.settings import WorkerOptions, WorkerSettings

log = get_log("mainspring.worker")

REFRESH_EVERY = 600.0  # seconds between checks whether schedules are as the code and tzdata say
STOP_TIMEOUT = 3.0  # seconds that stopped handlers have to end, after the grace
WRITE_TIMEOUT = 3.0  # seconds that the store has to take their outcomes, after that


class HasRuntime(Protocol):
    """An application: `Mainspring`."""

    @property
    def runtime(self) -> Runtime: ...


class Worker:
    """`Worker(app, queues=["mail", "default"], concurrency=50).run()`; see WorkerSettings.

    In a program with its own event loop: `async with Worker(app):`, or `await Worker(app).serve()`.
    """

    def __init__(
        self, app: HasRuntime, settings: WorkerSettings | None = None, **options: Unpack[WorkerOptions]
    ) -> None:
        if settings is not None and options:
            msg = f"give settings or {', '.join(options)}, not both: the settings say everything"
            raise ConfigurationError(msg)
        self.runtime = app.runtime
        self.settings = settings or WorkerSettings.of(**options)
        self.id = self.settings.id
        self._make_executor: Callable[..., Executor] = Executor
        self._parts: Parts | None = None  # made when the worker starts, for the running event loop
        self._stopping, self._stop_now = asyncio.Event(), asyncio.Event()  # a worker that has stopped is done
        self._told_to_stop = self._exits_stuck = False
        self._abandoned = 0  # handlers that did not end
        self._reconciled = False
        self._refreshed_at = float("-inf")  # when the timers were last compared with the code
        self._has_joined = asyncio.Event()
        self._background: Background | None = None  # set while the worker serves by `async with`

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, then finish running jobs within the grace. A second signal stops at once.

        Return the exit code for the process. What handlers leave behind, such as threads of `asyncio.to_thread` or
        coroutines that swallow their cancellation, gets a moment to end. Then the process ends without it.
        """
        return Program(self).run()

    @property
    def exit_code(self) -> int:
        if self._exits_stuck:
            return EXIT_STUCK
        return EXIT_ABANDONED if self._abandoned else 0

    # -- serve ----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Work until `stop` is called. Raise WorkerStuck if `exit_when_stuck` ended the worker."""
        parts = self._prepare()
        worker_id.set(self.id)
        if not await parts.membership.join(unless=self._stopping):
            return
        parts.admission.may_stand_by = True
        services = self.runtime.subscribers.services_for(self._stopping)
        steps = {
            "claim": parts.intake.step,
            "after-ack": parts.after_ack.step,
            "progress": parts.progress.step,
            "gate": parts.gate.step,
            "state": self._state_step,
            "timers": self._timer_step,
            "maintenance": self._maintenance_step,
            unknown_tasks.LOOP: parts.unknown_tasks.step,
            unreadable_jobs.LOOP: parts.unreadable.step,
            publication.LOOP: parts.publication.step,
            **{service.name: service.step for service in services},
        }
        async with self._joined(), supervised_loops(steps, parts.outage) as loops:
            self._has_joined.set()
            await self._until_stopped(loops)
            await asyncio.gather(self._drain(), subscribers.finish(services, self.settings.grace, self._stop_now))
        if self._exits_stuck:
            raise WorkerStuck

    def _prepare(self) -> Parts:
        """Make what belongs to the running event loop, and what jobs would otherwise wait for."""
        for task in self.runtime.tasks.values():
            _ = task.payload  # imports Pydantic, if no other task did
        self._some_due, self._state_changed = asyncio.Event(), asyncio.Event()
        self._parts = Parts(self.runtime, self.settings, self._stopping, self._on_wake, self._make_executor)
        if self._stopping.is_set():
            self._parts.gate.shut()
        return self._parts

    @property
    def parts(self) -> Parts:
        assert self._parts is not None  # noqa: S101 - made by `_prepare`
        return self._parts

    @contextlib.asynccontextmanager
    async def _joined(self) -> AsyncIterator[None]:
        """Work as a member of the store, then leave it."""
        parts = self.parts
        parts.heartbeat.start()
        acks = asyncio.create_task(parts.acker.serve(), name="mainspring-acks")
        self.runtime.live_runs[self.id] = parts.runs
        self.runtime.bus.emit(WorkerStarted(worker=self.id, queues=tuple(parts.membership.queues)))
        try:
            yield
        finally:
            for run in parts.runs.held.values():
                run.end(Stop.SHUTDOWN)
            await parts.slots.close()
            parts.admission.cancel()
            acks.cancel()
            await asyncio.gather(acks, return_exceptions=True)
            parts.executor.close()
            await parts.heartbeat.stop()
            await parts.membership.leave()
            del self.runtime.live_runs[self.id]
            log.info("worker_stopped", worker=self.id, abandoned=self._abandoned)
            self.runtime.bus.emit(WorkerStopped(worker=self.id, released=parts.after_ack.released))
            await self.runtime.bus.flush()

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

    # -- step by step ---------------------------------------------------------------------------

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
        parts = self._prepare()
        await parts.membership.join(unless=self._stopping)
        async with self._joined():
            await self._reconcile()
            await self.runtime.recovery.begin()
            steps = {"progress": parts.progress.step, "gate": parts.gate.step}
            async with supervised_loops(steps, parts.outage):
                yield self._run_due

    async def _run_due(self) -> Claims:
        parts = self.parts
        next_timer = await self.runtime.timers.run_due()
        claims = await parts.intake.take_due()
        await parts.runs.idle.wait()
        await self._settle()  # then the jobs that features have woken are due
        await parts.unknown_tasks.look()
        if parts.unreadable.is_due:
            await parts.unreadable.write()
        if not claims.jobs:
            claims.next_due = min((at for at in (claims.next_due, next_timer) if at is not None), default=None)
        return claims

    async def _settle(self) -> None:
        """Return when the outcomes of all runs that have ended are written, and what follows from them is done."""
        await self.parts.acker.flush()
        await self.parts.after_ack.settle()
        await self.runtime.features.settled()

    # -- loops ----------------------------------------------------------------------------------

    def _on_wake(self, wake: Wake) -> None:
        """Wake the loops that have something to do. The store calls this."""
        if Wake.JOBS in wake:
            self.parts.intake.wake()
        if Wake.CANCELLATIONS in wake:
            self.parts.heartbeat.poke()
        if Wake.DOCUMENTS in wake:
            self._some_due.set()
        if Wake.HALTS in wake:
            self.parts.gate.poke()
        if Wake.STATE in wake:
            self._state_changed.set()

    async def _state_step(self) -> None:
        """Let the features read what another process has changed, such as a breaker that it opened or closed.

        The settings are read without a wake-up, too: the process that changed them may have died before it sent one.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_FOR):
                await self._state_changed.wait()
        if self._state_changed.is_set():
            self._state_changed.clear()
            await self.runtime.features.state_changed()
        try:
            await self.runtime.live_settings.read()
        finally:  # at once, as waking jobs may take long; and if this failed, another look may have read the settings
            self.parts.gate.obey_settings()
        await self.runtime.live_settings.act()

    async def _timer_step(self) -> None:
        """Fire what is due. Other workers do the same; the second one finds that it is done."""
        self._some_due.clear()
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at >= REFRESH_EVERY:
            if self.settings.schedules:
                await self._reconcile()
            await self.runtime.timers.refresh(schedules=self.settings.schedules)
            self._refreshed_at = now
        next_at = await self.runtime.timers.run_due(schedules=self.settings.schedules)
        await sleep_until(next_at, self.runtime.store.clock, self._some_due)

    async def _reconcile(self) -> None:
        """Write the schedules of the code to the store, once.

        While programs are being replaced, the last one to start has the newest code, and the others must not undo it.
        """
        if not self._reconciled:
            await self.runtime.schedules.reconcile()
            self._reconciled = True

    async def _maintenance_step(self) -> None:
        if self.parts.maintenance.clock_jumped():
            self._on_wake(Wake.JOBS | Wake.DOCUMENTS)
        self.parts.intake.hand_back_stale()
        self.parts.runs.look_for_stuck()
        self._exit_if_stuck()
        await self.parts.maintenance.look_after_others(self.settings.maintenance_interval)
        self.parts.outage.worked("maintenance")
        await asyncio.sleep(self.settings.maintenance_interval)

    def _exit_if_stuck(self) -> None:
        """Stop the worker if the share of stuck slots has reached `exit_when_stuck`."""
        share, stuck, slots = self.settings.exit_when_stuck, self.parts.runs.stuck.slots, self.settings.concurrency
        if share is not None and stuck >= share * slots and not self._stopping.is_set():
            log.error(
                "worker_exits_stuck", worker=self.id, stuck=stuck, slots=slots, exit_code=EXIT_STUCK,
                advice="its supervisor starts it again; the lines slot_stuck say where it hangs",
            )  # fmt: skip
            self._exits_stuck = True
            self._begin_stopping()

    # -- stop -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim no more jobs and let running ones end. A second call stops at once. Unfinished jobs are handed back."""
        if self._told_to_stop:
            self._stop_now.set()
        self._told_to_stop = True
        self._begin_stopping()

    @property
    def stops_now(self) -> bool:
        """Return whether it was told a second time to stop, and gives running jobs no more time."""
        return self._stop_now.is_set()

    def _begin_stopping(self) -> None:
        self._stopping.set()
        if self._parts is not None:
            self._parts.gate.shut()

    async def _drain(self) -> None:
        """Hand back what has not started, wait for the rest within the grace, then stop and hand back what is left."""
        runs = self.parts.runs
        log.info("worker_stopping", worker=self.id, running=len(runs.running), grace=self.settings.grace)
        await runs.claim_finished()
        for run in self.parts.admission.waiting:
            runs.end(run, Stop.SHUTDOWN)
        await runs.wait_idle(self.settings.grace, unless=self._stop_now)
        for run in list(runs.held.values()):
            runs.end(run, Stop.SHUTDOWN)
        if runs.held:
            await runs.wait_idle(STOP_TIMEOUT)
        for run in [*runs.held.values(), *runs.detached]:
            log.warning("thread_abandoned", job_id=run.claim.id, task=run.claim.task, worker=self.id)
            self._abandoned += 1
            runs.abandon(run)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._settle()
