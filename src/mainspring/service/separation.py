"""What a caller may see: a token of a project, or of some queues, gets the jobs of these queues and nothing else.

Routes get the jobs, bulk actions, batches and failure groups from here. Every read and change passes the caller's
queues, or project, to the store. A route that does not separate projects refuses such tokens, see `needs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from starlette.requests import Request

from mainspring.bulk.api import Bulk
from mainspring.errors import ConfigurationError
from mainspring.features.batches.api import Batches
from mainspring.features.failures.api import Failures
from mainspring.features.schedules.api import Schedules
from mainspring.job import NewJob
from mainspring.jobs import Jobs
from mainspring.projects import in_project, moved, pattern, queue_in
from mainspring.queue_patterns import are_all_among, is_among, project_of
from mainspring.service.guard import Caller
from mainspring.service.problems import Problem
from mainspring.service.requests import app_of, caller_of
from mainspring.stores.feed import ChangeFilter
from mainspring.stores.protocol import EVERY_QUEUE, Filter, Halt, WorkerInfo


def jobs_of(request: Request) -> Jobs:
    within = caller_of(request).within
    return app_of(request).jobs.within(*within) if within else app_of(request).jobs


def bulk_of(request: Request) -> Bulk:
    within = caller_of(request).within
    return app_of(request).bulk.within(*within) if within else app_of(request).bulk


def schedules_of(request: Request) -> Schedules:
    """Return the schedules that the caller may see; raise Problem for a token of some queues."""
    caller, schedules = caller_of(request), app_of(request).schedules
    if not caller.within:
        return schedules
    return schedules.in_project(project_for(caller, "schedules belong to all queues of a project"))


def batches_of(request: Request) -> Batches:
    within = caller_of(request).within
    return app_of(request).batches.within(*within) if within else app_of(request).batches


def failures_of(request: Request) -> Failures:
    """Return the failure groups that a caller may see; raise Problem for a token of some queues.

    A group has the jobs of all queues of a project that failed in the same way.
    """
    caller, failures = caller_of(request), app_of(request).failures
    if not caller.within:
        return failures
    return failures.of_project(project_for(caller, "a failure group may have jobs of other queues"))


def whole_project_of(caller: Caller) -> str | None:
    """Return the project of which a caller may use all queues; None if there is none."""
    project = caller.project
    return project if project is not None and caller.within == (pattern(project),) else None


# -- queues ---------------------------------------------------------------------------------------


def queue_for(caller: Caller, name: str) -> str:
    """Return the queue that a caller means: `mail` is `p/acme/mail` for a token of the project `acme`.

    Raise Problem if the caller may not use it. A pattern is allowed if the caller may use all of its queues.
    """
    if not caller.within:
        return name
    try:
        queue = name if caller.project is None else queue_in(caller.project, name)
    except ConfigurationError:
        queue = ""  # of another project
    if not queue or not are_all_among([queue], caller.within):
        msg = f"the token {caller.name!r} may not use the queue {name!r}; it may use {', '.join(caller.within)}"
        raise Problem("forbidden", msg)
    return queue


def queues_for(caller: Caller, names: Iterable[str]) -> list[str]:
    """Return the queues that a caller means, of which `*` are all that it may use."""
    if not caller.within:
        return list(names)
    return list(
        dict.fromkeys(
            queue for name in names for queue in (caller.within if name == EVERY_QUEUE else [queue_for(caller, name)])
        )
    )


def filter_for(caller: Caller, where: Filter) -> Filter:
    """Return the filter with the names that a caller of a project means. `jobs_of` keeps to the caller's queues."""
    if not caller.within:
        return where
    key = where.dedupe_key
    if key is not None and caller.project is not None:
        key = in_project(caller.project, key)
    return replace(where, queues=tuple(queues_for(caller, where.queues)), dedupe_key=key)


def changes_for(caller: Caller, where: ChangeFilter) -> ChangeFilter:
    """Return the filter for the events that a caller may see."""
    if not caller.within:
        return where
    return replace(where, queues=tuple(queues_for(caller, where.queues)), within=caller.within)


def admitted(caller: Caller, job: NewJob) -> NewJob:
    """Return a prepared job in the caller's project; raise Problem if the caller may not use its queue."""
    if not caller.within:
        return job
    if caller.project is not None:
        queue_for(caller, job.queue)
        job = moved(job, caller.project)
    if not is_among(job.queue, caller.within):
        msg = f"the token {caller.name!r} may not use the queue {job.queue!r}; give one of {', '.join(caller.within)}"
        raise Problem("forbidden", msg)
    if job.dedupe_key is not None and project_of(job.dedupe_key) != project_of(job.queue):
        msg = f"the dedupe key {job.dedupe_key!r} is that of a project to which the queue {job.queue!r} does not belong"
        raise Problem("forbidden", msg)
    return job


def signal_key_for(caller: Caller, key: str) -> str:
    """Return the key of a signal as the jobs of the caller's project wait for it; raise Problem for a token of queues.

    A signal reaches all jobs of a project, in whatever queues they are.
    """
    if not caller.within:
        return key
    return in_project(project_for(caller, "a signal may reach jobs of other queues"), key)


def project_for(caller: Caller, why: str) -> str:
    """Return the caller's project; raise Problem for a token of some queues."""
    if (project := whole_project_of(caller)) is None:
        msg = f"the token {caller.name!r} is for {', '.join(caller.within)}, and {why}"
        raise Problem("forbidden", msg)
    return project


# -- workers --------------------------------------------------------------------------------------


def worker_for(caller: Caller, name: str) -> str:
    """Return the id of a caller's pull worker. Those of two projects, or of other queues, may have the same name."""
    if not caller.within:
        return name
    queues = hashlib.sha256("\n".join(sorted(caller.within)).encode()).hexdigest()[:8]
    project = whole_project_of(caller)
    own = f"q.{queues}." if project is None else f"p.{project}."
    return name if name.startswith(own) else f"{own}{name}"


def workers_for(caller: Caller, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers that serve only queues of the caller. Others are shared, and their names and hosts are not."""
    if not caller.within:
        return list(workers)
    return [worker for worker in workers if are_all_among(worker.queues, caller.within)]


def halts_for(caller: Caller, halts: Sequence[Halt]) -> list[Halt]:
    """Return the halts that stop jobs of the caller."""
    within = caller.within
    return [halt for halt in halts if not within or halt.queue is None or is_among(halt.queue, within)]
