"""One request and its answer, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any
from urllib.parse import quote, urlencode

from pydantic_core import PydanticSerializationError, to_json

from mainspring.client.errors import ServiceError, UnexpectedAnswer, error_of

LENGTH_SHOWN = 200  # bytes of an answer that is not one of the service


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. The token is not part of it: the transport adds it."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float | None = None  # seconds for each read; None: the client's


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_problem(self) -> bool:
        return self.headers.get("content-type", "").startswith("application/problem+json")

    def error(self) -> ServiceError | UnexpectedAnswer:
        """Return the error that this answer is."""
        if 300 <= self.status < 400:
            return self.unexpected(f"it leads to {self.headers.get('location', 'another place')}")
        try:
            problem = json.loads(self.body) if self.body else {}
        except ValueError:
            problem = None
        if not isinstance(problem, dict) and self.status < 500:  # a proxy may answer 502 with a page
            return self.unexpected("it is not a problem (RFC 9457)")
        return error_of(self.status, problem if isinstance(problem, dict) else {}, self.retry_after)

    def unexpected(self, why: str) -> UnexpectedAnswer:
        """Return the error for an answer that cannot be read. It does not show JSON, which may have secrets inside."""
        hint = "check that the URL is the service's, and that client and service have versions that fit"
        is_json = "json" in self.headers.get("content-type", "")
        shown = "" if is_json else f". It begins: {self.body[:LENGTH_SHOWN].decode('utf-8', 'replace')!r}"
        return UnexpectedAnswer(f"cannot read the answer with status {self.status}: {why}; {hint}{shown}")

    @property
    def retry_after(self) -> float | None:
        """Seconds after which to try again, if the answer says so."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text)
        try:
            return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
        except (TypeError, ValueError):
            return None


def path_of(template: str, values: Mapping[str, str], query: Mapping[str, Any]) -> str:
    """Return the path with the values of its parameters, and the query."""
    path = template
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", segment(name, value))
    pairs = [(name, text) for name, value in query.items() for text in texts_of(value)]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def segment(name: str, value: str) -> str:
    """Return a value as one part of a path, whatever it has inside."""
    if not value:
        msg = f"{name} is {value!r}; give a text that is not empty"
        raise ValueError(msg)
    return quote(value, safe="") if value.strip(".") else value.replace(".", "%2E")


def texts_of(value: Any) -> list[str]:
    """Return a value as the texts of a query. None and empty lists are left out."""
    if value is None:
        return []
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [text for each in value for text in texts_of(each)]
    return [text_of(value)]


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return str(value.value if isinstance(value, Enum) else value)


def seconds(length: float | timedelta | None) -> float | None:
    """Return a length of time as the API takes it."""
    return length.total_seconds() if isinstance(length, timedelta) else length


def json_of(body: Any) -> bytes:
    """Return a body as JSON: also dataclasses, Pydantic models, times, UUIDs, decimals and sets are understood."""
    try:
        return to_json(body, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        msg = f"this cannot be sent as JSON: {error}"
        raise TypeError(msg) from None
