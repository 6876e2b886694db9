"""An example of each problem, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.service.error_pages import ADVICE
from mainspring.service.problems import ABOUT, KINDS

JOB = "01983d5c-7a10-7c3e-9b52-6f0a4c1d2e3f"
AUDIT = "/v1/audit?operation=01983d5c-8e44-7b1a-8c20-3d9e5f6a7b8c"

DETAILS: Mapping[str, str] = {
    "invalid_json": "Invalid JSON: trailing comma at line 4 column 3",
    "invalid_cursor": "'bm9wZQ' is not a cursor of people; pass the cursor of the page before, unchanged",
    "unauthorized": "the token is wrong, revoked or expired",
    "forbidden": "this needs the scope operate; the token 'reception' has enqueue, read",
    "not_found": f"there is no job {JOB!r}",
    "method_not_allowed": "PUT /v1/jobs: Method Not Allowed",
    "illegal_move": f"job {JOB} is completed and cannot be cancelled",
    "duplicate": "another live job holds the dedupe key 'invoice-2027-118'",
    "already_done": "the request with this Idempotency-Key has taken effect before, and its answer is lost, because the"
    f" process that carried it out has ended or is very slow; GET {AUDIT} shows the effect",
    "count_moved": "412 jobs match, and 380 were expected",
    "precondition_failed": "it was changed since you have read it; read it again, and send its ETag as If-Match",
    "body_too_large": "the body of this request may have up to 1,048,576 bytes",
    "request_timeout": "the body did not arrive within 30 seconds; send the request again",
    "headers_too_large": "the headers of a request may have up to 16,384 bytes",
    "host_not_allowed": "the Host header names 'jobs.example'; add it to `allowed_hosts` if the service has this name",
    "invalid_request": "/delay: Input should be a valid number",
    "invalid_payload": "the payload of welcome is wrong: guest: Field required",
    "unknown_task": "no worker has published a task 'welcom'; do you mean 'welcome'? To enqueue without a check, set"
    " allow_unknown to true",
    "idempotency_key_reused": "this Idempotency-Key was used with another body; make a new one",
    "too_many_requests": "the token may make 100 requests a second, and 200 at once; try again after 1 s, or send"
    " several jobs in one request (POST /v1/jobs:bulk)",
    "too_many_streams": "the token has 100 open streams in this process",
    "too_many_logins": "5 logins from this address have failed; try again in 60 seconds",
    "internal_error": "the service failed; its log has the cause",
    "system_halted": "the system is halted and rejects new jobs: restoring the database",
    "store_unavailable": "the store does not answer; the service's log has the cause",
}

MORE: Mapping[str, Mapping[str, Any]] = {
    "invalid_request": {
        "errors": [{"pointer": "/delay", "code": "float_type", "detail": "Input should be a valid number"}]
    },
    "unknown_task": {"nearest": ["welcome"]},
    "already_done": {"see": AUDIT, "effect": {"operation": AUDIT.rpartition("=")[2]}},
}
"""Members that only some codes have, beside those of every problem."""


def problem_example(code: str) -> dict[str, Any]:
    """Return a problem as a caller gets it."""
    return {
        "type": f"{ABOUT}{code}",
        "title": KINDS[code].title,
        "status": KINDS[code].status,
        "code": code,
        "detail": DETAILS.get(code, ADVICE[code].when),
        "request_id": "9f2c41d07be35a68",
        **MORE.get(code, {}),
    }
