"""What the client raises, as one tree.

    ClientError (a MainspringError)
    ├── ServiceUnreachable        no answer came: no connection, a lost connection, or a timeout
    ├── UnexpectedAnswer          an answer came that this client cannot read
    └── ServiceError              the service refused the request; `code` says why
        ├── InvalidRequest        400, 405, 408, 413, 421, 422, 431: the request is wrong (also a ValueError)
        │   ├── InvalidPayload    the payload does not fit the task's schema
        │   ├── UnknownTask       no worker has published the task; `nearest` has similar names
        │   └── KeyReused         the idempotency key was used with another request
        ├── Unauthorized          401: there is no valid token
        ├── Forbidden             403: the token does not allow this
        ├── NotFound              404: what the request names does not exist (also a LookupError)
        ├── Conflict              409: the state of things does not allow this now
        ├── PreconditionFailed    412: it was changed since it was read
        ├── TooManyRequests       429: later
        ├── ServiceUnavailable    503: later
        │   └── SystemHalted      a halt rejects new jobs
        └── ServiceFailed         other 5xx: the service's log has the cause

A code that this client does not know gives the class of its status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mainspring.errors import MainspringError


class ClientError(MainspringError):
    """A request to the service did not get the answer that was asked for."""


class ServiceUnreachable(ClientError):
    """The service did not answer.

    `sent` is True if the request may have reached the service: then it may have had its effect.
    """

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class UnexpectedAnswer(ClientError):
    """The answer is not one of Mainspring's service, or one of a version that this client does not know."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one field of a request."""

    code: str
    detail: str
    pointer: str | None = None  # where in the body, as a JSON pointer; empty: the body as a whole
    parameter: str | None = None  # where else: the name of a parameter of the query, the path or the headers


class ServiceError(ClientError):
    """The service refused a request."""

    advice: ClassVar[str] = ""

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after: float | None = None) -> None:
        self.status = status
        self.code = str(problem.get("code") or f"http_{status}")
        self.title = str(problem.get("title") or "")
        self.detail = str(problem.get("detail") or self.title or f"the service answered with status {status}")
        self.request_id = str(problem.get("request_id") or "")
        self.errors = field_problems(problem.get("errors"))
        self.problem = dict(problem)
        self.retry_after = retry_after
        super().__init__(self._message())

    @property
    def next_step(self) -> str:
        """What to do about it; empty if the detail says it all."""
        return ADVICE.get(self.code, self.advice)

    def _message(self) -> str:
        about = f"{self.code}, request {self.request_id}" if self.request_id else self.code
        advice = self.next_step
        return f"{self.detail} ({about})" + (f"; {advice}" if advice else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (type(self), self.status, self.problem, self.retry_after)


def restore(kind: type[ServiceError], status: int, problem: Mapping[str, Any], after: float | None) -> ServiceError:
    """Make an error again that was pickled, for example by a process pool."""
    return kind(status, problem, retry_after=after)


def field_problems(given: Any) -> tuple[FieldProblem, ...]:
    lines: Sequence[Any] = given if isinstance(given, list) else ()
    return tuple(
        FieldProblem(
            *(str(line.get(name, "")) for name in ("code", "detail")),
            *(line.get(name) if isinstance(line.get(name), str) else None for name in ("pointer", "parameter")),
        )
        for line in lines
        if isinstance(line, Mapping)
    )


class InvalidRequest(ServiceError, ValueError):
    """The request is wrong. `errors` says what is wrong with each field."""


class InvalidPayload(InvalidRequest):
    """The payload does not fit the task's schema."""

    advice = "client.tasks.get(…).payload_schema has the schema"


class UnknownTask(InvalidRequest):
    """No worker has published a task of this name."""

    @property
    def nearest(self) -> Sequence[str]:
        """Tasks with similar names."""
        return tuple(map(str, self.problem.get("nearest") or ()))


class KeyReused(InvalidRequest):
    """The idempotency key was used with another request."""

    advice = "give each request a key of its own, or leave idempotency_key out"


class Unauthorized(ServiceError):
    """There is no valid token."""

    advice = "give one by token=… or MAINSPRING_TOKEN; `mainspring tokens create` makes one"


class Forbidden(ServiceError):
    """The token does not allow this."""

    advice = "use a token with the scope that is needed; `mainspring tokens create --scope …` makes one"


class NotFound(ServiceError, LookupError):
    """What the request names does not exist."""


class Conflict(ServiceError):
    """The state of things does not allow this now: `illegal_move`, `duplicate`, `count_moved` or `already_done`."""


class PreconditionFailed(ServiceError):
    """It was changed since it was read."""

    advice = "read it again, apply your change to what you get, and send that with its etag"


class TooManyRequests(ServiceError):
    """The service wants fewer requests. `retry_after` says when to come back, in seconds."""


class ServiceUnavailable(ServiceError):
    """The service cannot do this now. `retry_after` says when to try again, in seconds."""


class SystemHalted(ServiceUnavailable):
    """A halt rejects new jobs."""

    advice = "try again once it is resumed; client.halts() shows who has halted it and why"


class ServiceFailed(ServiceError):
    """The service failed. Its log has the cause, under the request id."""


ADVICE: Mapping[str, str] = {
    "already_done": "do not send it again; its member `see` is the path that shows what it did",
    "invalid_cursor": "begin at the first page again, without a cursor",
    "request_timeout": "send less at once, or raise body_timeout of the service",
    "headers_too_large": "send fewer headers",
    "body_too_large": "send fewer or smaller jobs at once",
    "host_not_allowed": "add this host to the service's setting allowed_hosts",
    "illegal_move": "look at the job's status first: client.jobs.get(…)",
    "count_moved": "count again with dry_run, and confirm the new number",
    "too_many_requests": "enqueue many jobs by one request, and follow jobs by their events",
    "too_many_streams": "use one stream for all that you follow",
}

OF_CODES: Mapping[str, type[ServiceError]] = {
    "invalid_payload": InvalidPayload,
    "unknown_task": UnknownTask,
    "idempotency_key_reused": KeyReused,
    "system_halted": SystemHalted,
}

OF_STATUSES: Mapping[int, type[ServiceError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    410: NotFound,
    412: PreconditionFailed,
    408: InvalidRequest,
    413: InvalidRequest,
    421: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
    431: InvalidRequest,
    503: ServiceUnavailable,
}


def error_of(status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> ServiceError:
    """Return the error that a problem (RFC 9457) describes."""
    by_status = OF_STATUSES.get(status, ServiceFailed if status >= 500 else ServiceError)
    return OF_CODES.get(str(problem.get("code")), by_status)(status, problem, retry_after=retry_after)
