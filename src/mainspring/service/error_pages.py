"""`/v1/errors` and `/v1/errors/<code>`: what each code of an error means, when it comes and what to do next.

The member `type` of every error is the path of its page. Browsers get HTML, programs get JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.service.html import page, prose, root_of, table, tag, wants_html, with_code
from mainspring.service.problems import ABOUT, KINDS, Problem
from mainspring.service.requests import Router, answer

LIST = ABOUT.rstrip("/")


@dataclass(frozen=True, slots=True)
class Advice:
    when: str
    next: str


ADVICE: Mapping[str, Advice] = {
    "invalid_json": Advice(
        "The body could not be read as JSON. `detail` says where it breaks.",
        "Correct the body. Send UTF-8, without a trailing comma, and with `Content-Type: application/json`.",
    ),
    "invalid_cursor": Advice(
        "A cursor was cut, changed, or belongs to a list with other filters; or `Last-Event-ID` is not an id that this "
        "service has sent.",
        "Use the `cursor` of the page before, with the same filters. Otherwise begin again without a cursor.",
    ),
    "unauthorized": Advice(
        "The service needs a token and got none, or the token is mistyped, revoked or expired. A browser's session has "
        "ended.",
        "Send `Authorization: Bearer msk_…`. `mainspring tokens create` makes a token. In a browser, log in again.",
    ),
    "forbidden": Advice(
        "The token lacks the scope that `detail` names; or it is for one project or some queues, and the request needs "
        "more; or it is a public token, and the request is not about its jobs; or a browser sent the request for a "
        "page of another site.",
        "Use a token with that scope, or one without a project and queues. A page of another site needs a public "
        "token: `POST /v1/tokens:public`.",
    ),
    "already_done": Advice(
        "A request with this `Idempotency-Key` has taken effect, but its answer is not kept: it had a secret, it was "
        "very long, or the service died before it could keep it.",
        "Do not send it again. `see` is the path that shows what it did.",
    ),
    "not_found": Advice(
        "The job, schedule, token or path does not exist, or does not exist any more: retention removes finished jobs.",
        "Check the id and the path. `detail` names what was looked for.",
    ),
    "method_not_allowed": Advice(
        "The path exists, but not with this method.",
        "Use one of the methods in the header `Allow`.",
    ),
    "illegal_move": Advice(
        "The job has ended, runs, or waits, and what was asked for needs another state. For example, a job that runs "
        "cannot be edited.",
        "Read the job, and decide by its `status`. Do not repeat the request as it is.",
    ),
    "duplicate": Advice(
        "The change would give the job a dedupe key that another live job has.",
        "Wait until that job has ended, cancel it, or use another key.",
    ),
    "count_moved": Advice(
        "A bulk action was to change about as many jobs as `expect` says, and by now other jobs match.",
        "Look at the jobs again with a dry run, and send the new count.",
    ),
    "precondition_failed": Advice(
        "Another request has changed it since it was read: `If-Match` names an older version.",
        "Read it again, apply your change to what you get, and send it with the new `ETag`.",
    ),
    "body_too_large": Advice(
        "The body is larger than `max_body` allows; bulk enqueues may be five times as large.",
        "Send fewer jobs at once, keep large data elsewhere and enqueue its address, or raise `max_body`.",
    ),
    "request_timeout": Advice(
        "The body of the request did not arrive within `body_timeout` seconds after its headers.",
        "Send the request again. On a slow network, send fewer jobs at once, or raise `body_timeout`.",
    ),
    "headers_too_large": Advice(
        "The names and values of the headers have more than 16,384 bytes.",
        "Remove what the service does not need, such as cookies of other applications under the same name.",
    ),
    "host_not_allowed": Advice(
        "The header `Host` has a name that the service does not know. That protects it from pages that point their own "
        "name at this machine.",
        "Add the name to `allowed_hosts` if it is one of the service. A proxy must pass `Host` on.",
    ),
    "invalid_request": Advice(
        "A field or parameter is missing, unknown, of the wrong type, or out of range. `errors` lists them: `pointer` "
        "is a JSON pointer into the body, `parameter` the name of a parameter. Or the body is not marked as JSON.",
        "Correct the request. The API's description says what each field takes. Send JSON with `curl --json`.",
    ),
    "invalid_payload": Advice(
        "The payload does not fit the JSON Schema that the workers of the task have published.",
        "Correct the payload. `GET /v1/tasks/{name}` has the schema. After a deployment, wait for the new workers.",
    ),
    "unknown_task": Advice(
        "No worker has published a task of this name. `nearest` lists similar names.",
        "Correct the name, or start a worker that has the task. To enqueue before that, send `allow_unknown: true`.",
    ),
    "idempotency_key_reused": Advice(
        "The same `Idempotency-Key` came with another body within 24 hours.",
        "Use a new key for each new request, and the old one only to repeat a request as it was.",
    ),
    "too_many_requests": Advice(
        "The token has made more requests than `rate_limit` and `rate_burst` allow, in this process.",
        "Wait for as long as `Retry-After` says. Enqueue many jobs by one request (`POST /v1/jobs:bulk`), and follow"
        " jobs by their events instead of asking for them again and again.",
    ),
    "too_many_streams": Advice(
        "The token has 100 open streams of events in this process.",
        "Close streams that are not needed, and follow several jobs by one stream. Try again after `Retry-After`.",
    ),
    "too_many_logins": Advice(
        "Five logins from this address have failed within a minute. Each further failure doubles the wait, up to 1 h.",
        "Wait for as long as `Retry-After` says. Check that the token is complete, and not revoked.",
    ),
    "internal_error": Advice(
        "Something failed that should not have. It is not the request's fault.",
        "Look for `request_id` in the service's log. Repeat the request only with an idempotency key.",
    ),
    "system_halted": Advice(
        "An operator has halted the system so that it rejects new jobs.",
        "Try again after `Retry-After`. `GET /v1/halts` says who halted it and why.",
    ),
    "store_unavailable": Advice(
        "The database does not answer, or the service is stopping.",
        "Try again after `Retry-After`. A request with an idempotency key can be repeated safely.",
    ),
}


def error_data(code: str) -> dict[str, Any]:
    kind, advice = KINDS[code], ADVICE[code]
    return {
        "type": f"{ABOUT}{code}",
        "code": code,
        "status": kind.status,
        "title": kind.title,
        "when": advice.when,
        "next": advice.next,
        "retry_after": kind.retry_after,
    }


async def list_errors(request: Request) -> Response:
    if not wants_html(request):
        return answer({"errors": [error_data(code) for code in KINDS]})
    rows = [[link_to(request, code), str(kind.status), kind.title] for code, kind in KINDS.items()]
    about = prose("An error is `application/problem+json` (RFC 9457), with one of these values of `code`.")
    return page(request, "Errors", tag("h1", "Errors"), about, table(("code", "status", "meaning"), rows))


def link_to(request: Request, code: str) -> str:
    return tag("a", tag("code", code), href=f"{root_of(request)}{ABOUT}{code}")


async def show_error(request: Request) -> Response:
    code = request.path_params["code"]
    if code not in KINDS:
        raise Problem("not_found", f"there is no error {code!r}; {LIST} lists all codes")
    if not wants_html(request):
        return answer(error_data(code))
    kind, advice = KINDS[code], ADVICE[code]
    retry = "" if kind.retry_after is None else f"The header `Retry-After` says {kind.retry_after} seconds."
    return page(
        request,
        code,
        tag("h1", tag("code", code)),
        tag("p", f"Status {kind.status}. {kind.title}"),
        tag("h2", "When it comes"),
        prose(advice.when),
        tag("h2", "What to do next"),
        prose(f"{advice.next}\n\n{retry}"),
        tag("p", tag("a", with_code("All codes"), href=f"{root_of(request)}{LIST}")),
    )


router = Router()
router.routes += [Route(LIST, list_errors), Route(f"{ABOUT}{{code}}", show_error)]
