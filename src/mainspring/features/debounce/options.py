"""What an enqueue declares: replace the job that waits under a key (debounce), or drop this one (throttle)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mainspring import names
from mainspring.clock import Length, Millis, duration, shown
from mainspring.errors import ConfigurationError

OPTION = "newest"
LONGEST_KEY = names.LONGEST_KEY


def check_key(key: Any, what: str) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        msg = f"{what} needs a key, a text of up to {LONGEST_KEY} characters, not {shown(key)}"
        raise ConfigurationError(msg)
    names.check_key(key, f"the key of {what}")


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most one job per key and window: `using(throttle=Throttle("report:7", per=60))`."""

    key: str
    per: Length  # counted from the job's enqueue; longer if the job is not finished by then

    def __post_init__(self) -> None:
        check_key(self.key, "throttle")
        if duration(self.per) <= 0:
            msg = f"throttle {self.key!r}: per is {self.per}; it must be a length of time above 0"
            raise ConfigurationError(msg)

    @property
    def dedupe_key(self) -> str:
        return f"throttle:{self.key}"


@dataclass(frozen=True, slots=True)
class Debounce:
    """Run once nothing more has come for a while: `using(debounce=Debounce("index:7", wait=5, max_wait=60))`."""

    key: str
    wait: Length  # each enqueue puts the job off by this
    max_wait: Length | None = None  # but not beyond this after the first enqueue; None: without end

    def __post_init__(self) -> None:
        check_key(self.key, "debounce")
        if duration(self.wait) <= 0:
            msg = f"debounce {self.key!r}: wait is {self.wait}; it must be a length of time above 0"
            raise ConfigurationError(msg)
        if self.max_wait is not None and duration(self.max_wait) < duration(self.wait):
            msg = f"debounce {self.key!r}: max_wait is {self.max_wait}, which is less than wait, {self.wait}"
            raise ConfigurationError(msg)

    def delay(self, first_at: Millis, now: Millis) -> Millis:
        wait = duration(self.wait)
        return wait if self.max_wait is None else max(0, min(wait, first_at + duration(self.max_wait) - now))
