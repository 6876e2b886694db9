"""Retry policies. A policy is data that answers two questions: may this error be retried, and after how long?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mainspring.clock import Millis, duration, shown
from mainspring.errors import ConfigurationError

Delay = timedelta | float
"""A timedelta or a number of seconds."""

DEFAULT_MAX_ATTEMPTS = 3
HIGHEST_MAX_ATTEMPTS = 1_000_000


def problem_of_attempts(number: object) -> str | None:
    if not isinstance(number, int):
        return f"max_attempts is {number!r}; give a whole number"
    if number < 1:
        return f"max_attempts is {shown(number)}; a job needs at least one attempt"
    if number > HIGHEST_MAX_ATTEMPTS:
        return f"max_attempts is {shown(number)}; give at most {HIGHEST_MAX_ATTEMPTS:,}"
    return None


@dataclass(frozen=True, slots=True)
class Retry:
    """When to retry a failed job. Exponential by default: 60 s, 120 s, 240 s … up to an hour, each up to 20 % longer.

    No delay is longer than `max_delay`. Delays that reach it are spread over the 20 % below it.

    Retry(max_attempts=5, base=1, max_delay=300)    1 s, 2 s, 4 s, 8 s
    Retry.fixed(30)                                 always 30 s
    Retry.delays(30, 60)                            30 s, then 60 s: three attempts
    Retry.by(lambda attempt, error: attempt * 10)   seconds, or None to give up
    Retry(max_attempts=None, base=1)                as many attempts as without this policy
    Retry(only=(TimeoutError,))  Retry(never=(ValueError,))
    """

    max_attempts: int | None = DEFAULT_MAX_ATTEMPTS  # None: the number that counts without this policy stays
    base: Delay = 60.0
    max_delay: Delay = 3600.0
    jitter_share: float = 0.2  # each delay is lengthened by up to this share of itself, within max_delay
    factor: float = 2.0
    explicit: tuple[Delay, ...] = ()  # used in order; the last one is repeated
    function: Callable[[int, BaseException], Delay | None] | None = None
    only: tuple[type[BaseException], ...] = ()
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.max_attempts is not None and (problem := problem_of_attempts(self.max_attempts)):
            raise ConfigurationError(problem)
        if (
            any(duration(delay) < 0 for delay in (self.base, self.max_delay, *self.explicit))
            or self.jitter_share < 0
            or self.factor < 1
        ):
            msg = "delays and jitter_share must not be negative, and factor not below 1"
            raise ConfigurationError(msg)

    @classmethod
    def fixed(
        cls, delay: Delay, *, max_attempts: int | None = DEFAULT_MAX_ATTEMPTS, jitter_share: float = 0.0
    ) -> Retry:
        max_delay = duration(delay) / 1000 * (1 + jitter_share)
        return cls(max_attempts=max_attempts, base=delay, max_delay=max_delay, factor=1.0, jitter_share=jitter_share)

    @classmethod
    def delays(cls, *delays: Delay, max_attempts: int | None = None, jitter_share: float = 0.0) -> Retry:
        if not delays:
            msg = "Retry.delays() needs at least one delay; for none use Retry(max_attempts=1)"
            raise ConfigurationError(msg)
        return cls(max_attempts=max_attempts or len(delays) + 1, explicit=delays, jitter_share=jitter_share)

    @classmethod
    def by(
        cls,
        function: Callable[[int, BaseException], Delay | None],
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Retry:
        return cls(max_attempts=max_attempts, function=function, jitter_share=0.0)

    def allows(self, error: BaseException) -> bool:
        if isinstance(error, self.never):
            return False
        return not self.only or isinstance(error, self.only)

    def delay(self, attempt: int, error: BaseException) -> Millis | None:
        """Return the milliseconds to wait after attempt number `attempt` failed, or None to give up."""
        planned = self._planned(attempt, error)
        if planned is None:
            return None
        longest = duration(planned) * (1 + self.jitter_share)
        if self.function is None and not self.explicit:
            longest = min(longest, duration(self.max_delay))
        return round(random.uniform(longest / (1 + self.jitter_share), longest))  # noqa: S311 - spreads load

    def _planned(self, attempt: int, error: BaseException) -> Delay | None:
        if self.function is not None:
            return self.function(attempt, error)
        if self.explicit:
            return self.explicit[min(attempt, len(self.explicit)) - 1]
        exponent = min(attempt - 1, 64)  # beyond that max_delay has long been reached
        return min(duration(self.base) * self.factor**exponent, duration(self.max_delay)) / 1000

    def to_data(self) -> dict[str, Any]:
        """Return the policy as JSON data, for a job with its own policy. Code and exception types cannot be stored."""
        if self.function or self.only or self.never:
            msg = "a retry policy with a function or exception rules belongs on the task, not on one job"
            raise ConfigurationError(msg)
        return {
            "max_attempts": self.max_attempts,
            "base": duration(self.base) / 1000,
            "max_delay": duration(self.max_delay) / 1000,
            "jitter_share": self.jitter_share,
            "factor": self.factor,
            "explicit": [duration(d) / 1000 for d in self.explicit],
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Retry:
        explicit: Sequence[float] = data.get("explicit", ())
        return cls(**{**data, "explicit": tuple(explicit)})
