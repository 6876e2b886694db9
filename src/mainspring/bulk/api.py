"""`app.bulk`: start changes of many jobs that run in the background, follow them, and cancel them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Self

from mainspring.bulk.change import (
    COLLECTION,
    BulkChange,
    BulkState,
    changeable,
    filter_data,
    from_data,
    narrowed,
    to_data,
)
from mainspring.errors import BulkNotFound, ConfigurationError, IllegalMove
from mainspring.ids import new_id
from mainspring.job import FINISHED, Job, Status
from mainspring.queue_patterns import are_all_among
from mainspring.services import Services, whoami
from mainspring.stores import affected
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Note, Write
from mainspring.stores.paging import newest
from mainspring.stores.protocol import Action, AuditFilter, CappedCount, Filter, Store

ActionName = Literal["cancel", "retry", "delete"]
KEEP = 30 * 86_400_000  # milliseconds for which an ended bulk change stays readable
COUNT_CAP = 10_000  # jobs that a request counts or looks at, if the store has no counter of them
ATTEMPTS = 20  # of a write that other processes disturb


@dataclass(frozen=True, slots=True)
class BulkPage:
    changes: list[BulkChange]
    cursor: str | None  # pass it to get the next page; None: this was the last


@dataclass(frozen=True, slots=True)
class AffectedJob:
    """A job that a bulk change has changed."""

    id: str
    job: Job | None  # as it is now; None: it has been deleted


@dataclass(frozen=True, slots=True)
class AffectedPage:
    jobs: list[AffectedJob]
    cursor: str | None  # pass it to get the next page; None: this was the last


class Bulk:
    """Changes of many jobs in the background, made by workers, page by page."""

    def __init__(self, services: Services, within: tuple[str, ...] = ()) -> None:
        self._services = services
        self._within = within  # patterns of queues: bulk changes of other jobs do not exist here

    def within(self, *patterns: str) -> Self:
        """Return the same for the jobs of some queues, as `app.jobs.within` does."""
        return type(self)(self._services, Filter(within=patterns).within)

    async def start(
        self,
        action: Action | ActionName,
        where: Filter,
        *,
        expect: int | None = None,
        pace: float | None = None,
        canary: int | None = None,
        dry_run: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> BulkChange:
        """Start to cancel, retry or delete all jobs that match now. Workers do it; the answer comes at once.

        With `expect`, refuse if the number of jobs differs from it by more than 5 %. `pace` is the most jobs per
        second. With `canary`, change that many jobs and then wait for `go_on`. With `dry_run`, only count.

        If the jobs cannot be counted quickly, the state is `counting` and a worker counts them first. Then a number
        that differs from `expect` makes it fail, and a dry run is kept until it has been counted.
        """
        chosen, now = action_of(action), self._services.now()
        check_numbers(expect, pace, canary)
        where = self._changeable(chosen, where)
        total = await count(self._services.store, chosen, where, now)
        asked = BulkChange(
            new_id(), chosen, narrowed(chosen, where, now), actor or whoami(), reason, BulkState.COUNTING, 0, now,
            pace=pace, canary=canary, expect=expect, dry_run=dry_run,
        )  # fmt: skip
        change = asked.begun(total, now)
        if change.state is not BulkState.PLANNED:
            await self._write(change, ABSENT, self._note("bulk.start", change, change.actor, reason))
        return change

    async def count(self, action: Action | ActionName, where: Filter) -> CappedCount:
        """Count the jobs that a bulk change would change, in bounded time."""
        chosen, now = action_of(action), self._services.now()
        return await count(self._services.store, chosen, self._changeable(chosen, where), now)

    def _changeable(self, action: Action, where: Filter) -> Filter:
        return changeable(action, replace(where, within=self._within) if self._within else where)

    async def get(self, bulk_id: str) -> BulkChange:
        """Return a bulk change and how far it is."""
        return (await self._read(bulk_id))[0]

    async def list(self, *, limit: int = 50, cursor: str | None = None) -> BulkPage:
        """Return bulk changes, newest first."""
        found = await newest(self._services.store, COLLECTION, limit + 1, cursor, self._is_here)
        changes = [await counted(self._services.store, from_data(document.data)) for document in found[:limit]]
        return BulkPage(changes, changes[-1].id if len(found) > limit else None)

    def _is_here(self, document: Document) -> bool:
        """Return whether a bulk change is one of jobs in these queues only."""
        if not self._within:
            return True
        of_jobs = from_data(document.data).where.within
        return bool(of_jobs) and are_all_among(of_jobs, self._within)

    async def jobs(self, bulk_id: str, *, limit: int = 50, cursor: str | None = None) -> AffectedPage:
        """Return jobs that a bulk change has changed, also deleted ones, about in the order of the changes."""
        await self._read(bulk_id)
        ids, cursor = await affected.read(self._services.store, bulk_id, limit, cursor)
        jobs = await self._jobs(ids)
        return AffectedPage([AffectedJob(job_id, jobs.get(job_id)) for job_id in ids], cursor)

    async def _jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        if not ids:
            return {}
        where = Filter(ids=tuple(ids), within=self._within)
        return {job.id: job for job in (await self._services.store.find(where, limit=len(ids))).jobs}

    async def cancel(self, bulk_id: str, *, reason: str = "", actor: str | None = None) -> BulkChange:
        """Stop a bulk change. Jobs that it has changed stay changed."""

        def cancelled(change: BulkChange) -> BulkChange:
            if change.ended:
                msg = f"bulk change {bulk_id} is {change.state} and cannot be cancelled any more"
                raise IllegalMove(msg)
            return replace(change, state=BulkState.CANCELLED, ended_at=self._services.now())

        return await self._change(bulk_id, cancelled, "bulk.cancel", reason, actor)

    async def go_on(self, bulk_id: str, *, reason: str = "", actor: str | None = None) -> BulkChange:
        """Let a bulk change go on that waits after its canary."""

        def resumed(change: BulkChange) -> BulkChange:
            if change.state is not BulkState.WAITING:
                msg = f"bulk change {bulk_id} is {change.state}; only one that waits after its canary can go on"
                raise IllegalMove(msg)
            return replace(change, state=BulkState.RUNNING)

        return await self._change(bulk_id, resumed, "bulk.go_on", reason, actor)

    async def _change(
        self, bulk_id: str, alter: Callable[[BulkChange], BulkChange], action: str, reason: str, actor: str | None
    ) -> BulkChange:
        """Write what `alter` makes of it. A worker may write at the same time, so try again."""
        for _ in range(ATTEMPTS):
            known, document = await self._read(bulk_id)
            change = alter(known)
            if await self._write(change, document.version, self._note(action, change, actor or whoami(), reason)):
                return change
        msg = f"bulk change {bulk_id} was changed by others at the same time, {ATTEMPTS} times; try again"
        raise IllegalMove(msg)

    async def _read(self, bulk_id: str) -> tuple[BulkChange, Document]:
        found = await self._services.store.documents([Key(COLLECTION, "", bulk_id)])
        if not found or not self._is_here(found[0]):
            msg = f"there is no bulk change {bulk_id}; ended ones are kept for 30 days"
            raise BulkNotFound(msg)
        return await counted(self._services.store, from_data(found[0].data)), found[0]

    async def _write(self, change: BulkChange, version: str, note: Note) -> bool:
        now = self._services.store.clock.now()
        is_active = not change.ended and change.state is not BulkState.WAITING
        write = Write(
            change.key, to_data(change), expected=version, due_at=now if is_active else None,
            expires_at=now + KEEP if change.ended else None, recorded=True,
        )  # fmt: skip
        return (await self._services.store.write([Bundle((write,), note=note)]))[0] is not None

    @staticmethod
    def _note(action: str, change: BulkChange, actor: str, reason: str) -> Note:
        where = {
            name: value.isoformat() if hasattr(value, "isoformat") else value
            for name, value in filter_data(change.where).items()
        }
        detail = {"action": change.action.value, "filter": where, "jobs": change.total}
        return Note(By(actor, reason, change.id), action, {**detail, **({"dry_run": True} if change.dry_run else {})})


async def count(store: Store, action: Action, where: Filter, now: datetime) -> CappedCount:
    """Count the jobs in bounded time: by the store's counters if the filter has only queues and statuses.

    The counters include jobs of this millisecond, which the change leaves alone.
    """
    if not where.statuses:
        return CappedCount(0, exact=True)
    if where == Filter(queues=where.queues, statuses=where.statuses, within=where.within):
        return await store.count_up_to(where, COUNT_CAP)
    bounded = narrowed(action, where, now)
    found = await store.count_up_to(bounded, COUNT_CAP)
    if found.exact:
        return found
    everything = await store.count_up_to(of_same_tables(where), COUNT_CAP)
    if not everything.exact or everything.value > COUNT_CAP:
        return found
    return CappedCount(await store.count(bounded), exact=True)


def of_same_tables(where: Filter) -> Filter:
    """Return the filter for all jobs that a full count may have to look at; stores keep finished jobs apart."""
    tables = [table for table in (FINISHED, frozenset(Status) - FINISHED) if table.intersection(where.statuses)]
    return Filter(statuses=tuple(status for status in Status if any(status in table for table in tables)))


async def counted(store: Store, change: BulkChange) -> BulkChange:
    """Return it with the number of changed jobs. The audit log has it, written together with each page.

    A process that died after a page has changed jobs that it could not note in `looked_at`.
    """
    entries = await store.audit(AuditFilter(operation=change.id, action=change.action.value), limit=1)
    changed = max(change.changed, sum(entry.count for entry in entries))
    return replace(change, changed=changed, looked_at=max(change.looked_at, changed + change.conflicts))


def action_of(name: str) -> Action:
    allowed = (Action.CANCEL, Action.RETRY, Action.DELETE)
    if name in allowed:
        return Action(name)
    msg = f"a bulk change cannot {name!r} jobs; use one of {', '.join(allowed)}"
    raise ConfigurationError(msg)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_numbers(expect: int | None, pace: float | None, canary: int | None) -> None:
    for name, number, least in (("expect", expect, 0), ("canary", canary, 1)):
        if number is not None and (type(number) is not int or number < least):
            msg = f"{name} is {number!r}; give a whole number of jobs, at least {least}"
            raise ConfigurationError(msg)
    if pace is not None and not (is_number(pace) and 0.001 <= pace <= 1_000_000):
        msg = f"pace is {pace!r}; give jobs per second, from 0.001 to 1,000,000"
        raise ConfigurationError(msg)
