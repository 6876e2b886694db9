"""Looks at limits for which jobs wait: lets those go on whose turn it is, and finds what got lost with a process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mainspring.clock import Millis, to_datetime
from mainspring.flow.limits.admission import State
from mainspring.flow.limits.bucket import Bucket
from mainspring.flow.limits.kept import call, gone, state_in, write_of, written
from mainspring.flow.limits.limit import COLLECTION
from mainspring.flow.limits.slots import Slots
from mainspring.flow.limits.turns import UNANSWERED, Turns
from mainspring.job import Status
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.protocol import Filter

if TYPE_CHECKING:
    from mainspring.app import Mainspring


class LimitTimer:
    collection = COLLECTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        states = {document.key: state_in(document) for document in documents}
        holders = {one for state in states.values() if isinstance(state, Slots) for one in state.holders.items()}
        dead = await gone(self._app.store, holders)
        busy = await self._busy({key.group for key, state in states.items() if has_stale_calls(state, now)}, now)
        calls: dict[Key, int] = {}
        writes: list[Write] = []
        for document in documents:
            state = states[document.key]
            if isinstance(state, Turns) and document.key.group not in busy:
                state.give_up_calls(now)
            calls[document.key] = next_turn(state, now) if isinstance(state, Bucket) else empty_places(state, dead, now)
            writes.append(write_of(document.key, state, document, now, anew=True))
        answers = await self._app.store.write([Bundle((write,)) for write in writes])
        ours = {write.key: written(write) for write, answer in zip(writes, answers, strict=True) if answer is not None}
        if wanted := {key: number for key, number in calls.items() if number and key in ours}:
            await call(self._app.store, wanted, ours, now)

    async def _busy(self, groups: Iterable[str], now: Millis) -> set[str]:
        """Fair tasks of which jobs are ready: those that were called may be among them, and come yet."""
        tasks = {group: group.partition(":")[2] for group in groups}
        due = to_datetime(now + 1)
        found = {
            group: await self._app.store.count(Filter(statuses=(Status.PENDING,), tasks=(task,), due_before=due))
            for group, task in tasks.items()
        }
        return {group for group, number in found.items() if number}

    async def refresh(self) -> None:
        """Nothing: what is wrong comes due."""


def has_stale_calls(state: State, now: Millis) -> bool:
    return isinstance(state, Turns) and state.called > 0 and now - state.called_at > UNANSWERED


def next_turn(bucket: Bucket, now: Millis) -> int:
    bucket.fill(now)
    return bucket.call(now) if bucket.waiting else 0


def empty_places(slots: Slots, dead: set[tuple[str, int]], now: Millis) -> int:
    slots.drop(dead & set(slots.holders.items()))
    if isinstance(slots, Turns):
        return slots.call(slots.room, now) if slots.waiting else 0
    return slots.room if slots.waiting else 0
