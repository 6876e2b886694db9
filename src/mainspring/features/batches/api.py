"""Jobs that belong together, and what follows when all have finished: `app.batch([...], on_success=…)`, `app.chain(…)`.

The ids of a batch's members are stored in documents, one per chunk. One more job, whose id is the batch's id, waits for
the last member that has not finished. When that one ends, it looks for others, waits for the last of those, and so on.
It writes down how the members ended, chunk by chunk. When it runs at last, the jobs that follow are committed together
with its own end: exactly once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mainspring.clock import Length, Millis, duration, to_datetime
from mainspring.context import Context
from mainspring.errors import BatchNotFound, ConfigurationError, IllegalMove
from mainspring.features.batches.progress import BatchPage, BatchProgress, BatchState, BatchSummary, Found, Tally
from mainspring.features.dependencies import feature as dependencies
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.handle import JobHandle
from mainspring.ids import new_id
from mainspring.job import LIVE, Claim, Job, Move, NewJob, Status
from mainspring.jobs import Result
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Filter
from mainspring.task import Options, Task

if TYPE_CHECKING:
    from mainspring.app import Mainspring

TASK = "mainspring.batch"
OPTION = "members_of"  # an option of the job that waits for the members
BATCHES, MEMBERS = "batches", "batch_members"  # collections
CHUNK = 1000  # ids in a document
COMING_IN: Millis = 3_600_000  # how long members that are not in the store may still be inserted
COMING_IN_RECHECK: Millis = 10_000  # until the next check whether they have been
ENDS = (Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED)  # in the order of a Tally's fields
BATCH_RETENTION: Millis = 30 * 86_400_000  # after a batch has finished, or if its jobs never come in


@dataclass(frozen=True, slots=True)
class BatchHandle:
    """A batch that was enqueued."""

    id: str
    jobs: tuple[str, ...]  # the ids of its members
    _batches: Batches = field(repr=False)

    async def progress(self) -> BatchProgress:
        return await self._batches.progress(self.id)

    async def finished(self, timeout: Length | None = None) -> BatchProgress:
        """Wait until all its jobs have finished; raise TimeoutError if that takes longer than `timeout`."""
        async with asyncio.timeout(None if timeout is None else duration(timeout) / 1000):
            pause = 0.01
            while not (progress := await self.progress()).finished:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 1.0)
        return progress

    async def cancel(self, *, reason: str = "", actor: str | None = None) -> Result:
        """See `Batches.cancel`."""
        return await self._batches.cancel(self.id, reason=reason, actor=actor)


class Batches:
    """Enqueue, list and cancel batches: `app.batches`."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    @cached_property
    def task(self) -> Task[..., Any, Any]:
        """Return the task of the job that waits for all others. Every worker knows it."""
        task: Task[..., Any, Any] = Task(self._app, self._follow, TASK, options=Options())
        task.is_internal = True
        return task

    # -- enqueuing --------------------------------------------------------------------------------

    async def put(self, jobs: Sequence[NewJob], follow_ups: Mapping[str, NewJob | None]) -> BatchHandle:
        """Insert the batch: all jobs together, after the list of members, without which its end could not be known."""
        last = self._last(jobs, follow_ups)
        listed = self._documents(last.id, [job.id for job in jobs], is_in=False)
        await self._write(listed)
        inserted = await self._app.insert([*jobs, last])
        ids = [job.id for job in inserted[: len(jobs)]]  # for a dedupe key that was held, the id of its holder
        final = self._documents(last.id, ids, is_in=True)
        await self._write([replace(new, expected=old.version) for new, old in zip(final, listed, strict=True)])
        return BatchHandle(last.id, tuple(ids), self)

    def _last(self, jobs: Sequence[NewJob], follow_ups: Mapping[str, NewJob | None]) -> NewJob:
        given = [job for job in follow_ups.values() if job is not None]
        queue = next((job.queue for job in (*given, *jobs)), "default")
        made = self.task.using(queue=queue).prepare(
            **{name: None if job is None else asdict(job) for name, job in follow_ups.items()}
        )
        made = replace(made, options=json.dumps({OPTION: len(jobs)}))
        awaited = next((job.id for job in reversed(jobs) if job.dedupe_key is None), None)
        return made if awaited is None else dependencies.suspended_until(awaited, made)

    def _documents(self, batch: str, ids: Sequence[str], *, is_in: bool) -> Sequence[Write]:
        """Return the writes of the batch's documents. They expire until the jobs are in: this process may die first."""
        now = self._app.store.clock.now()
        expires_at = None if is_in else now + BATCH_RETENTION
        starts = range(0, len(ids), CHUNK)
        chunks = [Chunk(tuple(dict.fromkeys(ids[start : start + CHUNK]))) for start in starts]
        head = Head(sum(len(chunk.ids) for chunk in chunks), now, is_in=is_in)
        return [
            head.write(batch, expires_at),
            *(chunk.write(batch, number, expires_at) for number, chunk in enumerate(chunks)),
        ]

    async def _write(self, writes: Sequence[Write]) -> None:
        """Write each document by itself. One that has changed since is further along, so ours is dropped."""
        await self._app.store.write([Bundle((write,)) for write in writes])

    # -- looking ----------------------------------------------------------------------------------

    async def get(self, batch: str) -> BatchHandle:
        await self._head(batch)
        ids = [job_id for document in await self._chunks(batch) for job_id in Chunk.read(document).ids]
        return BatchHandle(batch, tuple(ids), self)

    async def progress(self, batch: str) -> BatchProgress:
        head = await self._head(batch)
        tally = Tally()
        for document in await self._chunks(batch):
            tally += (await self._count(document, head)).tally
        return BatchProgress(batch, head.total, **asdict(tally))

    async def list(self, *, limit: int = 50, cursor: str | None = None) -> BatchPage:
        """Return a page of batches, newest first. Pass the page's cursor to get the next one.

        The jobs of unfinished batches are not counted: two reads are enough, however large the batches are.
        """
        after = None if cursor is None else ("", cursor)
        found = await self._app.store.browse(Listing(BATCHES, "", after, limit + 1, backwards=True))
        heads = {document.key.id: Head.read(document) for document in found[:limit]}
        waiting = {job.id: job for job in await self._app.store.get([one for one in heads if not heads[one].ended])}
        now = self._app.store.clock.now()
        batches = [head.summary(batch, waiting.get(batch), now) for batch, head in heads.items()]
        return BatchPage(batches, batches[-1].id if len(found) > limit else None)

    async def _head(self, batch: str) -> Head:
        found = await self._app.store.documents([Key(BATCHES, "", batch)])
        if not found:
            msg = f"there is no batch {batch}; it may have been removed by retention"
            raise BatchNotFound(msg)
        return Head.read(found[0])

    async def _chunks(self, batch: str) -> Sequence[Document]:
        found: list[Document] = []
        while page := await self._app.store.browse(Listing(MEMBERS, batch, found[-1].key[1:] if found else None)):
            found += page
        return found

    async def _count(self, document: Document, head: Head) -> Counted:
        """Count how a chunk's jobs ended. Once all have finished, write that down, so that it is not counted again."""
        chunk = Chunk.read(document)
        if chunk.tally is not None:
            return Counted(chunk.ids, chunk.tally)
        found = await self._by_status(chunk.ids)
        may_come = found.missing > 0 and not head.is_in and not head.is_lost
        tally = found.tally if may_come else found.with_missing(failed=head.is_lost)
        if not found.live and not may_come:
            done = replace(chunk, tally=tally).to_json()
            await self._write([Write(document.key, done, document.version)])
        return Counted(chunk.ids, tally, found.live, may_come=may_come)

    async def _by_status(self, ids: tuple[str, ...]) -> Found:
        """Count jobs by status, live ones first: a job that ends meanwhile is then counted twice rather than missed."""

        async def number(*statuses: Status) -> int:
            return await self._app.store.count(Filter(ids=ids, statuses=statuses)) if ids else 0

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
    ) -> Result:
        """Cancel the batch's unfinished jobs: waiting ones at once, running ones are asked to stop.

        When the last of them has ended, `on_failure` and `on_finished` follow, as at least one job did not complete.
        If all jobs had finished before, this does nothing.
        """
        options = {"reason": reason or f"its batch {batch} was cancelled", "actor": actor, "dry_run": dry_run}
        operation, result = new_id(), Result()
        for ids in await self._unfinished(batch):
            before = result.count
            done = await self._app.jobs.cancel_where(
                Filter(ids=ids),
                **options,
                operation=operation,
                on_progress=lambda n, so_far=before: on_progress(so_far + n),
            )
            result.changed += done.changed
            result.requested += done.requested
        return result

    async def _unfinished(self, batch: str) -> Sequence[tuple[str, ...]]:
        """Return the members of each chunk with unfinished ones. Raise IllegalMove if more jobs may still come in."""
        head = await self._sure_head(batch)
        counted = [await self._count(document, head) for document in await self._chunks(batch)]
        if any(chunk.may_come for chunk in counted):
            msg = f"jobs of batch {batch} are still coming in; cancel it again in a moment"
            raise IllegalMove(msg)
        return [chunk.ids for chunk in counted if chunk.live]

    # -- waiting and following --------------------------------------------------------------------

    async def next_awaited(self, batch: str) -> tuple[str | None, bool]:
        """Return a member that has not finished and, if there is none, whether some may still come in.

        Search from the end: jobs mostly run in the order of their insertion, so the last one is waited for just once.
        """
        head = await self._sure_head(batch)
        for document in reversed(await self._chunks(batch)):
            counted = await self._count(document, head)
            while counted.live:
                if (last := await self._last_live(counted.ids)) is not None:
                    return last, False
                counted = await self._count(document, head)  # they have just ended
            if counted.may_come:
                return None, True
        return None, False

    async def _last_live(self, ids: Sequence[str]) -> str | None:
        live = {job.id for job in await self._app.store.get(ids) if not job.finished}
        return next((job_id for job_id in reversed(ids) if job_id in live), None)

    async def _sure_head(self, batch: str) -> Head:
        """Return the head. If its jobs are not in after COMING_IN, they never will be: mark it as lost."""
        head, now = await self._head(batch), self._app.store.clock.now()
        if head.is_in or head.is_lost or now - head.at <= COMING_IN:
            return head
        lost = replace(head, is_lost=True)
        chunks = [Write(chunk.key, chunk.data, chunk.version) for chunk in await self._chunks(batch)]
        await self._write([*chunks, lost.write(batch, None)])
        return lost

    async def _follow(
        self,
        ctx: Context,
        on_success: dict[str, Any] | None,
        on_failure: dict[str, Any] | None,
        on_finished: dict[str, Any] | None,
    ) -> dict[str, Any]:
        progress = await self.progress(ctx.job_id)
        for follow_up in (on_success if progress.succeeded else on_failure, on_finished):
            if follow_up is not None:
                ctx.follow_up(from_data(follow_up, progress))
        await self._forget_later(progress)
        return progress.to_data()

    async def _forget_later(self, progress: BatchProgress) -> None:
        at, batch = self._app.store.clock.now() + BATCH_RETENTION, progress.id
        head = replace(await self._head(batch), is_in=True, ended=progress.tally)
        chunks = [Write(chunk.key, chunk.data, chunk.version, expires_at=at) for chunk in await self._chunks(batch)]
        await self._write([*chunks, head.write(batch, at)])


