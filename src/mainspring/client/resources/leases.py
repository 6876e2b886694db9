"""Pull workers: claim jobs and report about them."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mainspring.client.inputs import Length, given
from mainspring.client.models import ClaimView, LeaseView, LeftView, ReportView
from mainspring.client.operation import Given, Resource, S, operation
from mainspring.errors import as_code

Report = Mapping[str, Any]
"""What is new about one job. The functions below make it."""


class Leases(Resource[S]):
    """What a worker does that is not part of the application."""

    @operation("POST", "/v1/leases", ClaimView)
    def claim(
        self,
        worker: str,
        *,
        queues: Sequence[str] = ("*",),
        tasks: Sequence[str] | None = None,
        limit: int = 1,
        wait: float = 0.0,
        held: Mapping[str, int] | Iterable[LeaseView] = (),
        version: str | None = None,
    ) -> Given:
        """Claim up to `limit` due jobs, and wait up to `wait` seconds for one. `held` names the jobs in hand."""
        tokens = dict(held) if isinstance(held, Mapping) else {lease.id: lease.token for lease in held}
        options = given({"tasks": tasks, "version": version})
        asked = {"worker": worker, "queues": queues, "limit": limit, "wait": wait, "held": tokens}
        return Given(body={**asked, **options}, wait=wait)

    @operation("POST", "/v1/leases:report", ReportView)
    def report(self, worker: str, items: Sequence[Report] = ()) -> Given:
        """Tell what is new about jobs. Without items, it is a sign of life of the worker."""
        return Given(body={"worker": worker, "items": items})

    @operation("POST", "/v1/leases:leave", LeftView)
    def leave(self, worker: str) -> Given:
        """Say that the worker stops."""
        return Given(body={"worker": worker})


def done(lease: LeaseView, result: Any = None) -> Report:
    """The job has succeeded."""
    return about(lease, "done", {"result": result})


def failed(
    lease: LeaseView,
    error: BaseException | str,
    *,
    type: str | None = None,
    code: str | None = None,
    retry: bool = True,
) -> Report:
    """The job has failed; its retry policy decides what follows. With `retry=False` it is a dead letter at once.

    Without `code`, that of the exception counts, if it has an attribute of this name.
    """
    if isinstance(error, str):
        return about(lease, "failed", {"type": type or "Error", "message": error, "code": code, "retry": retry})
    trace = "".join(tracebacks.format_exception(error))[-50_000:]
    name = type or error.__class__.__name__
    code = code or as_code(getattr(error, "code", None))
    texts = {"type": name, "message": str(error)[:50_000], "traceback": trace, "code": code}
    return about(lease, "failed", {**texts, "retry": retry})


def snooze(lease: LeaseView, delay: Length | None = None, *, until: datetime | None = None, reason: str = "") -> Report:
    """Run the job later, without using an attempt."""
    return about(lease, "snooze", given({"delay": delay, "until": until, "reason": reason}))


def release(lease: LeaseView, reason: str = "") -> Report:
    """Another worker may have the job."""
    return about(lease, "release", {"reason": reason})


def cancelled(lease: LeaseView, reason: str = "") -> Report:
    """The worker has stopped the job, because it was cancelled."""
    return about(lease, "cancelled", {"reason": reason})


def progress(lease: LeaseView, fraction: float, note: str = "") -> Report:
    """The job is so far, from 0 to 1."""
    return about(lease, "progress", {"fraction": fraction, "note": note})


def step(lease: LeaseView, name: str, output: Any = None) -> Report:
    """A step of the job is done."""
    return about(lease, "step", {"name": name, "output": output})


def heartbeat(lease: LeaseView) -> Report:
    """The job still runs."""
    return {"id": lease.id, "token": lease.token}


def about(lease: LeaseView, what: str, news: Mapping[str, Any]) -> Report:
    return {**heartbeat(lease), what: news}
