"""Jobs that start after others have finished.

Such a job is suspended until the last of the others ends. Then it checks which are left. The store wakes it when that
last job ends, or at once if it has ended already. On DynamoDB a process may die before it has woken the job: then the
job checks by itself after a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError, JobNotFound
from mainspring.feature import Candidate, Enqueue, Feature, Refusal, refuse
from mainspring.features.dependencies.options import OPTION, named_by
from mainspring.job import Claim, Job, Move, NewJob, Status, end_of
from mainspring.services import Services

FIRST_LOOK: Millis = 60_000  # the first time that a job checks by itself, if it was not woken
LONGEST_LOOK: Millis = 3_600_000  # the longest time between two such checks


class DependenciesFeature(Feature):
    """Suspends jobs that come after others, when they are enqueued and when they are claimed too early."""

    option = OPTION

    def __init__(self, services: Services) -> None:
        self._services = services

    # -- at the enqueue -----------------------------------------------------------------------------

    async def prepare(self, enqueue: Enqueue) -> None:
        """Suspend jobs without a time of their own from the start, so that no worker claims them.

        In a transaction of the caller, the jobs they come after may not be visible yet.
        """
        if enqueue.in_transaction:
            return
        found = await self.check(enqueue.jobs) if enqueue.has_caller else await self._found(named_outside(enqueue.jobs))
        live = {job_id for job_id, job in found.items() if not job.finished}
        live.update(job.id for job in enqueue.jobs if job.dedupe_key is None)  # with a key, it may not be inserted
        enqueue.jobs = [suspended_until_last(job, live) for job in enqueue.jobs]

    async def check(self, jobs: Sequence[NewJob]) -> dict[str, Job]:
        """Return the jobs that these come after. Raise an error if one of them is unknown, or may not be inserted."""
        outside, together = named_outside(jobs), {job.id: job for job in jobs}
        found = await self._found(outside)
        if missing := [job_id for job_id in outside if job_id not in found]:
            msg = f"there is no job {', '.join(missing)} to come after; enqueue it first, or leave it out"
            raise JobNotFound(msg)
        refuse_held_keys([together[job_id] for job in jobs for job_id in named_by(job) if job_id in together])
        return found

    async def _found(self, ids: Sequence[str]) -> dict[str, Job]:
        return {job.id: job for job in await self._services.store.get(ids)} if ids else {}

    # -- between claim and start --------------------------------------------------------------------

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        wanted = list(dict.fromkeys(job_id for job in jobs for job_id in job.option["jobs"]))
        found = {job.id: job for job in await self._services.store.get(wanted)}
        refusals = {job.claim.id: self._refusal(job, found) for job in jobs}
        return {job_id: refusal for job_id, refusal in refusals.items() if refusal is not None}

    def _refusal(self, job: Candidate, found: Mapping[str, Job]) -> Refusal | None:
        """Return why the job may not start; None if all the others have finished, or are gone by now."""
        others = [found[job_id] for job_id in job.option["jobs"] if job_id in found]
        failed = next((other for other in others if other.finished and other.status is not Status.COMPLETED), None)
        if failed is not None and job.option["on_failed"] == "cancel":
            return refuse(job.claim, Move.CANCEL, reason=f"job {failed.id}, which comes before, is {failed.status}")
        last = next((other for other in reversed(others) if not other.finished), None)
        return None if last is None else wait_for(job.claim, last.id)


def named_outside(jobs: Sequence[NewJob]) -> list[str]:
    """Return the ids of the jobs that these come after, other than these themselves."""
    together = {job.id for job in jobs}
    named = dict.fromkeys(job_id for job in jobs for job_id in named_by(job))
    return [job_id for job_id in named if job_id not in together]


def refuse_held_keys(others: Sequence[NewJob]) -> None:
    """Refuse to come after a job of the same enqueue that may not be inserted, as another holds its dedupe key."""
    for job in others:
        if job.dedupe_key is not None:
            msg = (
                f"a job cannot come after a prepared job of {job.task!r} with a dedupe key, which another may hold;"
                " enqueue that job first, and come after its handle"
            )
            raise ConfigurationError(msg)


def suspended_until_last(job: NewJob, live: set[str]) -> NewJob:
    last = next((job_id for job_id in reversed(named_by(job)) if job_id in live), None)
    return job if last is None else suspended_until(last, job)


def suspended_until(other: str, job: NewJob) -> NewJob:
    if job.run_at is not None or job.delay or job.waits_for is not None:
        return job
    return replace(job, waits_for=end_of(other), delay=FIRST_LOOK)


def wait_for(claim: Claim, other: str) -> Refusal:
    """Suspend until that job ends. If nothing wakes it, it checks by itself, after a longer time at each suspension."""
    delay = min(FIRST_LOOK << min(claim.token, 16), LONGEST_LOOK)
    reason = f"waits for job {other}"
    return refuse(claim, Move.SUSPEND, delay=delay, waits_for=end_of(other), reason=reason)
