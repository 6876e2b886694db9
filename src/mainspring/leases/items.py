"""What a lessee reports about its jobs. Each item names the job and the token of its lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.clock import Length, Millis, check_moment, delay_of, to_millis
from mainspring.errors import ConfigurationError, Failure, check_code
from mainspring.features.durable.journal import check_name

MAX_TOKEN = 2**63 - 1  # that every store can compare


@dataclass(frozen=True, slots=True)
class Item:
    job_id: str
    token: int

    def __post_init__(self) -> None:
        if not is_text(self.job_id):
            msg = f"job_id is {self.job_id!r}; give the id of a leased job, as text"
            raise ConfigurationError(msg)
        if not is_number(self.token, int) or not 0 <= self.token <= MAX_TOKEN:
            msg = f"the token of job {self.job_id} is {self.token!r}; give the whole number that came with the lease"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Heartbeat(Item):
    """The lessee still works on the job."""


@dataclass(frozen=True, slots=True)
class Progress(Item):
    """How far the job is."""

    fraction: float  # from 0 to 1
    note: str = ""

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        if not is_number(self.fraction, int, float) or not 0 <= self.fraction <= 1:
            msg = f"progress must be a fraction between 0 and 1, not {self.fraction!r}"
            raise ConfigurationError(msg)
        check_text(self.note, "note")


@dataclass(frozen=True, slots=True)
class SaveStep(Item):
    """A step of the job is done. A step of the same name is replaced; `output` is any JSON value."""

    name: str
    output: Any = None

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        check_name(self.name)


@dataclass(frozen=True, slots=True)
class Complete(Item):
    """The job has succeeded."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Fail(Item):
    """The job has failed. The retry policy of its task decides whether and when it runs again."""

    error: str | Failure | BaseException
    retry: bool = True  # False: a dead letter at once

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        if not isinstance(self.error, (str, Failure, BaseException)):
            msg = f"error is {self.error!r}; give a text, a Failure or an exception"
            raise ConfigurationError(msg)
        if isinstance(self.error, Failure):
            check_code(self.error.code)
            for name in ("type", "message", "traceback", "fingerprint", "place"):
                check_text(getattr(self.error, name), f"{name} of a Failure")


@dataclass(frozen=True, slots=True)
class Snooze(Item):
    """Run the job later, without using an attempt."""

    delay: Length | None = None
    until: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        if (self.delay is None) == (self.until is None):
            msg = "a snooze needs either `delay`, a length of time, or `until`, a time with its zone"
            raise ConfigurationError(msg)
        check_text(self.reason, "reason")
        self.delay_from(0)

    def delay_from(self, now: Millis) -> Millis:
        """Return the delay from `now` on; 0 if the time is over."""
        if self.until is not None:
            return max(0, to_millis(check_moment(self.until, "until")) - now)
        return delay_of(self.delay or 0)


@dataclass(frozen=True, slots=True)
class Release(Item):
    """The lessee has not done the job; another worker may have it, without using an attempt."""

    reason: str = ""

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        check_text(self.reason, "reason")


@dataclass(frozen=True, slots=True)
class Cancelled(Item):
    """The lessee has stopped, because the job was cancelled; or the job turned out to be pointless."""

    reason: str = ""

    def __post_init__(self) -> None:
        Item.__post_init__(self)
        check_text(self.reason, "reason")


def check_text(value: object, what: str) -> None:
    """Raise ConfigurationError for what is not text: the store would refuse it after other items were written."""
    if not isinstance(value, str):
        msg = f"{what} is {value!r}; give text"
        raise ConfigurationError(msg)


def check_held(held: object) -> None:
    """Raise ConfigurationError unless the held jobs are ids and their tokens."""
    if not isinstance(held, Mapping):
        msg = f"held is {held!r}; give the ids of the leased jobs with their tokens: {{job_id: token}}"
        raise ConfigurationError(msg)
    for job_id, token in held.items():
        Item(job_id, token)


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


ENDINGS = (Complete, Fail, Snooze, Release, Cancelled)
"""The items that end a lease."""
