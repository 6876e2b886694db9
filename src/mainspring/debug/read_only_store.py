"""A store that can only be read. What a handler would write is reported and not written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mainspring.debug.unrecorded import Unrecorded
from mainspring.errors import ConfigurationError
from mainspring.job import Inserted, Job, NewJob, Save, Step
from mainspring.stores.documents import Bundle
from mainspring.stores.protocol import Completion, Store

READS = frozenset({
    "clock", "url", "lease", "stall_grace", "poll", "transactional", "open", "close", "find", "count", "count_up_to",
    "dead_letters", "complete", "attempts", "timeline", "stats", "audit", "diagnose", "halts", "unconfirmed",
    "documents", "browse", "due", "dump", "look_up", "sizes", "under_way", "measures",
})  # fmt: skip


class ReadOnlyStore:
    """Replaces an application's store; calls `would` for each job that would have been enqueued."""

    def __init__(self, store: Store, steps: Mapping[str, list[Step]], would: Callable[[str, NewJob], None]) -> None:
        self._store = store
        self._steps = steps  # by job, instead of the steps in the store
        self._would = would
        self._pretended: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            return getattr(self._store, name)
        msg = f"a debug run writes nothing, so store.{name}() cannot be called here"
        raise ConfigurationError(msg)

    async def steps(self, job_id: str) -> list[Step]:
        return self._steps[job_id] if job_id in self._steps else await self._store.steps(job_id)

    async def get(self, ids: Sequence[str]) -> list[Job]:
        if missing := self._pretended.intersection(ids):
            msg = f"it reads {len(missing)} of the jobs above, which were not enqueued"
            raise Unrecorded(msg)
        return await self._store.get(ids)

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        del connection
        return self._pretend("enqueue", jobs)

    def insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        return self._pretend("enqueue", jobs)

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        return [self._pretend("spawn", save.jobs) for save in saves]

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        return [self._pretend("enqueue", bundle.jobs) for bundle in bundles]

    async def wake(self, keys: Mapping[str, int]) -> dict[str, int]:
        return dict.fromkeys(keys, 0)

    def _pretend(self, what: str, jobs: Sequence[NewJob]) -> list[Inserted]:
        for job in jobs:
            self._would(what, job)
            self._pretended.add(job.id)
        return [Inserted(job.id, created=True) for job in jobs]


class RolledBack:
    """A transaction that is always rolled back."""

    def __init__(self, completion: Completion, said: Callable[[str], None]) -> None:
        self._completion = completion
        self._said = said

    def __enter__(self) -> Any:
        return self._completion.__enter__()

    def __exit__(self, *_: object) -> None:
        end = Undone()
        self._completion.__exit__(Undone, end, end.__traceback__)
        self._said("ctx.transaction() was rolled back")

    async def __aenter__(self) -> Any:
        return await self._completion.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        end = Undone()
        await self._completion.__aexit__(Undone, end, end.__traceback__)
        self._said("ctx.transaction() was rolled back")


class Undone(Exception):
    """Makes a transaction roll back."""
