"""`callback` and `failure_callback` of a job: signed requests that tell of its end.

They are jobs of the task `http`. The store inserts them in the commit that ends the job, whatever ends it.
"""

from __future__ import annotations

from typing import Any

from mainspring.app import Mainspring
from mainspring.errors import RequestRefused
from mainspring.job import NewJob
from mainspring.projects import moved
from mainspring.queue_patterns import project_of
from mainspring.retry import Retry
from mainspring.service.bodies import NewJobBody
from mainspring.service.problems import Problem
from mainspring.service.push import TASK, secret_of
from mainspring.service.request_fields import Callback
from mainspring.service.secrets import Secrets
from mainspring.stored_options import OnEndOption, with_options
from mainspring.stores.engine.on_end import following

TAG = "callback"
RETRY = Retry.delays(5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400, jitter_share=0.1)
"""The delays that Standard Webhooks recommends: ten attempts, the last after a little more than three days."""


async def followed(app: Mainspring, secrets: Secrets, job: NewJob, body: NewJobBody) -> NewJob:
    """Return the job with the jobs that follow its end."""
    on_end: OnEndOption = {}
    if body.callback is not None:
        on_end["completed"] = on_end["failed"] = await prepared(app, secrets, body.callback, job.queue)
    if body.failure_callback is not None:
        on_end["failed"] = await prepared(app, secrets, body.failure_callback, job.queue)
    return with_options(job, on_end=on_end) if on_end else job


async def prepared(app: Mainspring, secrets: Secrets, callback: Callback | str, queue: str) -> dict[str, Any]:
    """Return a callback as the job that it becomes; raise Problem if there is nothing to sign it with.

    It belongs to the project of the job's queue, and is signed with the secret of that project (push.py).
    """
    given = Callback(url=callback) if isinstance(callback, str) else callback
    try:
        secret, project = secret_of(queue, given.secret), project_of(queue)
    except RequestRefused as refused:
        raise Problem("forbidden", str(refused)) from None
    if not await secrets.texts(secret):
        raise Problem("invalid_request", f"there is no secret {secret!r}; create it with POST /v1/secrets")
    payload = given.model_dump(exclude_none=True)
    job = await app.prepare(TASK, payload, retry=RETRY, tags=[TAG])
    return following(job if project is None else moved(job, project))
