"""The current state of an application's limits: `app.limits`."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace

from mainspring.features.limits.options import COLLECTION, Limit, wait_key
from mainspring.features.limits.storage import Bucket, State, Turns, states_in
from mainspring.services import Services
from mainspring.stores.documents import Key
from mainspring.stores.paging import pages


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one limit, or of one key of it."""

    kind: str  # limit, rate or fair
    name: str
    key: str  # empty if the limit has no keys
    waits_for: str  # the `waits_for` of jobs that it blocks
    waiting: bool  # whether jobs may wait for it
    size: int  # a limit's slots; a rate's burst
    jobs: tuple[str, ...] = ()  # the jobs that hold its slots
    tokens: float | None = None  # only of a rate
    per_second: float | None = None  # only of a rate
    ready: int = 0  # only of a fair key: how many more jobs are ready or running

    @property
    def used(self) -> int:
        return len(self.jobs) + self.ready


class Limits:
    """The limits of an application that are in use: `app.limits`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def list(self, name: str | None = None) -> list[LimitState]:
        """Return all limits that are in use, or those of one name, by name and key."""
        found: list[LimitState] = []
        async for page in pages(self._services.store, COLLECTION, None):
            found += [shown(key, state) for key, state in states_in(page).items()]
        return [state for state in found if name in (None, state.name)]

    async def page(
        self, name: str | None = None, *, waiting: bool = False, limit: int = 100, after: tuple[str, str] | None = None
    ) -> tuple[builtins.list[LimitState], tuple[str, str] | None]:
        """Return limits in use by kind, name and key, after a place, and the last place if there are more."""
        found: builtins.list[tuple[Key, LimitState]] = []
        async for page in pages(self._services.store, COLLECTION, None, after=after):
            states = ((key, shown(key, state)) for key, state in states_in(page).items())
            found += [each for each in states if name in (None, each[1].name) and (each[1].waiting or not waiting)]
            if len(found) > limit:
                break
        last = found[limit - 1][0] if len(found) > limit else None
        return [state for _, state in found[:limit]], None if last is None else (last.group, last.id)

    async def get(self, name: str, key: str = "", *, kind: str = Limit.kind) -> LimitState | None:
        """Return the state of a limit; None if it is not in use now."""
        documents = await self._services.store.documents([Key(COLLECTION, f"{kind}:{name}", key)])
        return next((shown(key, state) for key, state in states_in(documents).items()), None)


def shown(key: Key, state: State) -> LimitState:
    kind, _, name = key.group.partition(":")
    limit = LimitState(kind, name, key.id, wait_key(key), state.waiting, 0)
    if isinstance(state, Bucket):
        return replace(limit, size=state.burst, tokens=round(state.tokens, 3), per_second=state.drip * 1000)
    ready = state.woken if isinstance(state, Turns) else 0
    return replace(limit, size=state.size, jobs=tuple(state.holders), ready=ready)
