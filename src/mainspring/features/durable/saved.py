"""What a handler saves of a step while it works on it: any JSON, kept among the job's steps until the job is removed.

The record of a state has the number of its step. So a retry from an earlier step forgets it, with the step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mainspring.clock import Millis
from mainspring.features.durable.journal import STATE, check_name
from mainspring.features.durable.outputs import to_json
from mainspring.job import Step

PREFIX = "\x1f"  # no name of a step has it, as it is not printable


def record_of(step: str, state: Any, number: int, now: Millis) -> Step:
    """Return the record of a step's state. Raise CannotStoreResult if the state is not JSON."""
    check_name(step)
    return Step(PREFIX + step, number, STATE, to_json(state, f"the state of step {step!r}"), now, now)


def saved_in(steps: Iterable[Step]) -> dict[str, Any]:
    """Return the saved states by the names of their steps."""
    return {step.name.removeprefix(PREFIX): json.loads(step.output or "null") for step in steps if step.kind == STATE}
