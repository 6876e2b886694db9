"""What the API shows of data that may have secrets in it, and how a caller gets to see them all the same.

Every route that answers with data of users passes it through here. redaction.py has the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request

from mainspring.job import Job
from mainspring.json_data import plain
from mainspring.redaction import MARK, Redaction, restored
from mainspring.service.problems import Problem
from mainspring.service.push import TASK
from mainspring.service.requests import app_of, caller_of
from mainspring.service.separation import jobs_of
from mainspring.service.tokens import Scope
from mainspring.stores.columns import decoded
from mainspring.stores.documents import Bundle, By, Note
from mainspring.stores.protocol import AuditEntry, Filter

MARK_IN_JSON = json.dumps(MARK).encode()
REVEALED = "job.reveal"  # the action in the audit log
NAMED = ("secret", "token")  # what an entry of the audit log is about: a name and an id, not the secret itself
Reveal = Annotated[
    bool, Query(description="show values that are redacted; needs the scope admin, and is noted in the audit log")
]


def redaction_of(request: Request) -> Redaction:
    return app_of(request).redaction


def texts(request: Request, data: Any) -> Any:
    """Return data whose texts may have secrets in them, such as reasons and messages."""
    return redaction_of(request).texts(data)


# -- jobs -----------------------------------------------------------------------------------------


def detail_data(job: Job, redaction: Redaction | None, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return attempts, steps, timeline and reasons of a job, as JSON data."""
    data: dict[str, Any] = plain(parts)
    if redaction is None:
        return data
    hide = redaction.hide(job.payload, job.headers, job.task)
    steps = [
        {**step, "output": redaction.value(step["output"], job.task), "saved": redaction.value(step["saved"], job.task)}
        for step in data["steps"]
    ]
    return {**redaction.texts({**data, "steps": []}, hide), "steps": redaction.texts(steps, hide)}


async def redaction_for(request: Request, job_id: str, *, reveal: bool, reason: str = "") -> Redaction | None:
    """Return the rules by which a job is shown; None if the caller may see, and asks for, everything.

    The audit log is written first: what cannot be noted is not shown.
    """
    if not reveal:
        return redaction_of(request)
    caller = caller_of(request)
    caller.check(Scope.ADMIN, projects=True)
    await jobs_of(request).get(job_id)  # raises if there is none
    note = Note(By(caller.actor, reason), REVEALED, {"job": job_id})
    await app_of(request).store.write([Bundle((), note=note)])
    return None


def restored_payload(request: Request, job: Job, given: Any) -> Any:
    """Return a new payload of a job, in which redacted values stand for those that the job has."""
    check_receiver(request, job.task, given, job.payload)
    return restored(given, job.payload, redaction_of(request).of(job.task))


def check_receiver(request: Request, task: str, new: Any, old: Any) -> None:
    """Refuse to send values that the caller cannot see to another address than before."""
    url = new.get("url") if isinstance(new, dict) else None
    if task == TASK and url != (old.get("url") if isinstance(old, dict) else None):
        caller_of(request).check(Scope.ADMIN, projects=True)


def refuse_mark(request: Request, raw: bytes, payloads: Sequence[tuple[str, Any]]) -> None:
    """Refuse new jobs whose payload was copied from one that was shown: they would get the mark as a secret."""
    if MARK_IN_JSON not in raw:  # most requests
        return
    for task, payload in payloads:
        place = redaction_of(request).of(task).marked(payload)
        if place is not None:
            msg = f"the payload has {MARK} at {place}, which is shown instead of a value; give the value itself"
            raise Problem("invalid_payload", msg)


def allowed(request: Request, where: Filter) -> Filter:
    """Refuse to search by redacted values: a caller could find out a secret by trying values."""
    check_searched(request, where.payload, where.tasks)
    return where


def check_searched(request: Request, paths: Iterable[str], tasks: Sequence[str] = ()) -> None:
    """Raise Problem if the caller searches by redacted values and may not see them."""
    redaction, token = redaction_of(request), caller_of(request).token
    if token is None or token.allows(Scope.ADMIN):
        return
    for path in paths:
        if any(redaction.of(task).hides_path(path) for task in tasks or ("", *redaction.tasks)):
            msg = f"values at {path!r} are redacted; to search by them, use a token with the scope admin"
            raise Problem("forbidden", msg)


# -- other data -------------------------------------------------------------------------------------


def audit_data(request: Request, entry: AuditEntry) -> dict[str, Any]:
    data: dict[str, Any] = plain(entry)
    rules = redaction_of(request).strictest  # an entry does not name the task
    detail = {
        name: {**part, "payload": rules.value(part["payload"])}
        if isinstance(part, dict) and "payload" in part
        else part
        for name, part in readable(data["detail"]).items()
    }
    named = {name: data["detail"][name] for name in NAMED if name in data["detail"]}
    return {**texts(request, data), "detail": {**rules.value(detail), **texts(request, named)}}


def readable(detail: dict[str, Any]) -> dict[str, Any]:
    """Return the detail of an entry with payloads as data, not as texts of JSON."""
    return {
        name: {**part, "payload": decoded(part["payload"])}
        if isinstance(part, dict) and isinstance(part.get("payload"), str)
        else part
        for name, part in detail.items()
    }
