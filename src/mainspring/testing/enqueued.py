"""Assertions about enqueued jobs. A failure shows what was enqueued instead, and how it differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from mainspring.app import Mainspring
from mainspring.clock import duration
from mainspring.job import Job, Priority
from mainspring.stores.protocol import Filter
from mainspring.task import Task
from mainspring.testing.apart import run_apart
from mainspring.testing.kit import Kit, enqueued

MAX_SHOWN_JOBS = 20
TOLERANCE = timedelta(seconds=1)

AnyTask = Task[..., Any, Any]
Args = Mapping[str, Any] | BaseModel


def assert_enqueued(
    source: Mainspring | Kit,
    task: AnyTask | str | None = None,
    *,
    count: int | None = None,
    args: Args | None = None,
    queue: str | None = None,
    priority: Priority | str | None = None,
    run_at: datetime | None = None,
    tolerance: timedelta | float = TOLERANCE,
    dedupe_key: str | None = None,
    tags: Iterable[str] = (),
    target: tuple[str, str] | None = None,
) -> list[Job]:
    """Fail unless at least one job (or exactly `count`) like this was enqueued; return the jobs that match.

    It does not matter whether the jobs have run since. `args` need not name all arguments: those given must be equal,
    in nested objects too. `run_at` may be off by `tolerance`. `tags` must be among the job's tags. You can call this
    in coroutines and in plain functions.
    """
    __tracebackhide__ = True
    wanted = Wanted(task, args, queue, priority, run_at, tolerance, dedupe_key, tuple(tags), target)
    jobs = all_jobs(source)
    found = [job for job in jobs if wanted.fits(job)]
    if found if count is None else len(found) == count:
        return found
    if count is None:
        msg = f"no job was enqueued like {wanted}\n{listing(jobs, wanted)}"
    else:
        msg = f"{count} should have been enqueued like {wanted}, but {were(len(found))}\n{listing(jobs, wanted)}"
    raise AssertionError(msg)


def refute_enqueued(
    source: Mainspring | Kit,
    task: AnyTask | str | None = None,
    *,
    args: Args | None = None,
    queue: str | None = None,
    priority: Priority | str | None = None,
    run_at: datetime | None = None,
    tolerance: timedelta | float = TOLERANCE,
    dedupe_key: str | None = None,
    tags: Iterable[str] = (),
    target: tuple[str, str] | None = None,
) -> None:
    """Fail if a job like this was enqueued; without any field, if any job was enqueued."""
    __tracebackhide__ = True
    wanted = Wanted(task, args, queue, priority, run_at, tolerance, dedupe_key, tuple(tags), target)
    if found := [job for job in all_jobs(source) if wanted.fits(job)]:
        msg = f"{were(len(found))} enqueued like {wanted}\n{listing(found)}"
        raise AssertionError(msg)


def all_jobs(source: Mainspring | Kit) -> list[Job]:
    return run_apart(enqueued(source.app if isinstance(source, Kit) else source, Filter()))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job should be like. Fields that are None or () are not compared."""

    task: AnyTask | str | None
    args: Args | None
    queue: str | None
    priority: Priority | str | None
    run_at: datetime | None
    tolerance: timedelta | float
    dedupe_key: str | None
    tags: tuple[str, ...]
    target: tuple[str, str] | None

    @property
    def name(self) -> str | None:
        return self.task.name if isinstance(self.task, Task) else self.task

    def fits(self, job: Job) -> bool:
        return not any(self.differences(job))

    def differences(self, job: Job) -> Iterator[str]:
        """Yield in words how the job differs."""
        if self.name not in (None, job.task):
            yield "another task"
        elif self.args is not None:
            yield from missing(to_jsonable_python(self.args), job.payload)
        for field, wanted in self._plain():
            if (value := getattr(job, field)) != wanted:
                yield f"{field} is {shown(value)}"
        if self.run_at is not None and abs(job.run_at - self.run_at) > timedelta(milliseconds=duration(self.tolerance)):
            yield f"run_at is {job.run_at}"
        if not set(self.tags) <= set(job.tags):
            yield f"tags are {list(job.tags)}"

    def _plain(self) -> Iterator[tuple[str, Any]]:
        priority = None if self.priority is None else Priority.parse(self.priority)
        wanted = {"queue": self.queue, "priority": priority, "dedupe_key": self.dedupe_key, "target": self.target}
        return ((field, value) for field, value in wanted.items() if value is not None)

    def __str__(self) -> str:
        args = to_jsonable_python(self.args or {})
        given = [f"{field}={shown(value)}" for field, value in self._plain()]
        given += [f"run_at={self.run_at}"] if self.run_at else []
        given += [f"tags={list(self.tags)}"] if self.tags else []
        return " ".join([call(self.name or "any task", args, rest=self.args is None), *given])


def missing(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield where the found JSON differs from the wanted one. Additional fields are not a difference."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, value in wanted.items():
            inner = f"{path}.{name}" if path else name
            if name in found:
                yield from missing(value, found[name], inner)
            else:
                yield f"{inner} is missing"
    elif wanted != found:
        yield f"{path or 'payload'} is {found!r}"


# -- in words -------------------------------------------------------------------------------------


def listing(jobs: list[Job], wanted: Wanted | None = None) -> str:
    """List the jobs, closest match first, each with its differences."""
    if not jobs:
        return "nothing was enqueued at all"
    differences = {job.id: list(wanted.differences(job)) if wanted else [] for job in jobs}
    closest = sorted(jobs, key=lambda job: len(differences[job.id]))
    lines = [": ".join(["  " + describe(job), *filter(None, [", ".join(differences[job.id])])]) for job in closest]
    more = [f"  and {len(lines) - MAX_SHOWN_JOBS} more"] if len(lines) > MAX_SHOWN_JOBS else []
    return "\n".join(["enqueued:", *lines[:MAX_SHOWN_JOBS], *more])


def describe(job: Job) -> str:
    due = job.run_at.isoformat(timespec="seconds")
    more = "".join(f" {name}={value!r}" for name in ("dedupe_key", "target", "tags") if (value := getattr(job, name)))
    return f"{call(job.task, job.payload)} queue={job.queue!r} priority={shown(job.priority)} run_at={due}{more}"


def call(name: str, args: Any, *, rest: bool = False) -> str:
    if not isinstance(args, dict):
        return f"{name}({args!r})"
    given = [f"{key}={value!r}" for key, value in args.items()]
    return f"{name}({', '.join([*given, '…'] if rest else given)})"


def shown(value: Any) -> str:
    return repr(value.name.lower()) if isinstance(value, Priority) else repr(value)


def were(number: int) -> str:
    return "1 job was" if number == 1 else f"{number} jobs were"
