"""Which jobs come before a job: what an enqueue declares, and how it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, runtime_checkable

from mainspring.job import NewJob
from mainspring.stored_options import AfterOption, options_of

OPTION = "after"
MAX_AFTER = 1000  # jobs that one job can wait for
OnFailed = Literal["cancel", "run"]


@runtime_checkable
class HasId(Protocol):
    @property
    def id(self) -> str: ...


After = Iterable[HasId | str] | HasId | str


def listed(after: After | None) -> tuple[HasId | str, ...] | None:
    """Return the jobs as a tuple: options are read several times, but a generator can be read only once."""
    if isinstance(after, (str, HasId)):
        return (after,)
    return tuple(after) if isinstance(after, Iterable) else after


def ids_of(after: Iterable[HasId | str]) -> tuple[str, ...]:
    """Return the ids of handles, jobs or prepared jobs; ids are kept as they are."""
    return tuple(dict.fromkeys(job if isinstance(job, str) else job.id for job in after))


def problem_of(after: Any, on_failed: Any) -> str | None:
    if on_failed not in {None, "cancel", "run"}:
        return f'on_failed is "cancel" or "run", not {on_failed!r}'
    if after is None:
        return "on_failed needs after, the jobs that come before" if on_failed is not None else None
    if not isinstance(after, tuple):
        return f"after is a job or its id, or a list of them, not {after!r}"
    for job in after:
        if not isinstance(job if isinstance(job, str) else getattr(job, "id", None), str):
            return f"after is a list of jobs (handles or ids), but {job!r} is not one"
    if len(ids_of(after)) > MAX_AFTER:
        return f"a job can wait for up to {MAX_AFTER} others, not {len(ids_of(after))}; for more use app.batch(…)"
    return None


def option_of(after: Iterable[HasId | str], on_failed: OnFailed | None) -> AfterOption:
    return {"jobs": list(ids_of(after)), "on_failed": on_failed or "cancel"}


def option_behind(job: NewJob, before: str) -> AfterOption:
    """Return the option of a job in a chain: it also starts after the job `before`."""
    own = options_of(job.options).get("after")
    jobs, on_failed = ([], "cancel") if own is None else (own["jobs"], own["on_failed"])
    return AfterOption(jobs=[*jobs, before], on_failed=on_failed)


def named_by(job: NewJob) -> list[str]:
    """Return the ids of the jobs it comes after. Most jobs come after none, and their options are not parsed."""
    if job.options is None or f'"{OPTION}"' not in job.options:
        return []
    option = options_of(job.options).get("after")
    return [] if option is None else option["jobs"]
