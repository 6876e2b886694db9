"""The one route by which new jobs enter the store, whatever makes them.

Jobs come from an enqueue, from a batch or chain, from a transaction of the caller, as follow-ups or children of other
jobs, and from schedules and occasions. All of them pass the same stages:

prepare  each feature may change the jobs: delivery moves them to their hours, dependencies and fair tasks suspend them
commit   the caller's own write: an insert, or a commit in which the jobs are only a part
tell     the features get the ids of the created jobs; `JobCreated` and `JobDeduplicated` are emitted

Only a transaction of the caller (`connection=…`) differs: the pipeline does not learn whether and when it commits. So
it emits no events, and what depends on other jobs is decided when the job is claimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from mainspring.clock import to_datetime
from mainspring.errors import StoreError
from mainspring.events import JobCreated, JobDeduplicated
from mainspring.feature import Enqueue, Feature, Features
from mainspring.job import FreshJobs, Inserted, NewJob, Outcome, Status
from mainspring.live_settings import LiveSettings
from mainspring.log import get_log, running
from mainspring.meter import Via, enqueued_via
from mainspring.portal import run_at_once
from mainspring.projects import in_project_of_run
from mainspring.services import Services
from mainspring.stored_options import options_of
from mainspring.stores.documents import Bundle
from mainspring.stores.protocol import Immediate
from mainspring.trace import in_trace_of_run

log = get_log("mainspring.enqueue")


class Pipeline:
    """The route by which new jobs enter the store."""

    def __init__(self, services: Services, features: Features, settings: LiveSettings | None = None) -> None:
        self._services = services
        self._settings = settings or LiveSettings(services)
        self._features = features
        self.refuse: Callable[[], Awaitable[None]] | None = (
            None  # raises SystemHalted while another system rejects jobs
        )
        self.after_insert: Callable[[list[Inserted]], Awaitable[None]] | None = None  # set by the test kit

    # -- routes -------------------------------------------------------------------------------------

    async def insert(self, jobs: list[NewJob], connection: Any = None) -> list[Inserted]:
        """Insert jobs: in a transaction of their own, or in that of the caller's connection."""
        if self.refuse is not None:
            await self.refuse()
        if running.get() is not None:  # a handler enqueues
            jobs = in_project_of_run(in_trace_of_run(jobs))
        if connection is not None:
            jobs = await self._prepared_for_caller(await self._set(jobs, in_transaction=True))
            return await self._services.store.insert(jobs, connection)
        if self._settings.is_stale():  # as `_set` does, in fewer steps
            await self._settings.look()
        jobs = self._settings.applied(jobs)
        if self.concerns(jobs):
            inserted = await self.commit(Enqueue(jobs), self._services.store.insert)
        else:
            inserted = await self._services.store.insert(jobs)
            self.announce(jobs, inserted)
        if self.after_insert is not None:
            await self.after_insert(inserted)
        return inserted

    def insert_sync(self, jobs: list[NewJob], connection: Any = None) -> list[Inserted]:
        """Insert from code without an event loop."""
        if running.get() is not None:  # a handler enqueues
            jobs = in_project_of_run(in_trace_of_run(jobs))
        if connection is not None:
            return self._insert_into(connection, jobs)
        inline = not (self.refuse or self._is_heard() or self.after_insert or self._services.portal.here())
        if inline and self._settings.is_stale():
            self._services.run(self._settings.look())
        if inline and not self.concerns(jobs):
            self._services.open_sync()
            jobs = self._settings.applied(jobs)
            store = self._services.store
            if isinstance(store, Immediate) and (inserted := store.insert_now(jobs)) is not None:
                if self._services.bus.meter is not None:
                    self._meter(jobs, inserted)
                return inserted
        return self._services.run(self.insert(jobs))

    def _insert_into(self, connection: Any, jobs: list[NewJob]) -> list[Inserted]:
        """Insert in the caller's transaction and thread, since only there its synchronous connection can be used."""
        if not isinstance(self._services.store, Immediate):  # opening those might wait for the caller's own transaction
            self._services.open_sync()  # not by `run_at_once`: opening waits for the store
        if self.refuse is not None:
            self._services.run(self._refused(self.refuse))
        if self._may_look():
            self._services.run(self._settings.look())
        jobs = self._settings.applied(jobs)
        if self.concerns(jobs):
            jobs = self._services.run(self._prepared_for_caller(jobs))
        return run_at_once(self._services.store.insert(jobs, connection))

    async def _refused(self, refuse: Callable[[], Awaitable[None]]) -> None:
        await refuse()

    async def _set(self, jobs: list[NewJob], *, in_transaction: bool = False) -> list[NewJob]:
        """Return the jobs with the defaults that are set at run time. Look for changes if the last look is too old."""
        if self._may_look() if in_transaction else self._settings.is_stale():
            await self._settings.look()
        return self._settings.applied(jobs)

    def _may_look(self) -> bool:
        """Return whether to look at the settings while the caller has a transaction open.

        Opening an SQLite file could wait for that transaction, so look only if this process has done so before.
        """
        is_open = self._settings.was_read() or not isinstance(self._services.store, Immediate)
        return is_open and self._settings.is_stale()

    async def _prepared_for_caller(self, jobs: list[NewJob]) -> list[NewJob]:
        return (await self._prepared(Enqueue(jobs, in_transaction=True))).jobs

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        """Write documents, each bundle together with its jobs. None: a document had changed, so nothing was written."""
        enqueue = Enqueue([job for bundle in bundles for job in bundle.jobs], has_caller=False)
        if self.refuse is not None and enqueue.jobs:
            await self.refuse()
        before = enqueue.jobs
        enqueue.jobs = await self._set(before) if before else before
        concerned = self.concerns(enqueue.jobs)
        if concerned:
            await self._prepared(enqueue)
        if concerned or enqueue.jobs is not before:
            prepared = iter(enqueue.jobs)
            bundles = [replace(bundle, jobs=tuple(islice(prepared, len(bundle.jobs)))) for bundle in bundles]
        answers: list[list[Inserted] | None] = []
        try:
            answers = await self._services.store.write(bundles)
        finally:
            if enqueue.afterwards:
                await tell(enqueue, {job.id for inserted in answers for job in inserted or () if job.created})
        if enqueue.jobs and (self._services.bus.meter is not None or self._is_heard()):
            for bundle, inserted in zip(bundles, answers, strict=True):
                self.announce(bundle.jobs, inserted or [], "timer")
        return answers

    async def commit(
        self, enqueue: Enqueue, write: Callable[[list[NewJob]], Awaitable[list[Inserted]]]
    ) -> list[Inserted]:
        """Commit jobs by a write of the caller's."""
        enqueue.jobs = await self._set(in_project_of_run(in_trace_of_run(enqueue.jobs)))
        await self._prepared(enqueue)
        created: set[str] = set()
        try:
            inserted = await write(enqueue.jobs)
            created = {job.id for job in inserted if job.created}
        finally:  # also if the write failed, or the system accepts no jobs
            await tell(enqueue, created)
        self.announce(enqueue.jobs, inserted)
        return inserted

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """Write how runs ended, each in one commit with its follow-ups. The caller announces those."""
        following = [outcome for outcome in outcomes if outcome.follow_ups]
        if not following:
            return await self._services.store.ack(outcomes)
        jobs = self._settings.applied([job for outcome in following for job in outcome.follow_ups])
        enqueue = Enqueue(jobs, has_caller=False)
        await self._prepared(enqueue)
        prepared = iter(enqueue.jobs)
        for outcome in following:
            outcome.follow_ups = tuple(islice(prepared, len(outcome.follow_ups)))
        try:
            return await self._services.store.ack(outcomes)
        finally:
            await tell(enqueue, {job.id for outcome in following for job in outcome.inserted if job.created})

    # -- stages -------------------------------------------------------------------------------------

    def concerns(self, jobs: Sequence[NewJob]) -> bool:
        """Return whether a feature has something to do for one of the jobs."""
        if isinstance(jobs, FreshJobs):  # all have the same task and options; most jobs take this route
            return bool(jobs) and self._concerns(jobs[0].task, jobs[0].options)
        return any(self._concerns(*kind) for kind in kinds_of(jobs))

    def _concerns(self, task: str, options: str | None) -> bool:
        if options is None:  # of most jobs; a loop, because this is done at each enqueue and any() takes longer
            for feature in self._features.preparing:  # noqa: SIM110
                if task in feature.prepared_tasks:
                    return True
            return False
        return any(prepares(feature, task, options) for feature in self._features.preparing)

    async def _prepared(self, enqueue: Enqueue) -> Enqueue:
        kinds = kinds_of(enqueue.jobs)
        for feature in self._features.preparing:
            if any(prepares(feature, *kind) for kind in kinds):
                await self._prepare(feature, enqueue)
        return enqueue

    async def _prepare(self, feature: Feature, enqueue: Enqueue) -> None:
        """Let a feature prepare the jobs. An error is the caller's; without one, the feature decides at the claim.

        One job whose key function fails must not hold up all schedules that are due with it, or undo a finished run.
        """
        try:
            await feature.prepare(enqueue)
        except StoreError:
            raise
        except Exception as error:
            if enqueue.has_caller:
                raise
            log.warning("prepare_failed", feature=feature.option, error=f"{type(error).__name__}: {error}")

    def announce(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted], via: Via | None = None) -> None:
        """Count the jobs that the store has taken, and emit JobCreated or JobDeduplicated for them."""
        bus = self._services.bus
        if bus.meter is not None:
            self._meter(jobs, inserted, via)
        if not self._is_heard():
            return
        for job, entry in zip(jobs, inserted, strict=False):
            if entry.created:
                bus.emit(JobCreated(job_id=entry.id, task=job.task, queue=job.queue, run_at=self._due(job)))
            else:
                key = job.dedupe_key or options_of(job.options).get("newest", "")
                bus.emit(JobDeduplicated(job_id=entry.id, task=job.task, queue=job.queue, dedupe_key=key))

    def _meter(self, jobs: Sequence[NewJob], inserted: Sequence[Inserted], via: Via | None = None) -> None:
        if self._services.bus.meter is not None:
            from_handler: Via | None = None if running.get() is None else "job"
            self._services.bus.meter.enqueued(jobs, inserted, enqueued_via.get() or from_handler or via or "app")

    def _is_heard(self) -> bool:
        bus = self._services.bus
        return bus.wants(JobCreated) or bus.wants(JobDeduplicated)

    def _due(self, job: NewJob) -> datetime | None:
        """Return when the job is due; None means at once."""
        if job.run_at is not None:
            return to_datetime(job.run_at)
        return to_datetime(self._services.store.clock.now() + job.delay) if job.delay else None


def prepares(feature: Feature, task: str, options: str | None) -> bool:
    """Return whether the feature prepares jobs of this task with these stored options."""
    return task in feature.prepared_tasks or (options is not None and f'"{feature.option}"' in options)


def kinds_of(jobs: Sequence[NewJob]) -> set[tuple[str, str | None]]:
    """Return the tasks of the jobs, each with its stored options."""
    return {(job.task, job.options) for job in jobs}


async def tell(enqueue: Enqueue, created: Collection[str]) -> None:
    for told in enqueue.afterwards:
        await told(created)
