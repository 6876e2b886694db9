"""Retries the dead letters of tasks that declare it, in one process at a time.

Each task has a document that comes due. The process that moves it to its next time does the work; another one finds
that the version has changed. If that process dies, the rest is done the next time. How often a job was recovered is a
document of its own, written before the job is retried: a crash in between counts once too often, never too rarely. If
the retry fails because a live job holds the dedupe key, the count is taken back. The task's document has what the
recovery did the last time, and in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mainspring.clock import Millis, duration, to_datetime
from mainspring.events import JobsRecovered
from mainspring.feature import Timer
from mainspring.features.breakers.api import Breakers
from mainspring.features.breakers.options import OPTION as BREAKER
from mainspring.features.breakers.rules import Phase
from mainspring.features.expiry.options import has_expired
from mainspring.features.recovery.options import Recover
from mainspring.features.recovery.report import COLLECTION, Recovery
from mainspring.features.resumption import RECOVERED
from mainspring.job import Job, Priority, Status
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Write
from mainspring.stores.protocol import Action, Edit, Filter, Store

log = get_log("mainspring.recovery")

BREAKER_RETRY: Millis = 5_000  # until the next look, while the task's breaker is not closed
OTHERS_RETRY: Millis = 60_000  # until the next look at the document of a task that only other programs know
COUNT_LIFE: Millis = 90 * 86_400_000  # how long to remember how often a job was recovered: its retries may take weeks
PAGE_SIZE = 200
HOPELESS = frozenset({"Discard", "InvalidPayload", "CannotStoreResult", "UnsupportedCall"})
"""Types of failures that no retry helps; `Discard` says so itself."""


@dataclass(slots=True)
class Tally:
    recovered: int = 0
    exhausted: int = 0  # recovered `max_times` times before, and dead again


class RecoveryTimer(Timer):
    """The timer of the collection "recovery"."""

    collection = COLLECTION

    def __init__(self, services: Services, breakers: Breakers) -> None:
        self._services = services
        self._breakers = breakers
        self.declared: dict[str, Recover] = {}
        self._begun: set[str] = set()  # tasks whose document this process has made due
        self._begun_in: Store | None = None  # the store that has these documents; tests replace it

    async def refresh(self) -> None:
        """Make the documents of this program's tasks due when a worker starts, unless they were fired lately."""
        store = self._services.store
        if self._begun_in is not store:
            self._begun, self._begun_in = set(), store
        new = [task for task in self.declared if task not in self._begun]
        if not new:
            return
        keys = {task: Key(COLLECTION, "", task) for task in new}
        found = {document.key: document for document in await store.documents(list(keys.values()))}
        now = store.clock.now()
        writes = [begin(key, found.get(key), duration(self.declared[task].every), now) for task, key in keys.items()]
        if wanted := [write for write in writes if write is not None]:
            await store.write([Bundle((write,)) for write in wanted])
        self._begun.update(new)

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        again: Millis | None = None
        for document in documents:
            recover = self.declared.get(document.key.id)
            if recover is None:
                again = now + OTHERS_RETRY
                continue
            if await self._is_held_back(document.key.id):
                await self._write(document.key, document.data, document.version, now + BREAKER_RETRY)
            else:
                await self._fire(document, recover, now)
        return again

    async def _fire(self, document: Document, recover: Recover, now: Millis) -> None:
        """Take the document, recover jobs, and write down how many. Do nothing if another process has taken it."""
        known, due_at = Recovery.of(document).fired(now), now + duration(recover.every)
        taken = await self._write(document.key, known.to_data(), document.version, due_at)
        if taken is None:
            return
        task = document.key.id
        tally = await self._recover(task, recover, now)
        after = known.with_result(now, tally.recovered, tally.exhausted)
        if after != known:
            await self._write(document.key, after.to_data(), taken, due_at, recorded=True)
        if tally.recovered or tally.exhausted > known.exhausted:
            self._tell(task, tally)

    async def _is_held_back(self, task: str) -> bool:
        """Return whether the task's breaker is not closed: what it calls is still down."""
        name = self._services.tasks[task].options.get(BREAKER) if task in self._services.tasks else None
        return name is not None and (await self._breakers.get(str(name))).phase is not Phase.CLOSED

    async def _write(self, key: Key, data: str, version: str, due_at: Millis, *, recorded: bool = False) -> str | None:
        """Write the document; return its new version, or None if another process has written it."""
        write = Write(key, data, expected=version, due_at=due_at, recorded=recorded)
        return None if (await self._services.store.write([Bundle((write,))]))[0] is None else write.version

    async def _recover(self, task: str, recover: Recover, now: Millis) -> Tally:
        since = to_datetime(now) - timedelta(milliseconds=duration(recover.within))
        where = Filter(statuses=statuses_of(recover), tasks=(task,), finished_after=since)
        tally, cursor = Tally(), None
        while True:
            page = await self._services.store.find(where, limit=PAGE_SIZE, cursor=cursor)
            await self._retry(task, recover, [job for job in page.jobs if is_recoverable(job)], now, tally)
            if (cursor := page.cursor) is None:
                return tally

    async def _retry(self, task: str, recover: Recover, jobs: Sequence[Job], now: Millis, tally: Tally) -> None:
        """Count and retry jobs that were not recovered too often."""
        store = self._services.store
        known = await store.documents([Key(RECOVERED, task, job.id) for job in jobs])
        times = {document.key.id: int(json.loads(document.data)["times"]) for document in known}
        due = [job.id for job in jobs if times.get(job.id, 0) < recover.max_times]
        tally.exhausted += len(jobs) - len(due)
        if not due:
            return
        expires_at = now + duration(recover.within) + COUNT_LIFE
        await self._count(task, {job: times.get(job, 0) + 1 for job in due}, expires_at)
        priority = None if recover.priority is None else int(Priority.parse(recover.priority))
        by = By("recovery", "recovered", audited=False)
        where = Filter(ids=tuple(due), statuses=statuses_of(recover))
        changed = await store.change(Action.RETRY, where, by, edit=Edit(priority=priority), limit=len(due))
        tally.recovered += len(changed.ids)
        await self._count(task, {job: times.get(job, 0) for job in changed.conflicts}, expires_at)

    async def _count(self, task: str, times: Mapping[str, int], expires_at: Millis) -> None:
        """Write how often each job was recovered."""
        writes = [
            Write(Key(RECOVERED, task, job), json.dumps({"times": number}) if number else None, expires_at=expires_at)
            for job, number in times.items()
        ]
        if writes:
            await self._services.store.write([Bundle((write,)) for write in writes])

    def _tell(self, task: str, tally: Tally) -> None:
        message = f"Recovered {tally.recovered} jobs of task {task}"
        if tally.exhausted:
            message += f"; {tally.exhausted} were recovered too often and stay dead letters"
        log.info("jobs_recovered", message=message, task=task, recovered=tally.recovered, exhausted=tally.exhausted)
        self._services.bus.emit(JobsRecovered(task=task, recovered=tally.recovered, exhausted=tally.exhausted))


def begin(key: Key, found: Document | None, every: Millis, now: Millis) -> Write | None:
    """Return the write that makes a document due; None if it comes due as it should.

    A start counts as a run only if the last run was at least `every` ago. Otherwise restarts that follow each other
    would use up the times that a job may be recovered.
    """
    if found is None:
        return Write(key, "{}", expected=ABSENT, due_at=now)
    fired_at = min(Recovery.of(found).fired_ms, now)  # a wrong clock may have been ahead
    wanted = max(now, fired_at + every)
    if found.due_at is not None and found.due_at <= wanted:
        return None
    return Write(key, found.data, expected=found.version, due_at=wanted)


def statuses_of(recover: Recover) -> tuple[Status, ...]:
    return (Status.DEAD_LETTER, Status.CANCELLED) if recover.expired else (Status.DEAD_LETTER,)


def is_recoverable(job: Job) -> bool:
    if job.status is Status.CANCELLED:
        return has_expired(job)
    return job.failure is None or job.failure.type not in HOPELESS
