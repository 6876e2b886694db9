"""Children: jobs that a durable function spawns and whose results it may wait for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar

from mainspring.errors import Failure, JobFailed, StepsChanged
from mainspring.feature import Enqueue
from mainspring.features.durable.journal import Asked
from mainspring.features.durable.run import DurableRun
from mainspring.features.durable.suspension import Wait, next_look
from mainspring.job import Job, NewJob, Status, end_of
from mainspring.projects import in_project_of
from mainspring.stored_options import with_options
from mainspring.trace import in_trace_of

R_co = TypeVar("R_co", covariant=True)

PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class Child(Generic[R_co]):
    """A job that this job has spawned. Pass it to `ctx.gather` to wait for its result."""

    id: str
    task: str
    name: str = field(default="", repr=False)  # of the step that spawned this job


async def spawn(run: DurableRun, job: NewJob, name: str | None, *, cancel: bool) -> Child[Any]:
    branch = run.branch()
    name = run.journal.called(name) if name else run.journal.derive(f"spawn {job.task}", main=branch is None)
    asked = await run.ask(name, "spawn", branch)
    state = json.loads(asked.record.output or "{}") if asked.record is not None else {}
    if not state or "open" in state:
        state = await insert_children(run, asked, [job], state, cancel=cancel)
    return Child(state["ids"][0], job.task, name)


async def insert_children(
    run: DurableRun, asked: Asked, wanted: Sequence[Child[Any] | NewJob], state: dict[str, Any], *, cancel: bool
) -> dict[str, Any]:
    """Insert the children that are new, in one commit with the step that records their ids; return the step's state.

    If a job has a dedupe key, the store may return an existing job instead. The step stays open until the id of that
    job is recorded too. If the run ends before, the next run repeats the insert with the recorded ids.
    """
    ids = state.get("ids") or [job.id for job in wanted]
    new = [as_child(run, job, known, cancel=cancel) for job, known in zip(wanted, ids, strict=True) if is_new(job)]
    jobs = list(in_project_of(run.claim, in_trace_of(run.claim, new)))
    mine = [job.id for job in jobs]
    keyed = any(job.dedupe_key for job in jobs)
    state = {"ids": ids, "children": mine if cancel else [], **({"open": True} if keyed else {})}
    if not jobs:
        return state
    save = partial(run.save, asked.step(json.dumps(state), run.now()))
    inserted = await run.retry_outages(lambda: run.pipeline.commit(Enqueue(jobs), save))
    run.spawned += [job.id for job in inserted if job.created]
    if keyed:
        others = {job.id: holder.id for job, holder in zip(jobs, inserted, strict=True) if not holder.created}
        # a job that exists already is not cancelled with this one
        children = [child for child in state["children"] if child not in others]
        state = {"ids": [others.get(child, child) for child in ids], "children": children}
        await run.save(asked.step(json.dumps(state), run.now()))
    return state


def is_new(child: Child[Any] | NewJob) -> TypeGuard[NewJob]:
    return isinstance(child, NewJob)


def as_child(run: DurableRun, job: NewJob, job_id: str, *, cancel: bool) -> NewJob:
    return with_options(replace(job, id=job_id), parent={"id": run.claim.id, "cancel": cancel})


# -- waiting for them -------------------------------------------------------------------------------


async def gather(
    run: DurableRun, children: Sequence[Child[Any] | NewJob], name: str | None, *, return_exceptions: bool, cancel: bool
) -> list[Any]:
    """Suspend until all children have ended; return their results.

    The results are recorded, unless an error is raised: then the failed child can be retried, and the next run reads
    its result again.
    """
    branch = run.branch()
    name = run.journal.called(name) if name else run.journal.derive("gather", main=branch is None)
    asked = await run.ask(name, "gather", branch)
    state = json.loads(asked.record.output or "{}") if asked.record is not None else {}
    check_child_count(asked, children, state)
    if "ends" not in state:
        if not state or "open" in state:
            state = await insert_children(run, asked, children, state, cancel=cancel)
        state["ends"] = await ends_of(run, asked, state)
        if return_exceptions or not any(failed(end) for end in state["ends"]):
            await run.save(asked.step(json.dumps(state), run.now()))
    outcomes = [outcome_of(run, end) for end in state["ends"]]
    if not return_exceptions:
        for outcome in outcomes:
            if isinstance(outcome, JobFailed):
                raise outcome
    return outcomes


def check_child_count(asked: Asked, children: Sequence[Child[Any] | NewJob], state: dict[str, Any]) -> None:
    if state and len(state["ids"]) != len(children):
        msg = (
            f"{asked.name!r} gathers {len(children)} children, but had {len(state['ids'])} before: its function was "
            "changed while the job was in progress, or the list differs from run to run; then compute it in a step"
        )
        raise StepsChanged(msg)


async def ends_of(run: DurableRun, asked: Asked, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how each child ended; suspend while some have not.

    The job is woken by the end of the last unfinished child: by then the others have probably ended too.
    """
    ids: list[str] = state["ids"]
    jobs = await run.retry_outages(partial(read, run, ids))
    unfinished = [job_id for job_id in ids if job_id in jobs and not jobs[job_id].finished]
    if unfinished:
        now = run.now()
        looks = int(state.get("looks", 0))
        step = asked.step(json.dumps({**state, "looks": looks + 1}), now)
        await run.suspend(Wait(now + next_look(looks), step, end_of(unfinished[-1])))
    return [end_data(job_id, jobs.get(job_id)) for job_id in ids]


async def read(run: DurableRun, ids: Sequence[str]) -> dict[str, Job]:
    found: dict[str, Job] = {}
    for start in range(0, len(ids), PAGE_SIZE):
        found |= {job.id: job for job in await run.store.get(ids[start : start + PAGE_SIZE])}
    return found


def end_data(job_id: str, job: Job | None) -> dict[str, Any]:
    if job is None:
        return {"id": job_id, "task": "", "status": "gone", "error": "it was deleted, or its retention has expired"}
    if job.status is Status.COMPLETED:
        return {"id": job_id, "task": job.task, "status": job.status, "result": job.result}
    error = f"{job.failure.type}: {job.failure.message}" if job.failure else job.reason
    failure = {} if job.failure is None else {"failure": [job.failure.type, job.failure.message]}
    return {"id": job_id, "task": job.task, "status": job.status, "error": error, **failure}


def failed(end: dict[str, Any]) -> bool:
    return bool(end["status"] != Status.COMPLETED)


def outcome_of(run: DurableRun, end: dict[str, Any]) -> Any:
    if failed(end):
        msg = f"child {end['id']} of task {end['task']!r} ended as {end['status']}: {end['error']}"
        failure = Failure(*end["failure"]) if "failure" in end else None  # the traceback is kept with the child only
        return JobFailed(msg, job_id=end["id"], status=end["status"], failure=failure)
    task = run.services.tasks.get(end["task"])
    return end["result"] if task is None else task.payload.load_result(end["result"])
