"""The task `http`: a job that is an HTTP request, for workers in any language.

The receiver's answer ends the job (verdict.py). If it answers 202, it goes on working: the job is suspended until
`POST /v1/jobs/{id}:complete` or `:fail`, or until `complete_within` is over. Each request has a number. If the work
fails, the job's next attempt sends the request with the next number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from itertools import count
from typing import Any

from mainspring.app import Mainspring
from mainspring.context import Context
from mainspring.errors import Discard, RequestFailed, RequestRefused
from mainspring.metrics.metrics import counted_delivery
from mainspring.outgoing.addresses import Reach, networks_of
from mainspring.outgoing.client import DEFAULT_TIMEOUT, Outgoing, OutgoingRequest
from mainspring.projects import key_in
from mainspring.queue_patterns import project_of
from mainspring.service.request_fields import Headers, Method, SecretName, Timeout, Url, Work
from mainspring.service.secrets import DeliveryTokens, Secrets
from mainspring.service.settings import ServiceSettings
from mainspring.service.verdict import judge, result_of
from mainspring.webhooks import ID, TIMESTAMP, signed

TASK = QUEUE = "http"
WORK = "work "  # and a request's number: the name of the step that waits for the end of the work on that request
TRACE_HEADERS = ("traceparent", "tracestate", "baggage")


def add_http_task(app: Mainspring, settings: ServiceSettings | None = None) -> None:
    """Give an application the task `http`. Its workers run it, whichever process enqueues it.

    `make_service` does this. Do it yourself in programs that run workers without the service.
    """
    settings = settings or ServiceSettings()
    push = Push(app, Outgoing(Reach(networks_of(settings.outgoing_allow))))

    @app.task(name=TASK, queue=QUEUE)
    async def http(
        ctx: Context,
        *,
        url: Url,
        method: Method = "POST",
        headers: Headers | None = None,
        body: Any = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        secret: SecretName | None = None,
        complete_within: Work = 86_400.0,
    ) -> Any:
        """Send an HTTP request; its JSON answer is the result."""
        content, kind = content_of(body)
        named = {name.lower(): value for name, value in (headers or {}).items()}
        given = {"content-type": kind, **named} if content else named
        request = OutgoingRequest(method, url, given, content, timeout)
        return await push.run(ctx, request, secret, complete_within)


def content_of(body: Any) -> tuple[bytes, str]:
    """Return the body of a request and its type: a text as it is, and everything else as JSON."""
    if body is None:
        return b"", ""
    if isinstance(body, str):
        return body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"), "application/json"


def signal_key(job_id: str, number: int) -> str:
    """Return the key of the signal that ends the work on one request."""
    return f"{TASK}:{job_id}:{number}"


class Push:
    """Runs jobs of the task `http`."""

    def __init__(self, app: Mainspring, outgoing: Outgoing) -> None:
        self._app = app
        self._outgoing = outgoing
        self._secrets = Secrets(app.store)
        self._tokens = DeliveryTokens(app.store)

    async def run(self, ctx: Context, request: OutgoingRequest, secret: str | None, within: float) -> Any:
        """Send the request and return the result. What earlier runs have done is not repeated."""
        for number in count(1):
            answer = await ctx.step(f"request {number}", self._send, ctx, request, secret, number)
            if answer["status"] != HTTPStatus.ACCEPTED:
                return answer["result"]
            ended = await ctx.wait_for(signal_key(ctx.job_id, number), timeout=within, name=f"{WORK}{number}")
            if ended is not None and ended.payload["done"]:
                return ended.payload["result"]
            if await is_news(ctx, f"failure {number}"):
                raise failure_of(None if ended is None else ended.payload, within)
        raise AssertionError  # pragma: no cover - the loop has no end

    async def _send(self, ctx: Context, request: OutgoingRequest, secret: str | None, number: int) -> dict[str, Any]:
        with counted_delivery(self._app, TASK):
            try:
                headers = {**request.headers, **await self._headers(ctx, request.body, secret, number)}
                complete = OutgoingRequest(request.method, request.url, headers, request.body, request.timeout)
                answer = await self._outgoing.send(complete)
            except RequestRefused as refused:
                raise Discard(refused) from None
            judge(answer, self._app.now())
        return {"status": answer.status, "result": None if answer.status == HTTPStatus.ACCEPTED else result_of(answer)}

    async def _headers(self, ctx: Context, body: bytes, secret: str | None, number: int) -> dict[str, str]:
        timestamp = self._app.store.clock.now() // 1000
        headers = {ID: ctx.job_id, TIMESTAMP: str(timestamp)}
        if secret is not None:
            secret = secret_of(ctx.queue, secret)
            if not (texts := await self._secrets.texts(secret)):
                msg = f"there is no secret {secret!r} to sign with; create it with POST /v1/secrets"
                raise RequestFailed(msg)
            headers = signed(body, texts, ctx.job_id, timestamp)
        own = {
            "x-mainspring-job": ctx.job_id,
            "x-mainspring-attempt": str(ctx.attempt),
            "x-mainspring-queue": header_text(ctx.queue),
            "x-mainspring-task": header_text(ctx.task),
            "x-mainspring-token": await self._tokens.make(ctx.job_id, number),
        }
        return {**headers, **own, **{name: ctx.trace[name] for name in TRACE_HEADERS if name in ctx.trace}}


def secret_of(queue: str, name: str) -> str:
    """Return the whole name of a secret that a job of this queue may use: a project has its own secrets.

    Raise RequestRefused if it is that of a project, and the queue is in no project.
    """
    whole = key_in(queue, name)
    if project_of(whole) != project_of(queue):
        msg = f"the secret {name!r} belongs to a project, and the queue {queue!r} does not"
        raise RequestRefused(msg)
    return whole


def header_text(text: str) -> str:
    """Return a name in a form that a header can have."""
    return text.encode("ascii", "backslashreplace").decode()


async def is_news(ctx: Context, step: str) -> bool:
    """Return True the first time. Later runs of the job, which find the step recorded, go on to the next request."""
    news = False

    async def note() -> None:
        nonlocal news
        news = True

    await ctx.step(step, note)
    return news


def failure_of(reported: Mapping[str, Any] | None, within: float) -> Exception:
    """Return the error of work that failed, as its receiver has reported it, or that was not ended in time."""
    if reported is None:
        return RequestFailed(f"the answer was 202, but the work was not completed within {within:g} s")
    kind = RequestFailed if reported["retry"] else Discard
    return kind(reported["error"], code=reported.get("code"))
