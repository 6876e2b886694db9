"""Settings of tasks, queues and limits that operators change at run time, as this process knows them.

Each task, queue or named limit with changed settings has a document. Another document, the stamp, is written with each
change, so that one cheap read tells whether anything is new. Workers look at the stamp when they are woken, and several
times a second without it, as a wake-up may be lost. Other processes look at an enqueue, at most once per `FRESH_FOR`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from mainspring.clock import Millis, since_boot
from mainspring.job import FreshJobs, Level, NewJob
from mainspring.json_text import read_object
from mainspring.log import get_log
from mainspring.retry import Retry
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Document, Key
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Store

log = get_log("mainspring.settings")

COLLECTION = "settings"
STAMP = Key("settings_stamp", "", "stamp")
FRESH_FOR = 0.8  # seconds for which a process uses what it has read
NEVER = float("-inf")


class Kind(StrEnum):
    """What a setting is of; the group of its document."""

    TASK = "task"
    QUEUE = "queue"
    LIMIT = "limit"  # a limit or rate with a name of its own


@dataclass(frozen=True, slots=True)
class RateNumbers:
    """The numbers of a rate."""

    count: int
    per: Millis
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """The settings of one task, queue or limit. None: the code decides."""

    limit: int | None = None
    rate: RateNumbers | None = None
    retry: Retry | None = None
    timeout: Millis | None = None
    max_attempts: int | None = None
    paused: bool | None = None

    @classmethod
    def from_data(cls, data: Mapping[str, Mapping[str, Any]]) -> Values:
        """Return what is in a document, where each setting has its value and who changed it."""
        values: dict[str, Any] = {name: data[name]["value"] for name in cls.__slots__ if name in data}
        if "rate" in values:
            values["rate"] = RateNumbers(**values["rate"])
        if "retry" in values:
            values["retry"] = Retry.from_data(values["retry"])
        return cls(**values)

    @property
    def attempts(self) -> int | None:
        """Return how many attempts jobs have, by these settings."""
        return self.max_attempts or (None if self.retry is None else self.retry.max_attempts)

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the options that these settings set for jobs."""
        given: dict[str, Any] = {"retry": self.retry, "max_attempts": self.max_attempts}
        given["timeout"] = None if self.timeout is None else self.timeout / 1000
        return {name: value for name, value in given.items() if value is not None}


