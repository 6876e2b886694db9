"""What an answer to a pushed job means. The code here does no I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from mainspring.errors import Discard, RequestFailed, Snooze
from mainspring.json_text import problem_of_json
from mainspring.outgoing.client import Answer

LONGEST_RETRY_AFTER = 3_600.0  # seconds
SHORTEST_RETRY_AFTER = 1.0
EXCERPT = 300  # characters of an answer that an error shows
PAUSING = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
WORTH_A_RETRY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


def judge(answer: Answer, now: datetime) -> None:
    """Return if the answer is a success. Otherwise raise what becomes of the job.

    Snooze: the receiver has asked for a pause, and no attempt is used. Discard: no retry helps. RequestFailed: another
    attempt may succeed.
    """
    status = answer.status
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    reason = f"the answer was {status}{excerpt(answer)}"
    if status in PAUSING and (delay := retry_after(answer, now)) is not None:
        raise Snooze(delay, f"{reason}; it asked for {delay:g} s")
    if status == HTTPStatus.GONE:
        msg = f"{reason}: the receiver wants no more requests"
        raise Discard(msg, code=status)
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in WORTH_A_RETRY:
        raise Discard(reason, code=status)
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        reason += "; redirects are not followed, use the address itself"
    raise RequestFailed(reason, code=status)


def retry_after(answer: Answer, now: datetime) -> float | None:
    """Return the seconds that the receiver asks for; None if it does not, or not in a form that is known."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (moment - now).total_seconds()
    return min(max(seconds, SHORTEST_RETRY_AFTER), LONGEST_RETRY_AFTER)


def result_of(answer: Answer) -> Any:
    """Return the JSON of an answer, or else its text; None if it is empty."""
    text = answer.body.decode("utf-8", "replace").replace("\0", "�")
    if not text:
        return None
    if not answer.cut:
        try:
            value = json.loads(text)
            stored = json.dumps(value, ensure_ascii=False, allow_nan=False)
            stored.encode()  # fails for halves of surrogate pairs
        except (ValueError, RecursionError):
            return text
        if problem_of_json(stored, value) is None:
            return value
    return text


def excerpt(answer: Answer) -> str:
    text = answer.body[: 4 * EXCERPT].decode("utf-8", "replace").strip()[:EXCERPT]
    return f": {text}" if text else ""
