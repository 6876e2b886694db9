"""Jobs that start after others have finished.

Such a job is suspended until the last of the others ends. Then it checks which are left. The store wakes it when that
last job ends, or at once if it has ended already. On DynamoDB a process may die before it has woken the job: then the
job checks by itself after a while.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError, JobNotFound
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Claim, Inserted, Job, Move, NewJob, Status, end_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring

OPTION = "after"
MAX_AFTER = 1000  # jobs that one job can wait for
FIRST_LOOK: Millis = 60_000  # the first time that a job checks by itself, if it was not woken
LONGEST_LOOK: Millis = 3_600_000  # the longest time between two such checks

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


def option_of(after: Iterable[HasId | str], on_failed: OnFailed | None) -> dict[str, Any]:
    return {"jobs": list(ids_of(after)), "on_failed": on_failed or "cancel"}


def option_behind(job: NewJob, before: str) -> dict[str, Any]:
    """Return the option of a job in a chain: it also starts after the job `before`."""
    own = json.loads(job.options or "{}").get(OPTION, {})
    return option_of([*own.get("jobs", ()), before], own.get("on_failed"))


async def insert_after(app: Mainspring, jobs: list[NewJob], ids: Sequence[str]) -> list[Inserted]:
    """Insert jobs. Those without a time of their own are suspended from the start, so that no worker claims them."""
    last = await last_unfinished(app, ids)
    return await app.insert(jobs if last is None else [suspended_until(last, job) for job in jobs])


async def refuse_unknown(app: Mainspring, jobs: Sequence[NewJob]) -> None:
    """Raise if prepared jobs come after unknown jobs. They may come after each other, if they have no dedupe key."""
    wanted = list(dict.fromkeys(job_id for job in jobs for job_id in named_by(job)))
    if not wanted:
        return
    together = {job.id: job for job in jobs}
    for job in (together[job_id] for job_id in wanted if job_id in together):
        if job.dedupe_key is not None:
            msg = (
                f"a job cannot come after a prepared job of {job.task!r} with a dedupe key, which another may hold;"
                " enqueue that job first, and come after its handle"
            )
            raise ConfigurationError(msg)
    await found_among(app, [job_id for job_id in wanted if job_id not in together])


def named_by(job: NewJob) -> list[str]:
    """Return the ids of the jobs it comes after. Most jobs come after none, and their options are not parsed."""
    if job.options is None or f'"{OPTION}"' not in job.options:
        return []
    named: list[str] = json.loads(job.options).get(OPTION, {}).get("jobs", [])
    return named


async def found_among(app: Mainspring, ids: Sequence[str]) -> dict[str, Job]:
    found = {job.id: job for job in await app.store.get(ids)}
    if missing := [job_id for job_id in ids if job_id not in found]:
        msg = f"there is no job {', '.join(missing)} to come after; enqueue it first, or leave it out"
        raise JobNotFound(msg)
    return found


async def last_unfinished(app: Mainspring, ids: Sequence[str]) -> str | None:
    found = await found_among(app, ids)
    return next((job_id for job_id in reversed(ids) if not found[job_id].finished), None)


def suspended_until(other: str, job: NewJob) -> NewJob:
    if job.run_at is not None or job.delay:
        return job
    return replace(job, waits_for=end_of(other), delay=FIRST_LOOK)


class Dependencies:
    """The guard of jobs that start after others."""

    option = OPTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        del now
        wanted = list(dict.fromkeys(job_id for job in jobs for job_id in job.option["jobs"]))
        found = {job.id: job for job in await self._app.store.get(wanted)}
        refusals = {job.claim.id: self._refusal(job, found) for job in jobs}
        return {job_id: refusal for job_id, refusal in refusals.items() if refusal is not None}

    def _refusal(self, job: Guarded, found: Mapping[str, Job]) -> Refusal | None:
        """Return why the job may not start; None if all the others have finished, or are gone by now."""
        others = [found[job_id] for job_id in job.option["jobs"] if job_id in found]
        failed = next((other for other in others if other.finished and other.status is not Status.COMPLETED), None)
        if failed is not None and job.option["on_failed"] == "cancel":
            return refuse(job.claim, Move.CANCEL, reason=f"job {failed.id}, which comes before, is {failed.status}")
        last = next((other for other in reversed(others) if not other.finished), None)
        return None if last is None else wait_for(job.claim, last.id)

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Do nothing: this guard hands nothing out."""


def wait_for(claim: Claim, other: str) -> Refusal:
    """Suspend until that job ends. If nothing wakes it, it checks by itself, after a longer time at each suspension."""
    delay = min(FIRST_LOOK << min(claim.token, 16), LONGEST_LOOK)
    reason = f"waits for job {other}"
    return refuse(claim, Move.SUSPEND, delay=delay, waits_for=end_of(other), reason=reason, blocked=True)
