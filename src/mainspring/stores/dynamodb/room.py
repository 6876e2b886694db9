"""Split writes into parts that fit into one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mainspring.job import NewJob, Step
from mainspring.stores.dynamodb.table import TRANSACTION

T = TypeVar("T")

MAX_BYTES = 3 * 2**20  # of one transaction; the service accepts 4 MB
MAX_ITEMS = TRANSACTION - 1  # of one transaction, without the update of the job that writes them


@dataclass(frozen=True, slots=True)
class Room:
    """What something takes up in a transaction."""

    items: int = 0
    bytes: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.items + other.items, self.bytes + other.bytes)

    def fits(self) -> bool:
        return self.items <= MAX_ITEMS and self.bytes <= MAX_BYTES


def room_for_job(job: NewJob) -> Room:
    """Count the job, its dedupe key, and the item under the key that it waits for."""
    return Room(1 + (job.dedupe_key is not None) + (job.waits_for is not None), len(job.payload.encode()))


def room_for_step(step: Step) -> Room:
    return Room(1, len((step.output or "").encode()))


def parts_that_fit(things: Sequence[T], room_for: Callable[[T], Room]) -> Iterator[tuple[T, ...]]:
    part: list[T] = []
    taken = Room()
    for thing in things:
        taken += room_for(thing)
        if part and not taken.fits():
            yield tuple(part)
            part, taken = [], room_for(thing)
        part.append(thing)
    if part:
        yield tuple(part)