NOTHING = Values()
Owners = Mapping[str, Values]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All settings at one moment.

    Snapshots with the same settings differ: between them, the settings may have been others for a while.
    """

    tasks: Owners = field(default_factory=dict)
    queues: Owners = field(default_factory=dict)
    limits: Owners = field(default_factory=dict)

    @property
    def sets_defaults(self) -> bool:
        """Return whether any setting changes the columns of new jobs."""
        owners = (*self.tasks.values(), *self.queues.values())
        return any(values.timeout is not None or values.attempts is not None for values in owners)

    @property
    def paused(self) -> frozenset[str]:
        """Return the tasks that are paused."""
        return frozenset(task for task, values in self.tasks.items() if values.paused)

    def numbers(self) -> dict[str, Values]:
        """Return the settings that limit jobs, by the names of their limits: see `limits.options.named`."""
        named = {f"queue {queue}": values for queue, values in self.queues.items()}
        every = {**self.tasks, **named, **self.limits}
        return {name: values for name, values in every.items() if values.limit is not None or values.rate is not None}


EMPTY = Snapshot()


class Listener(Protocol):
    """A feature that goes by the settings, in each process."""

    def use_settings(self, after: Snapshot) -> None:
        """Go by these settings from now on.

        This is called at once, in the order of the changes, and perhaps in another thread. It must not fail.
        """

    async def settings_changed(self, before: Collection[Snapshot], after: Snapshot) -> None:
        """Do at the store what follows from a change, such as waking jobs.

        `before` has all settings that earlier calls may have left at the store: if a call failed or another one is
        under way, there are several. So compare each of them with `after`.
        """


class LiveSettings:
    """The settings of an application, as this process has last read them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.snapshot = EMPTY
        self._sets_defaults = False
        self.listeners: list[Listener] = []
        self._acted_by = newly_started()  # by listener: the settings that its calls may have left at the store
        self._changing = threading.Lock()  # event loops of several threads may read the settings
        self._fresh_until = NEVER
        self._store: Store | None = None  # the store that was read; tests replace it
        self._version: str | None = None  # of the stamp
        self._ticks = itertools.count(1)  # numbers the reads in the order in which they begin
        self._tick = 0

    # -- reading --------------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Return whether to look again before the settings are used."""
        return since_boot() > self._fresh_until or self._store is not self._services.store

    def was_read(self) -> bool:
        """Return whether this process has read the settings before, and so has opened the store."""
        return self._store is self._services.store

    async def refresh(self) -> None:
        """Look again, unless this process has looked a moment ago."""
        if self.is_stale():
            await self.look()

    async def look(self) -> None:
        """Read the settings if they have changed, use them, and do what follows from the change."""
        await self.read()
        await self.act()

    async def read(self) -> None:
        """Read the settings if they have changed, and use them from now on."""
        store, tick, began = self._services.store, next(self._ticks), since_boot()
        stamp = next(iter(await store.documents([STAMP])), None)
        version = ABSENT if stamp is None else stamp.version
        if store is not self._store or version != self._version:
            snapshot = EMPTY if stamp is None else await read_all(store)
            with self._changing:
                if tick < self._tick:  # a look that began later was quicker
                    return
                if store is not self._store:
                    self._acted_by = newly_started()
                self._use(snapshot)
                self._tick, self._store, self._version = tick, store, version
        self._fresh_until = max(self._fresh_until, began + FRESH_FOR)

    def _use(self, snapshot: Snapshot) -> None:
        """Let all listeners go by these settings, then show them: what is in `snapshot` is in force everywhere."""
        if snapshot is not self.snapshot:
            for listener in self.listeners:
                listener.use_settings(snapshot)
        self._sets_defaults = snapshot.sets_defaults
        self.snapshot = snapshot

    async def act(self) -> None:
        """Let the listeners do what follows from changes.

        If one of them fails, for example because the store is away, the others still do their part. The next look
        repeats what has failed: otherwise the jobs of a task whose pause has ended would wait for ever.
        """
        late = [listener for listener in self.listeners if self._is_late(listener)]
        failures = await asyncio.gather(*map(self._catch_up, late), return_exceptions=True) if late else ()
        for failure in failures:
            if failure is not None:
                raise failure

    def _is_late(self, listener: Listener) -> bool:
        return self._acted_by[listener] != {self.snapshot}

    async def _catch_up(self, listener: Listener) -> None:
        """Let a listener act by the newest settings until nothing else can be left at the store.

        Several looks may do this at once. A call for older settings may end after one for newer settings. So it notes
        those older ones again, and the newer ones are repeated.
        """
        while self._is_late(listener):
            before, after = self._acted_by[listener], self.snapshot
            self._acted_by[listener] = before | {after}
            is_done = False
            try:
                await listener.settings_changed(before, after)
                is_done = after is self.snapshot
            finally:
                self._acted_by[listener] = frozenset({after}) if is_done else self._acted_by[listener] | {after}

    # -- new jobs -------------------------------------------------------------------------------------

    def applied(self, jobs: list[NewJob]) -> list[NewJob]:
        """Return the jobs with the timeouts and numbers of attempts that are set at run time."""
        if not self._sets_defaults:
            return jobs
        changed = [self._applied(job) for job in jobs]
        return FreshJobs(changed) if isinstance(jobs, FreshJobs) else changed

    def _applied(self, job: NewJob) -> NewJob:
        timeout = self._chosen(job, job.timeout_level, lambda values: values.timeout)
        attempts = self._chosen(job, job.attempts_level, lambda values: values.attempts)
        if timeout in (None, job.timeout) and attempts in (None, job.max_attempts):
            return job
        return replace(job, timeout=timeout or job.timeout, max_attempts=attempts or job.max_attempts)

    def _chosen(self, job: NewJob, level: Level, choose: Callable[[Values], int | None]) -> int | None:
        """Return the number that overrides the job's own, which was decided at this level; None if there is none."""
        if level >= Level.TASK and (number := choose(self.snapshot.tasks.get(job.task, NOTHING))) is not None:
            return number
        return choose(self.snapshot.queues.get(job.queue, NOTHING)) if level >= Level.QUEUE else None


def newly_started() -> defaultdict[Listener, frozenset[Snapshot]]:
    """Return, for each listener, the settings that its calls may have left at the store: none yet."""
    return defaultdict(lambda: frozenset({EMPTY}))


async def read_all(store: Store) -> Snapshot:
    """Read all settings. One that this version cannot read counts as not set."""
    owners: dict[str, dict[str, Values]] = {kind: {} for kind in Kind}
    async for page in pages(store, COLLECTION, None):
        for document in page:
            if (values := values_in(document)) is not None and document.key.group in owners:
                owners[document.key.group][document.key.id] = values
    return Snapshot(owners[Kind.TASK], owners[Kind.QUEUE], owners[Kind.LIMIT])


def values_in(document: Document) -> Values | None:
    try:
        return Values.from_data(read_object(document.data))
    except (TypeError, ValueError, LookupError) as error:
        log.warning("setting_unreadable", kind=document.key.group, name=document.key.id, error=str(error))
        return None
