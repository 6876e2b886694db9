"""An application under test: with another store, another clock, and jobs that run when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from mainspring.app import Mainspring
from mainspring.job import Inserted, Job, Status
from mainspring.stores.connect import connect
from mainspring.stores.protocol import Filter, Store
from mainspring.task import Task
from mainspring.testing.apart import in_thread, run_apart
from mainspring.testing.clock import ManualClock
from mainspring.testing.recorder import MAX_RUNS, Ran, Recorder, raise_failures, run_all
from mainspring.testing.store import KitStore
from mainspring.testing.time import VirtualTime
from mainspring.testing.waiting import Waiting

BeforeWaiting = Callable[[Job], None] | None
AfterInsert = Callable[[list[Inserted]], Awaitable[None]]


def manual(app: Mainspring, *, start: datetime | None = None, store: str | None = None, schedules: bool = True) -> Kit:
    """Record what the application enqueues in a `with testing.manual(app) as kit:` (or `async with`) block.

    Jobs run only when you call the kit. `start` is the virtual time at which the block begins; the default is the real
    time. `store` is the URL of a store to use instead of one in memory, for code with its own transactions:
    `f"sqlite:///{tmp_path}/jobs.db"`. With `schedules=False` declared schedules do not fire when time passes.
    """
    return Kit(app, start=start, store=store, schedules=schedules)


def inline(app: Mainspring, *, start: datetime | None = None) -> Kit:
    """Run each due job as soon as it is enqueued, within the enqueue, which raises what the handler raises.

    Jobs for later are only recorded. They run when virtual time reaches them (`await kit.time.advance(hours=1)`).
    """
    return InlineKit(app, start=start)


class Kit:
    """The test kit that `manual` and `inline` return."""

    def __init__(
        self,
        app: Mainspring,
        *,
        start: datetime | None = None,
        store: str | None = None,
        schedules: bool = True,
    ) -> None:
        self.app = app
        self._schedules = schedules
        self.clock = ManualClock(start or datetime.now(UTC))
        self.store: Store = KitStore(self.clock) if store is None else connect(store, self.clock)
        self.time = VirtualTime(self.clock, self._recorder)
        self._waiting = Waiting()
        self._before: list[tuple[Store, AfterInsert | None, BeforeWaiting]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.app!r} at {self.time.now():%Y-%m-%d %H:%M:%S}>"

    # -- the block ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        services, pipeline = self.app.runtime.services, self.app.runtime.pipeline
        self._before.append((services.store, pipeline.after_insert, services.before_waiting))
        services.store, pipeline.after_insert, services.before_waiting = self.store, None, self._waiting.refuse
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        run_apart(self.store.close())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.app.runtime.bus.flush()
        self._restore()
        await self.store.close()

    def _restore(self) -> None:
        services, pipeline = self.app.runtime.services, self.app.runtime.pipeline
        services.store, pipeline.after_insert, services.before_waiting = self._before.pop()

    # -- running ------------------------------------------------------------------------------

    async def drain(self, *, raise_errors: bool = False, limit: int = MAX_RUNS) -> list[Ran]:
        """Run the due jobs, and those that become due by them, one after the other; return the runs in order.

        A job that fails waits for its retry, as usual. With `raise_errors`, the errors of handlers are raised at the
        end. More than `limit` runs raise RuntimeError, because a job probably enqueues itself for ever.
        """
        recorder = self._recorder()
        async with recorder.draining() as run_due:
            await run_all(run_due, limit)
        if raise_errors:
            raise_failures(recorder.ran)
        return recorder.ran

    def drain_sync(self, *, raise_errors: bool = False, limit: int = MAX_RUNS) -> list[Ran]:
        """Do what `drain` does, in a test that is not a coroutine."""
        return run_apart(self.drain(raise_errors=raise_errors, limit=limit))

    def _recorder(self) -> Recorder:
        return Recorder(self.app, self._waiting, schedules=self._schedules)

    # -- tasks of other programs --------------------------------------------------------------

    def publish(self, *tasks: Task[..., Any, Any]) -> None:
        """Publish tasks of other programs, as their workers would, so that the code under test can enqueue them."""
        run_apart(self.app.published.publish(tasks, "testing"))

    # -- looking ------------------------------------------------------------------------------

    def jobs(self, task: Task[..., Any, Any] | str | None = None, *, status: Status | str | None = None) -> list[Job]:
        """Return all jobs of this block, or those of a task or in a status, in the order of their enqueues."""
        where = Filter(
            tasks=() if task is None else (task if isinstance(task, str) else task.name,),
            statuses=() if status is None else (Status(status),),
        )
        return run_apart(enqueued(self.app, where))


class InlineKit(Kit):
    """A kit that runs jobs as they are enqueued."""

    store: KitStore

    def __enter__(self) -> Self:
        super().__enter__()
        self.app.runtime.pipeline.after_insert = self._run_inserted
        return self

    async def _run_inserted(self, inserted: list[Inserted]) -> None:
        work = self._run([job.id for job in inserted if job.created])
        if self.app.runtime.services.portal.here():  # the handlers may need the portal themselves
            await asyncio.wrap_future(in_thread(work))
        else:
            await work

    async def _run(self, ids: list[str]) -> None:
        recorder = self._recorder()
        self.store.assign(recorder.id, ids)
        recorder.followed = lambda following: self.store.assign(recorder.id, following)
        async with recorder.draining() as run_due:
            await run_all(run_due)
        raise_failures(recorder.ran)


async def enqueued(app: Mainspring, where: Filter) -> list[Job]:
    """Return the jobs that match, oldest first."""
    return [job async for job in app.jobs.all(where)][::-1]
