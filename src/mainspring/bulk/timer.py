"""Carries out bulk changes in workers: one page of jobs per step.

A step takes the document first, by moving it to a later time. The process that has written that does the step; another
one finds that the version has changed. If that process dies, the document comes due again, and the step is repeated
from the same cursor: the store skips jobs that this operation has changed, so no job is changed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mainspring.bulk.api import KEEP, counted
from mainspring.bulk.change import COLLECTION, BulkChange, BulkState, at, from_data, to_data
from mainspring.clock import Millis
from mainspring.errors import CountMoved, MainspringError, StoreUnavailable, TakenOver
from mainspring.feature import Feature, Timer
from mainspring.jobs import Jobs
from mainspring.log import get_log
from mainspring.services import Services
from mainspring.stores import affected
from mainspring.stores.documents import Bundle, By, Document, Held, Write
from mainspring.stores.protocol import CappedCount, Changed

log = get_log("mainspring.bulk")

STEP_LEASE: Millis = 30_000  # after which another process repeats a step that was not finished
MOST_RECOUNTED = 200_000  # jobs of a list: to read more might take longer than the lease of a step
COUNT_LEASE: Millis = 300_000  # after which another process counts again; counting millions of jobs takes a while


class BulkTimer(Timer):
    """The timer of the collection "bulk"."""

    collection = COLLECTION

    def __init__(self, services: Services, jobs: Jobs) -> None:
        self._services = services
        self._jobs = jobs

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        for document in documents:
            change = from_data(document.data)
            lease = COUNT_LEASE if change.state is BulkState.COUNTING else STEP_LEASE
            taken = Write(document.key, document.data, expected=document.version, due_at=now + lease)
            if await self._written(taken):
                await self._advance(change, taken.version)
        return None

    async def _advance(self, change: BulkChange, version: str) -> None:
        if change.state is BulkState.COUNTING:
            await self._count(change, version)
        else:
            change = await counted(self._services.store, change)
            await self._step(await self._recounted(change) if change.state is BulkState.CANARY else change, version)

    async def _count(self, change: BulkChange, version: str) -> None:
        """Count the jobs, and begin if they are as many as expected."""
        now = self._services.store.clock.now
        total = await self._services.store.count(change.where)
        try:
            begun = change.begun(CappedCount(total, exact=True), at(now()))
        except CountMoved as error:
            begun = replace(change, total=total, state=BulkState.FAILED, error=str(error))
        if begun.ended:
            await self._finish(begun, version)
        else:
            await self._written(self._write(begun, version, due_at=now()))

    async def _step(self, change: BulkChange, version: str) -> None:
        """Change one page of jobs, and write how far it is."""
        if change.canary_is_over:  # the process died that has changed its last job
            await self._wait(change, version)
            return
        try:
            page = await self._change_page(change, version)
        except StoreUnavailable:
            raise  # another step tries again
        except TakenOver:
            return  # this process was paused for longer than the lease of a step
        except MainspringError as error:
            log.error("bulk_failed", bulk=change.id, error=str(error))  # noqa: TRY400 - its message says enough
            await self._finish(replace(change, state=BulkState.FAILED, error=str(error)), version)
            return
        number = len(page.ids) + len(page.requested) + len(page.conflicts)
        change = replace(
            change,
            looked_at=change.looked_at + number,
            conflicts=change.conflicts + len(page.conflicts),
            cursor=page.cursor,
        )
        if page.cursor is None:
            await self._finish(replace(change, state=BulkState.DONE), version)
        elif change.canary_is_over:
            await self._wait(change, version)
        else:
            due_at = self._services.store.clock.now() + change.pause_after(number)
            await self._written(self._write(change, version, due_at=due_at))

    async def _change_page(self, change: BulkChange, version: str) -> Changed:
        by = By(change.actor, change.reason, change.id, list_for=KEEP, only_while=Held(change.key, version))
        page = await self._services.store.change(
            change.action, change.where, by, limit=change.page_size, cursor=change.cursor
        )
        await self._jobs.follow(change.action, page, by)
        return page

    async def _recounted(self, change: BulkChange) -> BulkChange:
        """Return it with the number of listed jobs, if the store's audit log may lack those of a process that died."""
        if self._services.store.transactional:
            return change
        changed = await affected.count(self._services.store, change.id, MOST_RECOUNTED + 1)
        if changed > MOST_RECOUNTED:
            return change
        return replace(change, changed=changed, looked_at=max(change.looked_at, changed + change.conflicts))

    async def _wait(self, change: BulkChange, version: str) -> None:
        """Write that it waits for `go_on`."""
        waiting = replace(await self._recounted(change), state=BulkState.WAITING)
        await self._written(self._write(waiting, version, due_at=None))

    async def _finish(self, change: BulkChange, version: str) -> None:
        now = self._services.store.clock.now()
        ended = replace(await self._recounted(change), ended_at=at(now))
        write = Write(change.key, to_data(ended), expected=version, expires_at=now + KEEP, recorded=True)
        if await self._written(write):
            log.info("bulk_ended", bulk=change.id, state=change.state, action=change.action, looked_at=change.looked_at)

    def _write(self, change: BulkChange, version: str, due_at: Millis | None) -> Write:
        recorded = change.state is BulkState.WAITING
        return Write(change.key, to_data(change), expected=version, due_at=due_at, recorded=recorded)

    async def _written(self, write: Write) -> bool:
        """Write, unless another process has written since: it took the step over, or the change was cancelled."""
        return (await self._services.store.write([Bundle((write,))]))[0] is not None


class BulkFeature(Feature):
    """Jobs do not meet it: it only has a timer."""

    def __init__(self, services: Services, jobs: Jobs) -> None:
        self.timers = (BulkTimer(services, jobs),)
