"""Jobs and dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from typing_extensions import Unpack

from mainspring.client.inputs import JobConditions, JobEdit, JobFilter, Length, Sort, filter_query, given
from mainspring.client.models import (
    CancelledView,
    ChangedView,
    DeadPage,
    EndedView,
    EnqueuedView,
    JobDetail,
    JobPage,
    JobView,
)
from mainspring.client.operation import Given, Resource, S, listing, operation, procedure
from mainspring.client.request import seconds
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items, Steps
from mainspring.client.waiting import Waiter
from mainspring.errors import Failure, JobFailed
from mainspring.job import Status


class Jobs(Resource[S]):
    """Jobs: look at them, wait for them and change them."""

    @operation("GET", "/v1/jobs/{job_id}", JobView)
    def get(self, job_id: str, *, reveal: bool = False, reason: str = "") -> Given:
        """Return a job, without its secrets. `reveal` shows them, and needs the scope admin."""
        return Given({"job_id": job_id}, revealing(reason) if reveal else {})

    @operation("GET", "/v1/jobs/{job_id}/detail", JobDetail)
    def detail(self, job_id: str, *, reveal: bool = False, reason: str = "") -> Given:
        """Return a job with its attempts, steps and timeline, and why it does not run. `reveal` is as in `get`."""
        return Given({"job_id": job_id}, revealing(reason) if reveal else {})

    @operation("GET", "/v1/jobs", JobPage)
    def page(
        self,
        *,
        sort: Sort = "created",
        descending: bool = True,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
        count: bool = False,
        **where: Unpack[JobFilter],
    ) -> Given:
        """Return one page of jobs. `count` also counts all jobs that match, up to 10,000."""
        paged = {"sort": sort, "descending": descending, "limit": limit, "cursor": cursor, "count": count}
        return Given(query={**filter_query(where), **paged})

    @listing
    def list(
        self,
        *,
        sort: Sort = "created",
        descending: bool = True,
        page_size: int = PAGE_SIZE,
        **where: Unpack[JobFilter],
    ) -> Items[JobView]:
        """Iterate over all jobs that match. Pages are read as you go."""
        paged = {"sort": sort, "descending": descending, "limit": page_size}
        return all_pages(Jobs.page, self, lambda page: page.jobs, {**where, **paged})

    @operation("POST", "/v1/jobs/{job_id}:cancel", CancelledView)
    def cancel(self, job_id: str, *, reason: str = "", if_match: str | None = None) -> Given:
        """Cancel a waiting job at once. A running job is asked to stop.

        With the `etag` that you have read as `if_match`, a job that has changed since is not changed. All methods that
        change one job take it.
        """
        return Given({"job_id": job_id}, body={"reason": reason}, headers={"if-match": if_match})

    @operation("POST", "/v1/jobs/{job_id}:retry", JobView)
    def retry(
        self, job_id: str, *, from_step: str | None = None, reason: str = "", if_match: str | None = None
    ) -> Given:
        """Run a dead letter, a cancelled job or one that waits for its retry now. It has all its attempts again."""
        body = given({"from_step": from_step, "reason": reason})
        return Given({"job_id": job_id}, body=body, headers={"if-match": if_match})

    @operation("POST", "/v1/jobs/{job_id}:replay", EnqueuedView)
    def replay(self, job_id: str, *, from_step: str | None = None, payload: Any = None, reason: str = "") -> Given:
        """Run a finished job once more, as a new job: from its beginning, or from a step of a durable function on.

        The new job keeps the results of the steps before it. `payload` replaces the arguments.
        """
        return Given({"job_id": job_id}, body=given({"from_step": from_step, "payload": payload, "reason": reason}))

    @operation("POST", "/v1/jobs/{job_id}:reschedule", JobView)
    def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: Length | None = None,
        reason: str = "",
        if_match: str | None = None,
    ) -> Given:
        """Move a waiting job to another time; without one, to now."""
        body = given({"run_at": run_at, "delay": delay, "reason": reason})
        return Given({"job_id": job_id}, body=body, headers={"if-match": if_match})

    @operation("PATCH", "/v1/jobs/{job_id}", JobView)
    def edit(self, job_id: str, *, reason: str = "", if_match: str | None = None, **changes: Unpack[JobEdit]) -> Given:
        """Change a waiting job. What is left out stays as it is."""
        return Given({"job_id": job_id}, body={**changes, "reason": reason}, headers={"if-match": if_match})

    @operation("DELETE", "/v1/jobs/{job_id}", type(None))
    def delete(self, job_id: str, *, reason: str = "", if_match: str | None = None) -> Given:
        """Delete a job that does not run."""
        return Given({"job_id": job_id}, {"reason": reason}, headers={"if-match": if_match})

    @operation("POST", "/v1/jobs/{job_id}:complete", EndedView)
    def complete(self, job_id: str, result: Any = None) -> Given:
        """Complete a pushed job whose receiver has answered 202."""
        return Given({"job_id": job_id}, body={"result": result})

    @operation("POST", "/v1/jobs/{job_id}:fail", EndedView)
    def fail(self, job_id: str, error: str, *, code: str | None = None, retry: bool = True) -> Given:
        """Let the attempt of a pushed job fail. With `retry=False` the job is a dead letter at once."""
        return Given({"job_id": job_id}, body={"error": error, "code": code, "retry": retry})

    @procedure
    def wait(self, job_id: str, timeout: Length | None = None) -> Steps[JobView]:
        """Wait until a job has ended, and return it. Raise TimeoutError if that takes longer than `timeout`.

        It follows the job's events, so it returns at once when the job ends. Look at the status of what it returns.
        """

        def get(retry_for: float) -> Steps[JobView]:
            return Jobs.get.send(self, Given({"job_id": job_id}), retry_for)

        return Waiter(self.runner.connection, job_id, seconds(timeout), get).wait()

    @procedure
    def result(self, job_id: str, timeout: Length | None = None) -> Steps[Any]:
        """Wait until a job has ended, and return its result. Raise JobFailed if it did not complete."""
        job: JobView = yield from Jobs.wait.steps(self, job_id, timeout)
        if job.status is not Status.COMPLETED:
            raise failed(job)
        return job.result


def failed(job: JobView) -> JobFailed:
    failure = None if job.failure is None else Failure(**job.failure.model_dump())
    why = job.reason if failure is None else f"{failure.type}: {failure.message}"
    return JobFailed(f"job {job.id} is {job.status}: {why}", job_id=job.id, status=job.status, failure=failure)


class DeadLetters(Resource[S]):
    """Jobs that failed for good."""

    @operation("GET", "/v1/dead", DeadPage)
    def page(
        self,
        *,
        sort: Sort = "created",
        descending: bool = True,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
        count: bool = False,
        **where: Unpack[JobConditions],
    ) -> Given:
        """Return one page of dead letters, and the age of the oldest one that matches."""
        paged = {"sort": sort, "descending": descending, "limit": limit, "cursor": cursor, "count": count}
        return Given(query={**filter_query(where), **paged})

    @listing
    def list(
        self,
        *,
        sort: Sort = "created",
        descending: bool = True,
        page_size: int = PAGE_SIZE,
        **where: Unpack[JobConditions],
    ) -> Items[JobView]:
        """Iterate over all dead letters that match. Pages are read as you go."""
        paged = {"sort": sort, "descending": descending, "limit": page_size}
        return all_pages(DeadLetters.page, self, lambda page: page.jobs, {**where, **paged})

    @operation("POST", "/v1/dead:purge", ChangedView)
    def purge(self, older_than: Length, *, dry_run: bool = False, reason: str = "") -> Given:
        """Delete dead letters that are older than this. With `dry_run`, only count them."""
        return Given(body={"older_than": seconds(older_than), "dry_run": dry_run, "reason": reason})


def revealing(reason: str) -> dict[str, Any]:
    return {"reveal": True, "reason": reason}