# -- documents --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """The main document of a batch."""

    total: int
    at: Millis  # when the batch was enqueued
    is_in: bool = False  # all jobs have been inserted
    is_lost: bool = False  # jobs that have not been inserted never will be
    ended: Tally | None = None  # set once all jobs have finished

    @classmethod
    def read(cls, document: Document) -> Head:
        data = json.loads(document.data)
        ended = data.get("ended")
        return cls(data["total"], data["at"], data["is_in"], data["is_lost"], None if ended is None else Tally(**ended))

    def summary(self, batch: str, last: Job | None, now: Millis) -> BatchSummary:
        """Return the batch as a list shows it. `last` is the job that waits for all others, if it exists."""
        return BatchSummary(batch, self._state(last, now), self.total, to_datetime(self.at), self.ended)

    def _state(self, last: Job | None, now: Millis) -> BatchState:
        if self.ended is not None or (last is not None and last.status is Status.COMPLETED):
            return BatchState.FINISHED
        if last is None and not self.is_in and not self.is_lost and now - self.at <= COMING_IN:
            return BatchState.COMING_IN
        return BatchState.ABANDONED if last is None or last.finished else BatchState.RUNNING

    def write(self, batch: str, expires_at: Millis | None) -> Write:
        return Write(Key(BATCHES, "", batch), json.dumps(asdict(self)), expires_at=expires_at)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The ids of some members, and how they ended."""

    ids: tuple[str, ...]
    tally: Tally | None = None  # set once all of them have finished

    @classmethod
    def read(cls, document: Document) -> Chunk:
        data = json.loads(document.data)
        return cls(tuple(data["ids"]), None if data["tally"] is None else Tally(**data["tally"]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def write(self, batch: str, number: int, expires_at: Millis | None) -> Write:
        return Write(Key(MEMBERS, batch, f"{number:09}"), self.to_json(), expires_at=expires_at)


@dataclass(frozen=True, slots=True)
class Counted:
    """How a chunk's jobs have ended so far, and what is still missing."""

    ids: tuple[str, ...]
    tally: Tally
    live: int = 0
    may_come: bool = False  # some have not been inserted yet


