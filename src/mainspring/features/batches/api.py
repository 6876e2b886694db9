"""Jobs that belong together, and what follows when all have finished: `app.batch([...], on_success=…)`, `app.chain(…)`.

The ids of a batch's members are stored in documents, one per page. One more job, whose id is the batch's id, waits for
the last member that has not finished. When that one ends, it looks for others, waits for the last of those, and so on.
It writes down how the members ended, page by page. When it runs at last, the jobs that follow are committed together
with its own end: exactly once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from mainspring.clock import Length, Millis, duration
from mainspring.errors import BatchNotFound, ConfigurationError, IllegalMove
from mainspring.features.batches.rules import BatchPage, BatchProgress, Found, Tally
from mainspring.features.batches.storage import BATCHES, COMING_IN, MEMBERS, Counted, Head, MemberPage, from_data
from mainspring.features.dependencies.feature import suspended_until
from mainspring.features.dependencies.options import option_behind
from mainspring.ids import new_id
from mainspring.job import LIVE, NewJob, Status
from mainspring.pipeline import Pipeline
from mainspring.projects import in_project_of_run
from mainspring.queue_patterns import is_among
from mainspring.services import Services
from mainspring.stored_options import with_options
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write, current_once
from mainspring.stores.paging import newest
from mainspring.stores.protocol import ChangeResult, Filter

TASK = "mainspring.batch"
PAGE_SIZE = 1000  # ids in a document
COMING_IN_RECHECK: Millis = 10_000  # until the next check whether all jobs of a batch are inserted
ENDS = (Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED)  # in the order of a Tally's fields
CancelWhere = Callable[..., Awaitable[ChangeResult]]
"""`Jobs.cancel_where`."""

BATCH_RETENTION: Millis = 30 * 86_400_000  # after a batch has finished, or if its jobs never come in


@dataclass(frozen=True, slots=True)
class BatchHandle:
    """A batch that was enqueued."""

    id: str
    jobs: tuple[str, ...]  # the ids of its members
    _batches: Batches = field(repr=False)

    async def progress(self) -> BatchProgress:
        return await self._batches.progress(self.id)

    def progress_sync(self) -> BatchProgress:
        return self._batches.run(self.progress())

    async def wait(self, timeout: Length | None = None) -> BatchProgress:
        """Wait until all its jobs have finished; raise TimeoutError if that takes longer than `timeout`."""
        async with asyncio.timeout(None if timeout is None else duration(timeout) / 1000):
            pause = 0.01
            while not (progress := await self.progress()).finished:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 1.0)
        return progress

    def wait_sync(self, timeout: Length | None = None) -> BatchProgress:
        return self._batches.run(self.wait(timeout))

    async def cancel(self, *, reason: str = "", actor: str | None = None) -> ChangeResult:
        """See `Batches.cancel`."""
        return await self._batches.cancel(self.id, reason=reason, actor=actor)

    def cancel_sync(self, *, reason: str = "", actor: str | None = None) -> ChangeResult:
        return self._batches.run(self.cancel(reason=reason, actor=actor))


class Batches:
    """Enqueue, list and cancel batches: `app.batches`."""

    def __init__(
        self, services: Services, pipeline: Pipeline, cancel_where: CancelWhere, within: tuple[str, ...] = ()
    ) -> None:
        self.run = services.run
        self._within = within  # patterns of queues: batches of other queues do not exist here
        self._services = services
        self._pipeline = pipeline
        self._cancel_where = cancel_where

    def within(self, *patterns: str) -> Self:
        """Return the same for batches of some queues, as `app.jobs.within` does."""
        return type(self)(self._services, self._pipeline, self._cancel_where, Filter(within=patterns).within)

    def _is_here(self, document: Document) -> bool:
        return not self._within or is_among(Head.read(document).queue, self._within)

    # -- enqueuing --------------------------------------------------------------------------------

    async def put(self, jobs: Sequence[NewJob], follow_ups: Mapping[str, NewJob | None]) -> BatchHandle:
        """Insert the batch: all jobs together, after the list of members, without which its end could not be known."""
        last = self._last(new_id(), jobs, follow_ups)
        [placed] = in_project_of_run([last])
        listed = self._documents(placed, [job.id for job in jobs], is_in=False)
        if (once := current_once(batch=last.id)) is None:
            await self._write(listed)
        else:  # together: with the key and the list of members, `resume` can insert the jobs if this process dies
            await self._services.store.write([Bundle(tuple(listed), once=once)])
        return await self._insert(jobs, last, {write.key: write.version for write in listed})

    async def resume(self, batch: str, jobs: Sequence[NewJob], follow_ups: Mapping[str, NewJob | None]) -> BatchHandle:
        """Insert a batch that a process has begun to insert under a key, unless all its jobs are in.

        `jobs` are those of the same request. They get the ids that the list of members has: a job that is in is not
        inserted again.
        """
        head, pages = await self._services.store.documents([Key(BATCHES, "", batch)]), await self._member_pages(batch)
        ids = [job_id for document in pages for job_id in MemberPage.read(document).ids]
        if not head or not Head.read(head[0]).is_coming_in or len(ids) != len(jobs):
            return await self.get(batch)
        known = [replace(job, id=job_id) for job, job_id in zip(jobs, ids, strict=True)]
        versions = {document.key: document.version for document in (*head, *pages)}
        return await self._insert(known, self._last(batch, known, follow_ups), versions)

    async def _insert(self, jobs: Sequence[NewJob], last: NewJob, listed: Mapping[Key, str]) -> BatchHandle:
        [placed] = in_project_of_run([last])
        inserted = await self._pipeline.insert([*jobs, last])
        ids = [job.id for job in inserted[: len(jobs)]]  # for a dedupe key that was held, the id of its holder
        final = self._documents(placed, ids, is_in=True)
        await self._write([replace(write, expected=listed[write.key]) for write in final])
        return BatchHandle(last.id, tuple(ids), self)

    def _last(self, batch: str, jobs: Sequence[NewJob], follow_ups: Mapping[str, NewJob | None]) -> NewJob:
        given = [job for job in follow_ups.values() if job is not None]
        queue = next((job.queue for job in (*given, *jobs)), "default")
        payload = json.dumps({name: None if job is None else asdict(job) for name, job in follow_ups.items()})
        made = with_options(NewJob(batch, TASK, payload, queue=queue), members_of=len(jobs))
        awaited = next((job.id for job in reversed(jobs) if job.dedupe_key is None), None)
        return made if awaited is None else suspended_until(awaited, made)

    def _documents(self, last: NewJob, ids: Sequence[str], *, is_in: bool) -> Sequence[Write]:
        """Return the writes of the batch's documents. They expire until the jobs are in: this process may die first."""
        now = self._services.store.clock.now()
        expires_at = None if is_in else now + BATCH_RETENTION
        starts = range(0, len(ids), PAGE_SIZE)
        pages = [MemberPage(tuple(dict.fromkeys(ids[start : start + PAGE_SIZE]))) for start in starts]
        head = Head(sum(len(members.ids) for members in pages), now, is_in=is_in, queue=last.queue)
        return [
            head.write(last.id, expires_at),
            *(members.write(last.id, number, expires_at) for number, members in enumerate(pages)),
        ]

    async def _write(self, writes: Sequence[Write]) -> None:
        """Write each document by itself. One that has changed since is further along, so ours is dropped."""
        await self._services.store.write([Bundle((write,)) for write in writes])

    # -- looking ----------------------------------------------------------------------------------

    async def get(self, batch: str) -> BatchHandle:
        await self._head(batch)
        ids = [job_id for document in await self._member_pages(batch) for job_id in MemberPage.read(document).ids]
        return BatchHandle(batch, tuple(ids), self)

    async def progress(self, batch: str) -> BatchProgress:
        head = await self._head(batch)
        tally = Tally()
        for document in await self._member_pages(batch):
            tally += (await self._count(document, head)).tally
        return BatchProgress(batch, head.total, **asdict(tally))

    async def list(self, *, limit: int = 50, cursor: str | None = None) -> BatchPage:
        """Return a page of batches, newest first. Pass the page's cursor to get the next one.

        The jobs of unfinished batches are not counted: two reads are enough, however large the batches are.
        """
        found = await newest(self._services.store, BATCHES, limit + 1, cursor, self._is_here)
        heads = {document.key.id: Head.read(document) for document in found[:limit]}
        unfinished = [batch for batch, head in heads.items() if head.ended is None]
        waiting = {job.id: job for job in await self._services.store.get(unfinished)}
        now = self._services.store.clock.now()
        batches = [head.summary(batch, waiting.get(batch), now) for batch, head in heads.items()]
        return BatchPage(batches, batches[-1].id if len(found) > limit else None)

    async def _head(self, batch: str) -> Head:
        found = await self._services.store.documents([Key(BATCHES, "", batch)])
        if not found or not self._is_here(found[0]):
            msg = f"there is no batch {batch}; it may have been removed by retention"
            raise BatchNotFound(msg)
        return Head.read(found[0])

    async def _member_pages(self, batch: str) -> Sequence[Document]:
        found: list[Document] = []
        while page := await self._services.store.browse(Listing(MEMBERS, batch, found[-1].key[1:] if found else None)):
            found += page
        return found

    async def _count(self, document: Document, head: Head) -> Counted:
        """Count how the jobs of a page ended. Once all have finished, write the counts, to count only once."""
        members = MemberPage.read(document)
        if members.tally is not None:
            return Counted(members.ids, members.tally)
        found = await self._by_status(members.ids)
        may_come = found.missing > 0 and not head.is_in and not head.is_lost
        tally = found.tally if may_come else found.with_missing(failed=head.is_lost)
        if not found.live and not may_come:
            done = replace(members, tally=tally).to_json()
            await self._write([Write(document.key, done, document.version)])
        return Counted(members.ids, tally, found.live, may_come=may_come)

    async def _by_status(self, ids: tuple[str, ...]) -> Found:
        """Count jobs by status, live ones first: a job that ends meanwhile is then counted twice rather than missed."""

        async def number(*statuses: Status) -> int:
            return await self._services.store.count(Filter(ids=ids, statuses=statuses)) if ids else 0

        live = await number(*LIVE)
        ended = [0, 0, 0] if live == len(ids) else [await number(status) for status in ENDS]
        return Found(live, Tally(*ended), max(0, len(ids) - live - sum(ended)))

    # -- cancelling -------------------------------------------------------------------------------

    async def cancel(
        self,
        batch: str,
        *,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> ChangeResult:
        """Cancel the batch's waiting jobs at once, and ask its running jobs to stop.

        When the last of them has ended, `on_failure` and `on_finished` follow, as at least one job did not complete.
        If all jobs had finished before, this does nothing.
        """
        options = {"reason": reason or f"its batch {batch} was cancelled", "actor": actor, "dry_run": dry_run}
        operation, result = new_id(), ChangeResult()
        for ids in await self._unfinished(batch):
            before = result.count
            done = await self._cancel_where(
                Filter(ids=ids, within=self._within),
                **options,
                operation=operation,
                on_progress=lambda n, so_far=before: on_progress(so_far + n),
            )
            result.changed += done.changed
            result.requested += done.requested
        return result

    async def _unfinished(self, batch: str) -> Sequence[tuple[str, ...]]:
        """Return the members of each page with unfinished ones. Raise IllegalMove if more jobs may still come in."""
        head = await self._sure_head(batch)
        counted = [await self._count(document, head) for document in await self._member_pages(batch)]
        if any(members.may_come for members in counted):
            msg = f"jobs of batch {batch} are still coming in; cancel it again in a moment"
            raise IllegalMove(msg)
        return [members.ids for members in counted if members.live]

    # -- waiting and following --------------------------------------------------------------------

    async def next_awaited(self, batch: str) -> tuple[str | None, bool]:
        """Return a member that has not finished and, if there is none, whether some may still come in.

        Search from the end: jobs mostly run in the order of their insertion, so the last one is waited for just once.
        """
        head = await self._sure_head(batch)
        for document in reversed(await self._member_pages(batch)):
            counted = await self._count(document, head)
            while counted.live:
                if (last := await self._last_live(counted.ids)) is not None:
                    return last, False
                counted = await self._count(document, head)  # they have just ended
            if counted.may_come:
                return None, True
        return None, False

    async def _last_live(self, ids: Sequence[str]) -> str | None:
        live = {job.id for job in await self._services.store.get(ids) if not job.finished}
        return next((job_id for job_id in reversed(ids) if job_id in live), None)

    async def _sure_head(self, batch: str) -> Head:
        """Return the head. If its jobs are not in after COMING_IN, they never will be: mark it as lost."""
        head, now = await self._head(batch), self._services.store.clock.now()
        if head.is_in or head.is_lost or now - head.at <= COMING_IN:
            return head
        lost = replace(head, is_lost=True)
        pages = [Write(page.key, page.data, page.version) for page in await self._member_pages(batch)]
        await self._write([*pages, lost.write(batch, None)])
        return lost

    async def follow(
        self,
        batch: str,
        on_success: Mapping[str, Any] | None,
        on_failure: Mapping[str, Any] | None,
        on_finished: Mapping[str, Any] | None,
    ) -> tuple[BatchProgress, Sequence[NewJob]]:
        """Return how the batch ended, and the jobs that follow it."""
        progress = await self.progress(batch)
        wanted = (on_success if progress.succeeded else on_failure, on_finished)
        await self._forget_later(progress)
        return progress, [from_data(follow_up, progress) for follow_up in wanted if follow_up is not None]

    async def _forget_later(self, progress: BatchProgress) -> None:
        at, batch = self._services.store.clock.now() + BATCH_RETENTION, progress.id
        head = replace(await self._head(batch), is_in=True, ended=progress.tally)
        pages = [Write(page.key, page.data, page.version, expires_at=at) for page in await self._member_pages(batch)]
        await self._write([*pages, head.write(batch, at)])


# -- documents --------------------------------------------------------------------------------------------


# -- chains -----------------------------------------------------------------------------------------------


def linked(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Return the jobs of a chain: each starts after the one before. Raise ConfigurationError for a dedupe key."""
    for job in jobs:
        if job.dedupe_key is not None:
            msg = f"a job of {job.task!r} in a chain has a dedupe key, which another may hold; prepare it without one"
            raise ConfigurationError(msg)
    return [*jobs[:1], *(with_options(job, after=option_behind(job, before.id)) for before, job in pairwise(jobs))]
