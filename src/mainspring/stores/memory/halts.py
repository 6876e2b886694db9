"""When a halt ends, and whom it concerns."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.clock import Millis, to_millis
from mainspring.stores.protocol import EVERY_QUEUE, Halt, Want


def end_of_halt(halt: Halt) -> Millis | None:
    return None if halt.until is None else to_millis(halt.until)


def is_wanted(queue: str | None, wants: Sequence[Want]) -> bool:
    return any(want.queue in (queue, EVERY_QUEUE) for want in wants)
