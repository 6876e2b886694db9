"""Wake-ups: what becomes of a suspended job when the key that it waits for is woken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError
from mainspring.job import TRANSITIONS, Move, Status


def woken(now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is woken now."""
    return {"status": TRANSITIONS[Status.SUSPENDED][Move.WAKE], "run_at": now, "waits_for": None}


def refuse_negative(keys: Mapping[str, int]) -> None:
    """Raise if a number is negative. Databases reject a negative LIMIT, or ignore it and would wake every job."""
    for key, number in keys.items():
        if number < 0:
            msg = f"wake: cannot wake {number} jobs for {key!r}; give 0 or more"
            raise ConfigurationError(msg)
