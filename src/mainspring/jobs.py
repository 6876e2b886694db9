"""`app.jobs`: read jobs and change them by hand. Each change is recorded in the audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from mainspring.clock import Length, check_moment, delay_of, duration, shown, to_millis
from mainspring.errors import (
    ConfigurationError,
    DedupeConflict,
    EditConflict,
    IllegalMove,
    InvalidPayload,
    JobNotFound,
    StepNotFound,
)
from mainspring.events import JobCancelled
from mainspring.feature import Enqueue
from mainspring.features.durable.feature import children_of, reason_of
from mainspring.features.durable.replay import refuse_sealed, replay_of, steps_before
from mainspring.features.durable.states import StepState, restartable, states_of
from mainspring.features.failures.storage import COLLECTION as FAILURE_GROUPS
from mainspring.ids import new_id
from mainspring.job import (
    Attempt,
    Inserted,
    Job,
    NewJob,
    Priority,
    PriorityName,
    Status,
    Step,
    TimelineEntry,
    check_queue,
)
from mainspring.json_text import problem_of_json
from mainspring.pipeline import Pipeline
from mainspring.queue_patterns import are_all_among
from mainspring.retry import problem_of_attempts
from mainspring.services import PUBLISHED_TASKS, Services, whoami
from mainspring.stores.documents import Bundle, By, Key, Listing, Note
from mainspring.stores.protocol import Action, CappedCount, Changed, ChangeResult, Completable, Edit, Filter, Page, Sort
from mainspring.stores.suggestions import beginning_with
from mainspring.why import Why, explain, inquire

MOST_GROUPS = 1000  # failure groups whose types of errors are read to complete one
PAGE_SIZE = 1000  # jobs per transaction of a change by filter
ALLOWED = {
    Action.CANCEL: "only jobs that have not finished can be cancelled",
    Action.RETRY: "only retrying and cancelled jobs and dead letters can be retried",
    Action.EDIT: "only waiting jobs can be edited or moved; to edit a finished job, pause its queue and retry it first",
    Action.DELETE: "cancel it first",
}


SortName = Literal["created", "due", "finished", "duration", "attempts"]


CompletableName = Literal["queue", "task", "tag", "error_type", "payload_key"]


def completable_of(name: str) -> Completable:
    if name in frozenset(Completable):
        return Completable(name)
    msg = f"{name!r} cannot be completed; use one of {', '.join(Completable)}"
    raise ConfigurationError(msg)


def check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str):
        msg = f"prefix is {shown(prefix)}; give the text with which the values begin, or leave it out for all values"
        raise ConfigurationError(msg)


def sort_of(name: str) -> Sort:
    if name in frozenset(Sort):
        return Sort(name)
    msg = f"jobs cannot be sorted by {name!r}; use one of {', '.join(Sort)}"
    raise ConfigurationError(msg)


class BulkOptions(TypedDict, total=False):
    """The options of a change by filter."""

    reason: str  # for the audit log
    actor: str | None  # for the audit log; default: the account and machine of this process
    dry_run: bool  # only count
    on_progress: Callable[[int], None]  # called with the number of jobs changed so far
    operation: str | None  # several changes with one id share one audit entry


class Jobs:
    """Read and change single jobs by id, or many by a `Filter`."""

    def __init__(self, services: Services, pipeline: Pipeline, within: tuple[str, ...] = ()) -> None:
        self.services = services
        self._pipeline = pipeline
        self._within = within  # patterns of queues: jobs of other queues do not exist here

    def within(self, *patterns: str) -> Self:
        """Return the same for the jobs of some queues: `app.jobs.within("p/acme/*", "mail")`.

        Every read and change passes the patterns to the store. A job of another queue is not found.
        """
        return type(self)(self.services, self._pipeline, Filter(within=patterns).within)

    def _narrowed(self, where: Filter | None) -> Filter:
        """Return the filter for these queues. One that is narrower already must stay so."""
        where = where or Filter()
        if not self._within:
            return where
        if where.within and not are_all_among(where.within, self._within):
            msg = f"within is {', '.join(where.within)}, which is not part of {', '.join(self._within)}"
            raise ConfigurationError(msg)
        return where if where.within else replace(where, within=self._within)

    # -- looking ------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job:
        found = await self.services.store.get([job_id], within=self._within)
        if not found:
            msg = f"there is no job {job_id}; it may have been removed by retention"
            raise JobNotFound(msg)
        return found[0]

    async def get_or_none(self, job_id: str) -> Job | None:
        """Return a job; None if there is none, or retention has removed it."""
        return next(iter(await self.services.store.get([job_id], within=self._within)), None)

    async def find(
        self,
        where: Filter | None = None,
        *,
        sort: Sort | SortName = "created",
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of jobs, newest first or sorted as asked. Pass the page's cursor to get the next page.

        The list by "due" has only jobs that wait; the lists by "finished" and "duration" have only finished jobs. A
        page whose `partial` is True ended early, because few of the jobs that were read match: go on by its cursor.
        """
        return await self.services.store.find(
            self._narrowed(where), sort=sort_of(sort), descending=descending, limit=limit, cursor=cursor
        )

    async def all(self, where: Filter | None = None) -> AsyncIterator[Job]:
        cursor: str | None = None
        while True:
            page = await self.find(where, limit=500, cursor=cursor)
            for job in page.jobs:
                yield job
            if (cursor := page.cursor) is None:
                return

    @overload
    async def count(self, where: Filter | None = None) -> int: ...
    @overload
    async def count(self, where: Filter | None = None, *, cap: int) -> CappedCount: ...
    async def count(self, where: Filter | None = None, *, cap: int | None = None) -> int | CappedCount:
        """Count jobs. With `cap`, count in bounded time: no further than `cap`; `exact` says whether that was all."""
        if cap is None:
            return await self.services.store.count(self._narrowed(where))
        return await self.services.store.count_up_to(self._narrowed(where), cap)

    async def complete(
        self, what: Completable | CompletableName, prefix: str = "", *, limit: int = 20, task: str | None = None
    ) -> list[str]:
        """Return real values that begin with the prefix: queues, tasks, tags, types of errors or keys in payloads.

        Tasks are also those of this program and those that workers have published, and types of errors also those of
        failure groups. Keys are those of the newest jobs. With `task`, they are those of its jobs among them, and its
        arguments if a worker has published it.
        """
        chosen = completable_of(what)
        check_prefix(prefix)
        found = await self.services.store.complete(chosen, prefix, limit=limit, task=task, within=self._within)
        return beginning_with(prefix, [*found, *await self._known_besides(chosen, prefix, limit, task)], limit)

    async def _known_besides(self, what: Completable, prefix: str, limit: int, task: str | None) -> list[str]:
        """Return values that are known although the newest jobs need not have them."""
        match what:
            case Completable.TASK if self._within:
                return list(self.services.tasks)
            case Completable.TASK:
                return [*self.services.tasks, *await self._published(prefix, limit)]
            case Completable.ERROR_TYPE if not self._within:
                groups = await self.services.store.browse(Listing(FAILURE_GROUPS, limit=MOST_GROUPS))
                return [str(json.loads(group.data)["error_type"]) for group in groups]
            case Completable.PAYLOAD_KEY if task is not None and not self._within:
                return await self._declared_keys(task)
            case _:
                return []

    async def _declared_keys(self, task: str) -> list[str]:
        """Return the arguments of a task that a worker has published.

        The newest jobs may all be of other tasks, and no index lists the jobs of a task.
        """
        found = await self.services.store.documents([Key(PUBLISHED_TASKS, "", task)])
        schema = json.loads(found[0].data).get("schema") if found else None
        return list(schema.get("properties", ())) if isinstance(schema, dict) else []

    async def _published(self, prefix: str, limit: int) -> list[str]:
        """Return the names of published tasks from the prefix on."""
        store = self.services.store
        found = await store.browse(Listing(PUBLISHED_TASKS, "", ("", prefix) if prefix else None, limit))
        itself = await store.documents([Key(PUBLISHED_TASKS, "", prefix)]) if prefix else []
        return [document.key.id for document in (*itself, *found)]

    async def for_target(self, target_type: str, target_id: str) -> list[Job]:
        return [job async for job in self.all(Filter(target_type=target_type, target_id=target_id))]

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self.services.store.attempts(job_id) if await self._is_here(job_id) else []

    async def timeline(self, job_id: str) -> list[TimelineEntry]:
        return await self.services.store.timeline(job_id) if await self._is_here(job_id) else []

    async def _is_here(self, job_id: str) -> bool:
        """Return whether the job is of these queues. What belongs to a job has no queue of its own."""
        return not self._within or await self.get_or_none(job_id) is not None

    async def why(self, job_id: str) -> Why:
        """Return why a job does not run (or that it runs, or how it ended), as text and as data."""
        return explain(await inquire(self.services, await self.get(job_id), self._within))

    async def steps(self, job_id: str) -> list[StepState]:
        """Return how far a durable function is: the steps it has done, and the declared steps still to come."""
        job = await self.get(job_id)
        steps = await self.services.store.steps(job_id)
        return states_of(job, steps, self.services.now())

    async def step_state(self, job_id: str) -> dict[str, str]:
        """Return the state of each step by its name: a short form of `steps`."""
        return {step.name: step.state for step in await self.steps(job_id)}

    # -- one job ------------------------------------------------------------------------------

    async def cancel(
        self, job_id: str, *, reason: str = "", actor: str | None = None, expect: str | None = None
    ) -> bool:
        """Cancel a waiting job at once and return True; ask a running job to stop and return False.

        `expect` is the `revision` of the job that you have read. If the job has changed since, nothing is done and
        EditConflict is raised. All methods that change one job take it.
        """
        changed = await self._change_one(Action.CANCEL, job_id, By(actor or whoami(), reason), expect)
        return bool(changed.ids)

    async def try_cancel(self, job_id: str, *, reason: str = "", actor: str | None = None) -> bool:
        """Cancel a waiting job, or ask a running one to stop. Return False if there is none, or it has finished."""
        try:
            await self.cancel(job_id, reason=reason, actor=actor)
        except (IllegalMove, JobNotFound):
            return False
        return True

    async def retry(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        reason: str = "",
        actor: str | None = None,
        expect: str | None = None,
    ) -> None:
        """Run a retrying or cancelled job or a dead letter now, with a full budget of attempts.

        A durable function continues where it was, at the step that failed. With `from_step` it continues at that step:
        the step and everything after it run again, and the results of earlier steps are kept.
        """
        if from_step is not None:
            self._require_step(await self.get(job_id), await self.services.store.steps(job_id), from_step)
        edit = None if from_step is None else Edit(from_step=from_step)
        changed = await self._change_one(Action.RETRY, job_id, By(actor or whoami(), reason), expect, edit)
        if changed.conflicts:
            msg = f"job {job_id} is not retried: {changed.conflicts[job_id]} is live and holds its dedupe key"
            raise DedupeConflict(msg)

    async def replay(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        payload: Any = None,
        reason: str = "",
        actor: str | None = None,
    ) -> str:
        """Run a finished job once more, as a new job; return its id.

        With `from_step`, a durable function begins at that step: the new job has the records of all steps, sleeps,
        waits and children before it. Without it, the new job has no records. `payload` replaces the arguments. The
        finished job stays as it is. The new job names it (`Job.replay_of`), is due now, and has no dedupe key.
        """
        job, by = await self.get(job_id), By(actor or whoami(), reason)
        if not job.finished:
            msg = f"job {job_id} is {job.status}; only finished jobs can be replayed: retry it, or cancel it first"
            raise IllegalMove(msg)
        if self._pipeline.refuse is not None:
            await self._pipeline.refuse()
        steps = await self.services.store.steps(job_id)
        if from_step is not None:
            self._require_step(job, steps, from_step)
        new = replay_of(job, from_step, None if payload is None else await self._checked(job_id, payload))
        recorded = steps_before(steps, from_step)
        refuse_sealed(new, recorded)
        detail = {"job": new.id, "of": job_id, "from_step": from_step, "edited": payload is not None}
        note = Note(by, "replay", detail)

        async def write(jobs: list[NewJob]) -> list[Inserted]:
            bundle = Bundle((), tuple(jobs), note, steps={new.id: recorded} if recorded else {})
            (inserted,) = await self.services.store.write([bundle])
            return inserted or []

        await self._pipeline.commit(Enqueue([new]), write)
        return new.id

    def _require_step(self, job: Job, steps: Sequence[Step], name: str) -> None:
        names = restartable(states_of(job, steps, self.services.now()))
        if name not in names:
            msg = f"job {job.id} has not done a step {name!r}; it has done: {', '.join(names) or 'none'}"
            raise StepNotFound(msg)

    async def delete(
        self, job_id: str, *, reason: str = "", actor: str | None = None, expect: str | None = None
    ) -> None:
        await self._change_one(Action.DELETE, job_id, By(actor or whoami(), reason), expect)

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: Length | None = None,
        reason: str = "",
        actor: str | None = None,
        expect: str | None = None,
    ) -> None:
        """Move a waiting job to another time; without one, to now."""
        if run_at is not None and delay is not None:
            msg = "give run_at or delay, not both"
            raise ConfigurationError(msg)
        edit = Edit(
            run_at=None if run_at is None else to_millis(check_moment(run_at, "run_at")),
            delay=delay_of(delay or 0) if run_at is None else None,
        )
        await self._change_one(Action.EDIT, job_id, By(actor or whoami(), reason), expect, edit)

    async def edit(
        self,
        job_id: str,
        *,
        payload: Any = None,
        priority: PriorityName | Priority | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        reason: str = "",
        actor: str | None = None,
        expect: str | None = None,
    ) -> None:
        """Change a waiting job. If its task is registered here, the new payload is checked first."""
        edit = Edit(
            payload=None if payload is None else await self._checked(job_id, payload),
            priority=None if priority is None else Priority.parse(priority),
            queue=None if queue is None else check_queue(queue),
            max_attempts=max_attempts,
        )
        if max_attempts is not None and (problem := problem_of_attempts(max_attempts)):
            raise ConfigurationError(problem)
        await self._change_one(Action.EDIT, job_id, By(actor or whoami(), reason), expect, edit)

    async def _checked(self, job_id: str, payload: Any) -> str:
        try:
            text = json.dumps(payload, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the payload is not JSON: {error}"
            raise InvalidPayload(msg) from error
        if problem := problem_of_json(text, payload):
            msg = f"the payload cannot be kept: {problem}"
            raise InvalidPayload(msg)
        task = self.services.tasks.get((await self.get(job_id)).task)
        return text if task is None else task.payload.check(text)

    async def _change_one(
        self, action: Action, job_id: str, by: By, expect: str | None, edit: Edit | None = None
    ) -> Changed:
        where = self._narrowed(Filter(ids=(job_id,)))
        changed = await self.services.store.change(action, where, by, edit=edit, expect=expect)
        if not (changed.ids or changed.requested or changed.conflicts):
            job = await self.get(job_id)
            if changed.stale or expect not in {None, job.revision}:
                msg = f"job {job_id} was changed since it was read; it is {job.status} now; read it again"
                raise EditConflict(msg)
            msg = f"job {job_id} is {job.status}: it cannot be changed by {action}; {ALLOWED[action]}"
            raise IllegalMove(msg)
        await self.follow(action, changed, by)
        return changed

    # -- many ---------------------------------------------------------------------------------

    async def cancel_where(self, where: Filter, **options: Unpack[BulkOptions]) -> ChangeResult:
        """Cancel every job that matches the filter; with `dry_run=True` only count them."""
        return await self._change_many(Action.CANCEL, where, **options)

    async def retry_where(self, where: Filter, **options: Unpack[BulkOptions]) -> ChangeResult:
        return await self._change_many(Action.RETRY, where, **options)

    async def delete_where(self, where: Filter, **options: Unpack[BulkOptions]) -> ChangeResult:
        return await self._change_many(Action.DELETE, where, **options)

    async def purge_dead(self, older_than: Length, **options: Unpack[BulkOptions]) -> ChangeResult:
        """Delete jobs that became dead letters longer ago than this."""
        moment = self.services.now() - timedelta(milliseconds=duration(older_than))
        return await self.delete_where(self.dead(Filter(finished_before=moment)), **options)

    @staticmethod
    def dead(where: Filter | None = None) -> Filter:
        """Return the filter for dead letters, or for those that match `where`: `dead(Filter(queues=("mail",)))`."""
        return replace(where or Filter(), statuses=(Status.DEAD_LETTER,))

    async def _change_many(
        self,
        action: Action,
        where: Filter,
        *,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _count: None,
        operation: str | None = None,
    ) -> ChangeResult:
        """Change jobs page by page, so that other writers wait little. The audit log shows them as one operation."""
        where = self._narrowed(where)
        by, result, cursor = By(actor or whoami(), reason, operation or new_id()), ChangeResult(), None
        while True:
            changed = await self.services.store.change(
                action, where, by, limit=PAGE_SIZE, cursor=cursor, dry_run=dry_run
            )
            result.changed += len(changed.ids)
            result.requested += len(changed.requested)
            result.conflicts.update(changed.conflicts)
            on_progress(result.count)
            if not dry_run:
                await self.follow(action, changed, by)
            if (cursor := changed.cursor) is None:
                return result

    async def follow(self, action: Action, changed: Changed, by: By) -> None:
        """Emit the events of a change that is written, and cancel the children of cancelled jobs."""
        if action is not Action.CANCEL or not changed.ids:
            return
        jobs = await self.services.store.get(changed.ids)
        if self.services.bus.wants(JobCancelled):
            for job in jobs:
                self.services.bus.emit(JobCancelled(job_id=job.id, task=job.task, queue=job.queue, reason=by.reason))
        await self.cancel_children([job.id for job in jobs if job.token > 0], by.actor)  # others never ran

    async def cancel_children(self, parents: Sequence[str], actor: str) -> None:
        """Cancel the children of jobs that were cancelled, and in turn the children of those, in whatever queues."""
        everywhere = Jobs(self.services, self._pipeline)
        for parent in parents:
            children = await children_of(self.services.store, parent)
            for start in range(0, len(children), PAGE_SIZE):
                some = Filter(ids=tuple(children[start : start + PAGE_SIZE]))
                await everywhere.cancel_where(some, reason=reason_of(parent), actor=actor)
