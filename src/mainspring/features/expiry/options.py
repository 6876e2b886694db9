"""By when a job must have started: what an enqueue declares, how it is stored, and what it means for a job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mainspring.clock import Length, Millis, check_moment, duration, to_datetime, to_millis
from mainspring.job import Claim, Job, Status

OPTION = "start_by"
REASON = "expired: not started by"  # and the time; why a job that has expired is cancelled


def problem_of(expires: Any) -> str | None:
    if isinstance(expires, datetime):
        if expires.tzinfo is None:
            return f"expires is {expires!r}, which has no time zone"
        check_moment(expires, "expires")
        return None
    if duration(expires) <= 0:
        return f"expires is {expires}; it is a time, or a length of time from when the job is due"
    return None


def option_of(expires: Length | datetime, run_at: datetime | None, delay: Length | None, *, moves: bool) -> Any:
    """Return what to store: a time, or a length and what it counts from, as a job's due time may change."""
    if isinstance(expires, datetime):
        return to_millis(expires)
    option: dict[str, Any] = {"within": duration(expires)}
    if run_at is not None:
        option["run_at"] = to_millis(run_at)
    if delay is not None:
        option["delay"] = duration(delay)
    return option | ({"moves": True} if moves else {})


def start_by(option: Any, *, created_at: Millis, run_at: Millis, token: int) -> Millis:
    """Return by when the job must start.

    A length counts from when the job was first due; or last due, if other jobs or delivery hours can move it.
    """
    if isinstance(option, int):
        return option
    first_due = max(created_at + option.get("delay", 0), option.get("run_at", 0))
    is_its_time = token <= 1 or "moves" in option
    within: Millis = option["within"]
    return (max(created_at, run_at) if is_its_time else first_due) + within


def of_claim(claim: Claim, option: Any) -> Millis:
    return start_by(option, created_at=claim.created_at, run_at=claim.run_at, token=claim.token)


def of_job(job: Job) -> datetime | timedelta | None:
    """Return by when the job must have started; a length, if that counts from when other jobs let it start."""
    option = job.options.get(OPTION)
    if option is None:
        return None
    if job.status is Status.SUSPENDED and isinstance(option, dict) and "moves" in option:
        return timedelta(milliseconds=option["within"])
    is_claimed = job.finished or job.status is Status.RUNNING
    created_at, run_at = to_millis(job.created_at), to_millis(job.run_at)
    token = job.token if is_claimed else job.token + 1  # the token that the next claim will have
    return to_datetime(start_by(option, created_at=created_at, run_at=run_at, token=token))


def has_expired(job: Job) -> bool:
    """Return whether the job was cancelled because it did not start in time."""
    return job.status is Status.CANCELLED and OPTION in job.options and job.reason.startswith(REASON)
