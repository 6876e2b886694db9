"""Looks at limits for which jobs wait: lets those go on whose turn it is, and finds what got lost with a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mainspring.clock import Millis
from mainspring.flow.limits.admission import State
from mainspring.flow.limits.bucket import Bucket
from mainspring.flow.limits.kept import FAIR, call, gone, state_in, write_of, written
from mainspring.flow.limits.limit import COLLECTION
from mainspring.flow.limits.slots import Slots
from mainspring.flow.limits.turns import UNANSWERED, Turns
from mainspring.stores.documents import Bundle, Document, Key, Write

if TYPE_CHECKING:
    from mainspring.app import Mainspring

LOOK_EVERY: Millis = 5_000  # at the jobs that are out of the line


class LimitTimer:
    collection = COLLECTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._out: dict[str, tuple[Millis, Collection[str] | None]] = {}  # when we looked who is out of the line

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        states = {document.key: state_in(document) for document in documents}
        holders = {one for state in states.values() if isinstance(state, Slots) for one in state.holders.items()}
        dead = await gone(self._app.store, holders)
        busy = await self._busy({key for key, state in states.items() if has_stale_calls(state, now)}, now)
        calls: dict[Key, int] = {}
        writes: list[Write] = []
        for document in documents:
            state = states[document.key]
            if isinstance(state, Turns) and document.key not in busy:
                state.give_up_calls(now)
            calls[document.key] = next_turn(state, now) if isinstance(state, Bucket) else empty_places(state, dead, now)
            writes.append(write_of(document.key, state, document, now, anew=True))
        answers = await self._app.store.write([Bundle((write,)) for write in writes])
        accepted = [write for write, answer in zip(writes, answers, strict=True) if answer is not None]
        ours = {write.key: after for write in accepted if (after := written(write)) is not None}
        if wanted := {key: number for key, number in calls.items() if number and key in ours}:
            await call(self._app.store, wanted, ours, now)

    async def _busy(self, keys: Collection[Key], now: Millis) -> set[Key]:
        """Of which jobs are ready or run: those that were called may be among them, and end yet."""
        out = {group: await self._keys_out(group, now) for group in {key.group for key in keys}}
        return {key for key in keys if (found := out[key.group]) is None or key.id in found}

    async def _keys_out(self, group: str, now: Millis) -> Collection[str] | None:
        """One look for many documents. In that time nothing changes for those whose calls are as old as these."""
        looked_at, found = self._out.get(group, (-LOOK_EVERY, None))
        if not 0 <= now - looked_at < LOOK_EVERY:
            found = await self._app.limits.keys_out(group.removeprefix(FAIR), now)
            self._out[group] = now, found
        return found

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
