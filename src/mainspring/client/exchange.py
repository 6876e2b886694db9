"""A request, its attempts and its answer."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from mainspring.client.connection import Connection
from mainspring.client.errors import ClientError, ServiceUnreachable, SystemHalted, TooManyRequests
from mainspring.client.request import Answer, Request
from mainspring.client.steps import Pause, Send, Steps

T = TypeVar("T")

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds between two attempts, if the service does not say when to come back
LATER = frozenset({429, 502, 503, 504})  # it helps to try again
KEY = "idempotency-key"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and what is known about it."""

    request: Request
    answer: type[T]
    is_repeatable: bool  # sending it twice has the effect of sending it once
    also: frozenset[int] = frozenset()  # statuses besides 2xx that are answers, and not errors

    def accepts(self, answer: Answer) -> bool:
        return answer.is_success or (answer.status in self.also and not answer.is_problem)

    def has_deleted(self, answer: Answer) -> bool:
        """Return whether an earlier attempt, whose answer was lost, has deleted what the request names."""
        return self.request.method == "DELETE" and answer.status == 404 and self.answer is type(None)


class Attempts:
    """Decides when a request is tried again. Time runs from the first attempt."""

    def __init__(self, connection: Connection, retry_for: float | None = None) -> None:
        self._clock = connection.clock
        self._end = self._clock() + (connection.retry_for if retry_for is None else retry_for)
        self._delay = FIRST_DELAY

    def pause(self, retry_after: float | None = None) -> float | None:
        """Return how long to wait before the next attempt; None: this was the last one."""
        spread = self._delay * random.uniform(0.5, 1.0)  # noqa: S311 - so that clients do not come back all at once
        delay = spread if retry_after is None else max(retry_after, 0.0) + spread
        self._delay = min(self._delay * 2, LONGEST_DELAY)
        return delay if self._clock() + delay < self._end else None


def new_key() -> str:
    return uuid.uuid4().hex


def exchange(call: Call[T], connection: Connection, retry_for: float | None = None) -> Steps[T]:
    """Send a request until it is answered; raise ClientError if it is refused, or if no answer comes in time."""
    attempts, was_lost = Attempts(connection, retry_for), False
    while True:
        failure: ClientError
        try:
            answer: Answer = yield Send(call.request)
        except ServiceUnreachable as error:
            was_lost = was_lost or error.sent
            failure, retry_after = with_advice(error, call), None
            may_repeat = call.is_repeatable or not error.sent
        else:
            if call.accepts(answer) or (was_lost and call.has_deleted(answer)):
                return read(answer, call.answer)
            failure, retry_after = answer.error(), answer.retry_after
            may_repeat = answer.status in LATER and (call.is_repeatable or is_refusal(failure))
        pause = attempts.pause(retry_after) if may_repeat else None
        if pause is None:
            raise failure from None
        yield Pause(pause)


def is_refusal(failure: ClientError) -> bool:
    """Return whether the service says that it has not begun to do what was asked for."""
    return isinstance(failure, TooManyRequests | SystemHalted)


def with_advice(error: ServiceUnreachable, call: Call[T]) -> ServiceUnreachable:
    if not error.sent:
        hint = "is the service running, and is the URL right (url=… or MAINSPRING_URL)?"
    elif call.is_repeatable:
        hint = "it may or may not have been done; the same request with the same idempotency key is safe to repeat"
    else:
        hint = "it may or may not have been done, and it is not safe to repeat: look first"
    return ServiceUnreachable(f"{error}; {call.request.method} {call.request.path}: {hint}", sent=error.sent)


def read(answer: Answer, kind: type[T]) -> T:
    """Return the answer as its model. If that has a field `etag`, it gets the header."""
    if not issubclass(kind, BaseModel):
        return None  # type: ignore[return-value] # the only other answer is NoneType
    try:
        model = kind.model_validate_json(answer.body)
    except ValidationError as error:
        line = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(map(str, line["loc"]))
        raise answer.unexpected(f"{where}: {line['msg']}" if where else line["msg"]) from None
    if "etag" in kind.model_fields:
        object.__setattr__(model, "etag", answer.headers.get("etag", ""))
    return model
