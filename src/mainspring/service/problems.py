"""Errors of the HTTP API, as RFC 9457 describes them: `application/problem+json` with one of a fixed list of codes.

docs/service.md lists the codes. A test compares that list with `KINDS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.errors import (
    BatchNotFound,
    BreakerNotFound,
    BulkNotFound,
    CannotStoreResult,
    ConfigurationError,
    CountMoved,
    DedupeConflict,
    EditConflict,
    FailureGroupNotFound,
    IllegalMove,
    InvalidCursor,
    InvalidPayload,
    InvalidPerson,
    JobNotFound,
    MainspringError,
    PersonNotFound,
    ScheduleNotFound,
    StepNotFound,
    StoreUnavailable,
    SubscriberNotFound,
    SystemHalted,
    TokenNotFound,
    UnknownTask,
)

CONTENT_TYPE = "application/problem+json"
ABOUT = "/v1/errors/"  # the page of a code; without a host, so that it is the same behind any name


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of error."""

    status: int
    title: str
    retry_after: int | None = None  # seconds, if it helps to try again later


KINDS: Mapping[str, Kind] = {
    "invalid_json": Kind(400, "The body is not valid JSON."),
    "invalid_cursor": Kind(400, "The cursor is not one of this list."),
    "unauthorized": Kind(401, "A valid token is needed."),
    "forbidden": Kind(403, "The caller is not allowed to do this."),
    "not_found": Kind(404, "What the request names does not exist."),
    "method_not_allowed": Kind(405, "The path does not have this method."),
    "request_timeout": Kind(408, "The body did not arrive in time."),
    "illegal_move": Kind(409, "The job is not in a state that allows this."),
    "duplicate": Kind(409, "Another live job holds the dedupe key."),
    "already_done": Kind(409, "The request has taken effect before, and its answer is not kept."),
    "count_moved": Kind(409, "The number of matching jobs has moved by more than 5 %."),
    "precondition_failed": Kind(412, "It was changed since it was read."),
    "body_too_large": Kind(413, "The body is too large."),
    "host_not_allowed": Kind(421, "The Host header names a host that is not configured."),
    "invalid_request": Kind(422, "The request does not fit the API's description."),
    "invalid_payload": Kind(422, "The payload does not fit the task's schema."),
    "unknown_task": Kind(422, "No worker has published a task of this name."),
    "idempotency_key_reused": Kind(422, "The idempotency key was used with another request."),
    "headers_too_large": Kind(431, "The headers are too large."),
    "too_many_requests": Kind(429, "The token makes too many requests.", retry_after=1),
    "too_many_streams": Kind(429, "The token has too many open streams.", retry_after=30),
    "too_many_logins": Kind(429, "Too many logins from this address have failed.", retry_after=60),
    "internal_error": Kind(500, "The service failed. The log has the cause, under the request id."),
    "system_halted": Kind(503, "A halt rejects new jobs.", retry_after=30),
    "store_unavailable": Kind(503, "The store does not answer.", retry_after=5),
}

OF_ERRORS: tuple[tuple[type[MainspringError], str], ...] = (  # the first that fits
    (UnknownTask, "unknown_task"),
    (InvalidPayload, "invalid_payload"),
    (CannotStoreResult, "invalid_payload"),
    (InvalidPerson, "invalid_request"),
    (JobNotFound, "not_found"),
    (StepNotFound, "not_found"),
    (BatchNotFound, "not_found"),
    (BulkNotFound, "not_found"),
    (BreakerNotFound, "not_found"),
    (FailureGroupNotFound, "not_found"),
    (ScheduleNotFound, "not_found"),
    (SubscriberNotFound, "not_found"),
    (TokenNotFound, "not_found"),
    (PersonNotFound, "not_found"),
    (IllegalMove, "illegal_move"),
    (DedupeConflict, "duplicate"),
    (CountMoved, "count_moved"),
    (EditConflict, "precondition_failed"),
    (SystemHalted, "system_halted"),
    (StoreUnavailable, "store_unavailable"),
    (InvalidCursor, "invalid_cursor"),
    (ConfigurationError, "invalid_request"),
)


@dataclass
class Problem(Exception):
    """An answer that is an error."""

    code: str
    detail: str
    errors: Sequence[Mapping[str, Any]] = ()  # for each field that is wrong: pointer or parameter, code, detail
    more: Mapping[str, Any] = field(default_factory=dict)  # further members of the answer
    retry_after: int | None = None  # seconds, instead of those of its kind

    @property
    def kind(self) -> Kind:
        return KINDS[self.code]

    def body(self, request_id: str, root: str = "") -> bytes:
        """Return the answer. `root` is where the service is mounted, so that `type` leads to the code's page."""
        members: dict[str, Any] = {
            "type": f"{root}{ABOUT}{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "code": self.code,
            "detail": self.detail,
            "request_id": request_id,
        }
        if self.errors:
            members["errors"] = list(self.errors)
        return json.dumps({**members, **self.more}, ensure_ascii=False).encode()

    def headers(self) -> dict[str, str]:
        headers = {"content-type": CONTENT_TYPE}
        seconds = self.kind.retry_after if self.retry_after is None else self.retry_after
        if seconds is not None:
            headers["retry-after"] = str(seconds)
        if self.code == "unauthorized":
            headers["www-authenticate"] = "Bearer"
        if self.code == "request_timeout":
            headers["connection"] = "close"  # what else arrives on it could be the rest of the body
        return headers


def pointer_of(parts: Iterable[str | int]) -> str:
    """Return a JSON pointer (RFC 6901). That of a whole document is empty."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def problem_of(error: MainspringError) -> Problem:
    """Return what a caller is told about an error of the library."""
    code = next((code for kind, code in OF_ERRORS if isinstance(error, kind)), "internal_error")
    if code == "store_unavailable":
        return Problem(code, "the store does not answer; the service's log has the cause")  # its text may name hosts
    if code == "internal_error":
        return Problem(code, "the service failed; its log has the cause")
    if isinstance(error, InvalidPerson):
        lines = [{"pointer": pointer_of(at.split(".")), "code": "invalid", "detail": why} for at, why in error.problems]
        return Problem(code, str(error), lines)
    return Problem(code, str(error))
