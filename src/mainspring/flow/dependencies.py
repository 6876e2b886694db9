"""A job that starts after others have finished.

It is suspended until the last of them ends, and then looks which are left. The store wakes it when that job ends, or at
once if it has ended already. On DynamoDB a process may die before it has done so: then the job looks by itself after a
while.
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
MOST = 1000  # jobs that one waits for
FIRST_LOOK: Millis = 60_000  # by itself, if it was not woken
LONGEST_LOOK: Millis = 3_600_000

OnFailed = Literal["cancel", "run"]


@runtime_checkable
class HasId(Protocol):
    @property
    def id(self) -> str: ...


After = Iterable[HasId | str] | HasId | str


def listed(after: After | None) -> tuple[HasId | str, ...] | None:
    """One is a list of one. A generator tells only once what it has, and options are read several times."""
    if isinstance(after, (str, HasId)):
        return (after,)
    return tuple(after) if isinstance(after, Iterable) else after


def ids_of(after: Iterable[HasId | str]) -> tuple[str, ...]:
    """Of handles, jobs, prepared jobs, or ids as they are."""
    return tuple(dict.fromkeys(one if isinstance(one, str) else one.id for one in after))


def problem_of(after: Any, on_failed: Any) -> str | None:
    if on_failed not in {None, "cancel", "run"}:
        return f'on_failed is "cancel" or "run", not {on_failed!r}'
    if after is None:
        return "on_failed needs after, the jobs that come before" if on_failed is not None else None
    if not isinstance(after, tuple):
        return f"after is a job or its id, or a list of them, not {after!r}"
    for one in after:
        if not isinstance(one if isinstance(one, str) else getattr(one, "id", None), str):
            return f"after is a list of jobs (handles, ids), and {one!r} is none"
    if len(ids_of(after)) > MOST:
        return f"a job waits for up to {MOST} others, not {len(ids_of(after))}; for more there is app.batch(…)"
    return None


def option_of(after: Iterable[HasId | str], on_failed: OnFailed | None) -> dict[str, Any]:
    return {"jobs": list(ids_of(after)), "on_failed": on_failed or "cancel"}


def option_behind(job: NewJob, before: str) -> dict[str, Any]:
    """In a chain: it comes after that one too."""
    own = json.loads(job.options or "{}").get(OPTION, {})
    return option_of([*own.get("jobs", ()), before], own.get("on_failed"))


async def insert_after(app: Mainspring, jobs: list[NewJob], ids: Sequence[str]) -> list[Inserted]:
    """Jobs that have no time of their own are suspended from the start: no worker looks at them in vain."""
    last = await last_unfinished(app, ids)
    return await app.insert(jobs if last is None else [suspended_until(last, job) for job in jobs])


async def refuse_unknown(app: Mainspring, jobs: Sequence[NewJob]) -> None:
    """Of prepared jobs on their way in. They may come after each other: those that come in for sure, that is."""
    wanted = list(dict.fromkeys(one for job in jobs for one in named_by(job)))
    if not wanted:
        return
    together = {job.id: job for job in jobs}
    for job in (together[one] for one in wanted if one in together):
        if job.dedupe_key is not None:
            msg = (
                f"a job cannot come after a prepared one of {job.task!r} that has a dedupe key: it may be held already;"
                " enqueue that first, and come after its handle"
            )
            raise ConfigurationError(msg)
    await found_among(app, [one for one in wanted if one not in together])


def named_by(job: NewJob) -> list[str]:
    """The jobs that it comes after. Most come after none, and their options need not be read."""
    if job.options is None or f'"{OPTION}"' not in job.options:
        return []
    named: list[str] = json.loads(job.options).get(OPTION, {}).get("jobs", [])
    return named


async def found_among(app: Mainspring, ids: Sequence[str]) -> dict[str, Job]:
    found = {job.id: job for job in await app.store.get(ids)}
    if missing := [one for one in ids if one not in found]:
        msg = f"there is no job {', '.join(missing)} to come after; enqueue it first, or leave it out"
        raise JobNotFound(msg)
    return found


async def last_unfinished(app: Mainspring, ids: Sequence[str]) -> str | None:
    found = await found_among(app, ids)
    return next((one for one in reversed(ids) if not found[one].finished), None)


def suspended_until(other: str, job: NewJob) -> NewJob:
    if job.run_at is not None or job.delay:
        return job
    return replace(job, waits_for=end_of(other), delay=FIRST_LOOK)


class Dependencies:
    option = OPTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        del now
        wanted = list(dict.fromkeys(one for job in jobs for one in job.option["jobs"]))
        found = {job.id: job for job in await self._app.store.get(wanted)}
        refusals = {job.claim.id: self._refusal(job, found) for job in jobs}
        return {job_id: refusal for job_id, refusal in refusals.items() if refusal is not None}

    def _refusal(self, job: Guarded, found: Mapping[str, Job]) -> Refusal | None:
        """None: all are finished, or gone by now."""
        others = [found[one] for one in job.option["jobs"] if one in found]
        failed = next((one for one in others if one.finished and one.status is not Status.COMPLETED), None)
        if failed is not None and job.option["on_failed"] == "cancel":
            return refuse(job.claim, Move.CANCEL, reason=f"job {failed.id}, which comes before, is {failed.status}")
        last = next((one for one in reversed(others) if not one.finished), None)
        return None if last is None else wait_for(job.claim, last.id)

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Nothing was given out."""


def wait_for(claim: Claim, other: str) -> Refusal:
    """Suspend until that job ends; or for a while, each time longer, if it is not woken."""
    delay = min(FIRST_LOOK << min(claim.token, 16), LONGEST_LOOK)
    reason = f"waits for job {other}"
    return refuse(claim, Move.SUSPEND, delay=delay, waits_for=end_of(other), reason=reason, blocked=True)