def from_data(data: Mapping[str, Any], progress: BatchProgress) -> NewJob:
    """Restore a follow-up job, and add to its options which batch it follows."""
    options = {**json.loads(data["options"] or "{}"), "batch": progress.to_data()}
    target = None if data["target"] is None else (data["target"][0], data["target"][1])
    fields = {**data, "target": target, "tags": tuple(data["tags"]), "options": json.dumps(options)}
    return NewJob(**fields)


class BatchGuard:
    """Holds back the job that waits for a batch until the last member has finished."""

    option = OPTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        del now
        refusals = [(job.claim.id, await self._refusal(job.claim)) for job in jobs]
        return {job_id: refusal for job_id, refusal in refusals if refusal is not None}

    async def _refusal(self, claim: Claim) -> Refusal | None:
        try:
            awaited, soon = await self._app.batches.next_awaited(claim.id)
        except BatchNotFound:
            return refuse(claim, Move.CANCEL, reason="its batch is not known any more")
        if soon:
            reason = "jobs of its batch are still coming in"
            return refuse(claim, Move.SUSPEND, delay=COMING_IN_RECHECK, blocked=True, reason=reason)
        return None if awaited is None else dependencies.wait_for(claim, awaited)

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Do nothing: this guard hands nothing out."""


# -- chains -----------------------------------------------------------------------------------------------


async def put_chain(app: Mainspring, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
    """Insert jobs of which each starts after the one before."""
    for job in jobs:
        if job.dedupe_key is not None:
            msg = f"a job of {job.task!r} in a chain has a dedupe key, which another may hold; prepare it without one"
            raise ConfigurationError(msg)
    linked = list(jobs[:1])
    for before, job in pairwise(jobs):
        options = {**json.loads(job.options or "{}"), dependencies.OPTION: dependencies.option_behind(job, before.id)}
        linked.append(dependencies.suspended_until(before.id, replace(job, options=json.dumps(options))))
    inserted = await app.insert(linked)
    return [
        JobHandle(one.id, one.created, app, app.find_task(job.task)) for one, job in zip(inserted, linked, strict=True)
    ]
