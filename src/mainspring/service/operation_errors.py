"""Which errors each operation can answer, for the OpenAPI document.

Some codes come from what all requests pass (guard.py). Others follow from what an operation takes: a body, a cursor, an
ETag, an idempotency key. An operation declares the rest itself, by the argument `may` of `needs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.service.guard import OPEN_PATHS, UNLIMITED
from mainspring.service.problem_examples import problem_example
from mainspring.service.problems import CONTENT_TYPE, KINDS
from mainspring.service.replay import KeyKind
from mainspring.service.requests import KEY_OF, MAY_ANSWER

EVERYWHERE = ("body_too_large", "headers_too_large", "invalid_request", "internal_error")
GUARDED = ("unauthorized", "forbidden", "host_not_allowed", "store_unavailable")
OF_PARAMETERS = {
    "cursor": "invalid_cursor",
    "last_event_id": "invalid_cursor",
    "if-match": "precondition_failed",
    "if-none-match": "precondition_failed",
}
MAY_LOSE_ANSWER = {KeyKind.ANSWER, KeyKind.SECRET, KeyKind.RESUMED, KeyKind.EXECUTION}


def codes_of(path: str, method: str, operation: Mapping[str, Any]) -> list[str]:
    """Return the codes that an operation can answer, in the order of `KINDS`."""
    found = {*EVERYWHERE, *operation.get(MAY_ANSWER, ())}
    if path not in OPEN_PATHS:
        found.update(GUARDED)
        if path not in UNLIMITED:
            found.add("too_many_requests")
    if "{" in path:
        found.add("not_found")
    if "requestBody" in operation:
        found.update(("invalid_json", "request_timeout"))
    if method == "post":
        found.update(of_key(KeyKind(operation.get(KEY_OF, KeyKind.ANSWER))))
    names = {parameter["name"].lower() for parameter in operation.get("parameters", ())}
    found.update(code for name, code in OF_PARAMETERS.items() if name in names)
    return [code for code in KINDS if code in found]


def of_key(kind: KeyKind) -> tuple[str, ...]:
    return ("idempotency_key_reused", "already_done") if kind in MAY_LOSE_ANSWER else ("idempotency_key_reused",)


def by_status(codes: Iterable[str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for code in codes:
        found[KINDS[code].status] = (*found.get(KINDS[code].status, ()), code)
    return found


def response_name(codes: Iterable[str]) -> str:
    """Return the name of the response in the document's components. Operations with the same codes share it."""
    return ".".join(codes)


def response_of(codes: Iterable[str]) -> dict[str, Any]:
    """Return the description of an answer that has one of these codes."""
    codes = list(codes)
    schema = {"$ref": "#/components/schemas/ProblemView"}
    examples = {code: {"summary": KINDS[code].title, "value": problem_example(code)} for code in codes}
    return {
        "description": " ".join(f"`{code}`: {KINDS[code].title}" for code in codes),
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers_of(codes)},
        "content": {CONTENT_TYPE: {"schema": schema, "examples": examples}},
    }


def headers_of(codes: Iterable[str]) -> list[str]:
    names = ["X-Request-Id"]
    if any(KINDS[code].retry_after is not None for code in codes):
        names.append("Retry-After")
    return [*names, "WWW-Authenticate"] if "unauthorized" in codes else names
