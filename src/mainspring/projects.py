"""Projects: jobs that are kept apart from those of others in the same store.

A project is the beginning of names of queues: the queues of the project `acme` begin with `p/acme/`. So everything that
is kept by queue is separate: jobs, counts, pauses, settings, numbers, changes. Dedupe keys of such jobs begin with it
too, because a key is unique per task, in whatever queue. What a job of a project enqueues stays in the project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from mainspring.errors import ConfigurationError
from mainspring.job import Claim, FreshJobs, NewJob, check_queue
from mainspring.log import running
from mainspring.names import check_key
from mainspring.queue_patterns import PROJECT, PROJECTS, REST, project_of


def check_project(name: Any) -> str:
    """Return the name of a project; raise ConfigurationError if it is invalid."""
    if not isinstance(name, str) or not PROJECT.fullmatch(name):
        msg = (
            f"{name!r} is not a name for a project; give 1 to 40 lower-case letters, digits, hyphens and underscores, "
            "of which the first is a letter or digit"
        )
        raise ConfigurationError(msg)
    return name


def beginning(project: str) -> str:
    return f"{PROJECTS}{project}/"


def pattern(project: str) -> str:
    """Return the pattern for all queues of a project."""
    return f"{PROJECTS}{project}{REST}"


def plain_name(queue: str) -> str:
    """Return the name of a queue without that of its project."""
    project = project_of(queue)
    return queue if project is None else queue.removeprefix(beginning(project))


def in_project(project: str, name: str) -> str:
    """Return a name, such as that of a queue, as it is within a project: `mail` is `p/acme/mail`."""
    own = beginning(project)
    return name if name.startswith(own) else f"{own}{name}"


def queue_in(project: str, queue: str) -> str:
    """Return the queue of this name in a project; raise ConfigurationError if it belongs to another project."""
    if queue.startswith(PROJECTS) and not queue.startswith(beginning(project)):
        msg = (
            f"queue {queue!r} does not belong to project {project!r}; give a name that does not begin with {PROJECTS!r}"
        )
        raise ConfigurationError(msg)
    return in_project(project, queue)


def key_in(queue: str, key: str) -> str:
    """Return a key, or the name of a secret, as it is kept for a job of this queue."""
    project = project_of(queue)
    return key if project is None else in_project(project, key)


def moved(job: NewJob, project: str) -> NewJob:
    """Return a prepared job as one of the project."""
    queue = queue_in(project, job.queue)
    key = None if job.dedupe_key is None else key_in(queue, job.dedupe_key)
    if queue == job.queue and key == job.dedupe_key:
        return job
    check_queue(queue)
    if key is not None:
        check_key(key, "dedupe_key, with the name of the project,")
    return replace(job, queue=queue, dedupe_key=key)


def key_in_run(key: str) -> str:
    """Return a key as it is kept for the project of the job whose handler runs here, if it has one."""
    claim = running.get()
    return key if claim is None else key_in(claim.queue, key)


def in_project_of_run(jobs: list[NewJob]) -> list[NewJob]:
    """Return the jobs in the project of the job whose handler runs here, if it has one."""
    claim = running.get()
    return jobs if claim is None else cast("list[NewJob]", in_project_of(claim, jobs))


def in_project_of(claim: Claim, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs in the project of this job, if it has one."""
    project = project_of(claim.queue)
    if project is None:
        return jobs
    inner = [moved(job, project) for job in jobs]
    return FreshJobs(inner) if isinstance(jobs, FreshJobs) else inner
