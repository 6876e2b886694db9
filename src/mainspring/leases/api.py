"""`app.leases`: work on jobs by your own means, in your own program or behind a service of yours.

Every call names the lessee by its id, so any process may serve it: one may answer a claim, and another one the report.
Nothing about a lease is kept in memory between two calls. See docs/leases.md.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.clock import Length, delay_of, duration, since_boot, to_datetime
from mainspring.code_version import checked as checked_version
from mainspring.errors import ConfigurationError, StoreError
from mainspring.features.durable.plan import StepPlan
from mainspring.job import Claim, Job, Status
from mainspring.json_text import from_json
from mainspring.leases import admission
from mainspring.leases.answers import PlannedStep, Pulse, Report, SavedStep
from mainspring.leases.ears import Ear, Ears
from mainspring.leases.ending import LeasedRun, claim_of
from mainspring.leases.items import Item, Release, check_held
from mainspring.leases.lessee import Batch, Lease, Lessee
from mainspring.leases.report import Reporter
from mainspring.log import get_log
from mainspring.names import check_names
from mainspring.queue_patterns import is_among
from mainspring.runtime import Runtime
from mainspring.stored_options import options_of
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Filter, Halt, WorkerInfo
from mainspring.stores.unreadable import UnreadableReports
from mainspring.trace import trace_of
from mainspring.worker.intake import wants
from mainspring.worker.run import SEALED, Stop
from mainspring.worker.settings import Queues, subscriptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")
log = get_log("mainspring.leases")

WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_LEASES = 1000  # of one claim
MOST_ITEMS = 1000  # of one report
LONGEST_WAIT = 3600.0  # seconds
BEATS_PER_LEASE = 3  # heartbeats that a waiting claim sends in the time after which a lessee counts as dead


class Leases:
    """Claims jobs for lessees and takes their reports."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ears = Ears()
        self._reporter = Reporter(runtime)
        self._unreadable = UnreadableReports()
        self._random = random.Random()  # noqa: S311 - draws the order of the queues

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this API from code without an event loop."""
        return self._runtime.services.run(work)

    # -- lessees --------------------------------------------------------------------------------

    def lessee(
        self,
        name: str,
        *,
        queues: Queues = EVERY_QUEUE,
        tasks: Iterable[str] | None = None,
        id: str | None = None,
        version: str | None = None,
    ) -> Lessee:
        """Make a lessee, for `async with` or `with`. Two of the same name are two lessees: each has its own id.

        With `id`, go on as the lessee that has this id. `version` is that of its code; default: the application's.
        """
        return Lessee(self, id or f"{name}-{secrets.token_hex(8)}", queues, tasks, version)

    async def join(
        self,
        name: str,
        *,
        queues: Queues = EVERY_QUEUE,
        tasks: Iterable[str] | None = None,
        id: str | None = None,
        version: str | None = None,
    ) -> Lessee:
        """Make a lessee and join the store with it. Call its `leave` at the end."""
        lessee = self.lessee(name, queues=queues, tasks=tasks, id=id, version=version)
        await self.enter(lessee)
        return lessee

    def join_sync(
        self,
        name: str,
        *,
        queues: Queues = EVERY_QUEUE,
        tasks: Iterable[str] | None = None,
        id: str | None = None,
        version: str | None = None,
    ) -> Lessee:
        return self.run(self.join(name, queues=queues, tasks=tasks, id=id, version=version))

    async def enter(self, lessee: Lessee) -> None:
        await self._runtime.store.open()
        info = self._info(lessee.id, lessee.queues, lessee.tasks)
        await self._runtime.store.join(replace(info, version=self._version_of(lessee)), None)

    async def leave(self, worker: str) -> None:
        """Remove a lessee, and give back all jobs that it still holds."""
        if leases := await self.held(worker):  # the store would release them too, but the features would not be told
            for page in batched(leases, MOST_ITEMS):
                await self.report(worker, [Release(lease.id, lease.token, "its lessee left") for lease in page])
        await self._runtime.store.leave(worker)

    def leave_sync(self, worker: str) -> None:
        self.run(self.leave(worker))

    def _version_of(self, lessee: Lessee | None, version: str | None = None) -> str:
        """Return the version of the lessee's code: its own, or else that of the application."""
        own = version if lessee is None else lessee.version
        return self._runtime.version if own is None else checked_version(own, "version")

    def check(self, worker: str, queues: Queues, tasks: Iterable[str] | None) -> str:
        """Return the id; raise ConfigurationError if anything is wrong with it, the queues or the tasks."""
        self._info(worker, queues, tasks)
        return worker

    def _info(self, worker: str, queues: Queues, tasks: Iterable[str] | None) -> WorkerInfo:
        named = tuple(sorted(subscription.queue for subscription in subscriptions(queues)))
        check_names(named, "a queue")
        if isinstance(tasks, str):
            msg = f"tasks must be a list of names, not a string; write tasks=[{tasks!r}]"
            raise ConfigurationError(msg)
        known = () if tasks is None else tuple(sorted(tasks))
        if tasks is not None and not known:
            msg = "tasks is empty, so nothing could be claimed; name some tasks, or leave it out for all"
            raise ConfigurationError(msg)
        check_names(known, "a task")
        heartbeat = self._runtime.store.lease / BEATS_PER_LEASE
        return WorkerInfo(
            checked_id(worker),
            "",
            0,
            named,
            tasks=known,
            heartbeat=heartbeat,
            started_at=datetime.now(UTC),
            remote=True,
        )

    # -- claims ---------------------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        *,
        queues: Queues = EVERY_QUEUE,
        tasks: Iterable[str] | None = None,
        limit: int = 1,
        wait: Length = 0,
        held: Mapping[str, int] | None = None,
        version: str | None = None,
        lessee: Lessee | None = None,
        unless: Callable[[], Awaitable[bool]] | None = None,
        within: Sequence[str] = (),
    ) -> Batch:
        """Claim up to `limit` due jobs for the lessee with this id. If none is due, wait for one, at most `wait`.

        `held` are the jobs that the lessee works on, with their tokens: the response says which of them are cancelled
        or lost, and a waiting call returns early when that happens. It also returns early when a halt begins. `version`
        is that of the lessee's code. `unless` is asked before each look for due jobs: once it returns True, the call
        returns without jobs. `within` are patterns of queues: jobs of others among `held` are reported as lost.
        """
        check_held(held or {})
        tasks = tasks if tasks is None or isinstance(tasks, str) else tuple(tasks)
        info = replace(self._info(worker, queues, tasks), version=self._version_of(lessee, version))
        seconds = check_claim(limit, wait)
        for_whom = lessee or Lessee(self, worker, queues, tasks, version)
        await self._runtime.store.open()
        async with self._joined(info, listen=seconds > 0) as ear:
            own, foreign = await self._sorted_out(held or {}, within)
            batch = await self._claim(for_whom, limit, seconds, own, ear, unless=unless)
            return replace(batch, pulse=with_lost(batch.pulse, foreign))

    def claim_sync(
        self,
        worker: str,
        *,
        queues: Queues = EVERY_QUEUE,
        tasks: Iterable[str] | None = None,
        limit: int = 1,
        wait: Length = 0,
        held: Mapping[str, int] | None = None,
        version: str | None = None,
    ) -> Batch:
        work = self.claim(worker, queues=queues, tasks=tasks, limit=limit, wait=wait, held=held, version=version)
        return self.run(work)

    @asynccontextmanager
    async def _joined(self, info: WorkerInfo, *, listen: bool) -> AsyncIterator[Ear]:
        """Join the lessee: it may be new, silent for long, or served by another process before."""
        if listen:
            async with self._ears.listening(self._runtime.store, info) as ear:
                yield ear
        else:
            await self._runtime.store.join(info, None)
            yield Ear()

    async def _claim(
        self,
        lessee: Lessee,
        limit: int,
        seconds: float,
        held: dict[str, int],
        ear: Ear,
        *,
        unless: Callable[[], Awaitable[bool]] | None,
    ) -> Batch:
        loop, lease = asyncio.get_running_loop(), self._runtime.store.lease
        end = loop.time() + seconds
        ear.clear()  # before the look: what happens after it must end the next wait
        first = pulse = await self.heartbeat(lessee.id, held, queues=lessee.queues)
        while True:
            is_over = unless is not None and await unless()
            leases, pause = ([], 0.0) if is_over else await self._take_safely(lessee, limit)
            if leases or is_over or loop.time() >= end or news(first, pulse):
                return Batch(tuple(leases), replace(pulse, known=True))
            await ear.wait(min(end - loop.time(), lease / BEATS_PER_LEASE, pause))
            ear.clear()
            pulse = await self.heartbeat(lessee.id, held, queues=lessee.queues)
            if not pulse.known:  # this process was stopped for longer than the lease
                await self.enter(lessee)

    async def _take_safely(self, lessee: Lessee, limit: int) -> tuple[list[Lease], float]:
        """Claim, and give the jobs back if this call is cancelled meanwhile: no lessee would know of them."""
        taking = asyncio.ensure_future(self._take(lessee, limit))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            leases, _ = await taking
            await self._give_back(lessee.id, leases)
            raise

    async def _give_back(self, worker: str, leases: Sequence[Lease]) -> None:
        now, store = self._runtime.store.clock.now(), self._runtime.store
        running = await store.get([lease.id for lease in leases]) if leases else []
        tokens = {lease.id: lease.token for lease in leases}
        runs = [LeasedRun.of(job, None) for job in running if job.token == tokens[job.id]]
        ended = [(run, admission.handed_back(run, Stop.CROWDED, now)) for run in runs]
        await self._reporter.write(worker, ended)

    async def _take(self, lessee: Lessee, limit: int) -> tuple[list[Lease], float]:
        """Claim once. Return the leases and, if there are none, the seconds after which to claim again."""
        store, began, outside = self._runtime.store, since_boot(), self._runtime.services.outside_halt
        if outside is not None and await outside.halt(self._runtime.services.now()) is not None:
            return [], duration(outside.check.every) / 1000
        claims = await self._claim_due(lessee, limit)
        if not claims.jobs:
            due = claims.next_due
            return [], LONGEST_WAIT if due is None else max(0.0, (due - store.clock.now()) / 1000)
        await self._runtime.live_settings.refresh()
        if self._ears.state_changed:
            self._ears.state_changed = False
            await self._runtime.features.state_changed()
        runs, ended = await admission.admit(self._runtime, claims.jobs)
        now = store.clock.now()
        if since_boot() - began > store.lease:  # this process was stopped; others may have taken the jobs over
            ended += [(run, admission.handed_back(run, Stop.CROWDED, now)) for run in runs]
        else:
            ended += admission.halted(runs, await self._all_halts(), now)
        await self._reporter.write(lessee.id, ended)
        await self._report_unreadable(lessee.id, ended)
        gone = {run.claim.id for run, _ in ended}
        leased = [run.claim for run in runs if run.claim.id not in gone]
        if leased and self._runtime.observers:
            await self._runtime.observers.leased(leased)
        if (meter := self._runtime.bus.meter) is not None:
            for claim in leased:
                meter.started(claim, now - claim.run_at)
        return [lease_of(claim, lessee, now) for claim in leased], 0.0

    async def _report_unreadable(self, worker: str, ended: Sequence[admission.Ended]) -> None:
        sealed = [run.claim for run, _ in ended if run.claim.payload.startswith(SEALED)]
        if sealed and self._unreadable.met(self._runtime.store, worker, sealed):
            with suppress(StoreError):  # the lessee must get the other jobs; the next claim reports it again
                await self._unreadable.write(self._runtime.store)

    async def _claim_due(self, lessee: Lessee, limit: int) -> Claims:
        """Claim due jobs; a crash suspect only for a lessee that holds nothing which the suspect could take along."""
        store = self._runtime.store
        tasks = None if lessee.tasks is None else frozenset(lessee.tasks)
        asked = wants(subscriptions(lessee.queues), strict=False, room=limit, in_hand={}, rng=self._random)
        version = self._version_of(lessee)
        claims = await store.claim(lessee.id, asked, limit=limit, tasks=tasks, version=version)
        if claims.jobs or not claims.suspects:
            return claims
        if await store.count(Filter(worker=lessee.id, statuses=(Status.RUNNING,))):
            return claims
        alone = await store.claim(lessee.id, asked, limit=1, solo=True, tasks=tasks, version=version)
        return alone if alone.jobs else claims

    # -- while they run -------------------------------------------------------------------------

    async def heartbeat(
        self,
        worker: str,
        held: Mapping[str, int] | None = None,
        *,
        queues: Queues = EVERY_QUEUE,
        within: Sequence[str] = (),
    ) -> Pulse:
        """Say that the lessee lives. `held` are its jobs and their tokens; `queues` are those whose halts it is told.

        Return which of the jobs are cancelled or lost, and what is halted. Jobs that are not `within` these patterns of
        queues are lost.
        """
        check_held(held or {})
        store = self._runtime.store
        await store.open()
        own, foreign = await self._sorted_out(held or {}, within)
        pulse = await store.heartbeat(checked_id(worker), own)
        known = Pulse(dict(pulse.cancelled), tuple(sorted(pulse.lost)), await self._halts(queues), pulse.known)
        return with_lost(known, foreign)

    async def _sorted_out(
        self, held: Mapping[str, int], within: Sequence[str]
    ) -> tuple[dict[str, int], Collection[str]]:
        """Return the held jobs of these queues, and the others: whether those exist is not for this lessee to know."""
        if not within or not held:
            return dict(held), ()
        here = {job.id for job in await self._runtime.store.get(list(held), within=within)}
        return {job_id: token for job_id, token in held.items() if job_id in here}, held.keys() - here

    def heartbeat_sync(
        self, worker: str, held: Mapping[str, int] | None = None, *, queues: Queues = EVERY_QUEUE
    ) -> Pulse:
        return self.run(self.heartbeat(worker, held, queues=queues))

    async def _halts(self, queues: Queues) -> tuple[Halt, ...]:
        served = {subscription.queue for subscription in subscriptions(queues)}
        halts = await self._all_halts()
        return tuple(halt for halt in halts if halt.queue is None or is_among(halt.queue, served))

    async def _all_halts(self) -> list[Halt]:
        """Return the halts of the store, and the one of the function given as `halted`."""
        outside = self._runtime.services.outside_halt
        halt = None if outside is None else await outside.halt(self._runtime.services.now())
        return [*await self._runtime.store.halts(), *([] if halt is None else [halt])]

    async def report(
        self,
        worker: str,
        items: Sequence[Item],
        *,
        held: Mapping[str, int] | None = None,
        queues: Queues = EVERY_QUEUE,
        within: Sequence[str] = (),
    ) -> Report:
        """Take reports about jobs of this lessee. Each item has its own answer; no item affects another job.

        `held` are further jobs of the lessee, for the pulse. An outage of the store raises StoreUnavailable: repeat the
        whole report then. Jobs that are not `within` these patterns of queues do not exist for this lessee.
        """
        check_items(items)
        named = {item.job_id: item.token for item in items}
        pulse = await self.heartbeat(worker, {**(held or {}), **named}, queues=queues, within=within)
        answers = await self._reporter.take(worker, items, pulse.cancelled, within)
        lost = tuple(job_id for job_id in pulse.lost if job_id not in named)
        return Report(tuple(answers), replace(pulse, lost=lost))

    def report_sync(
        self,
        worker: str,
        items: Sequence[Item],
        *,
        held: Mapping[str, int] | None = None,
        queues: Queues = EVERY_QUEUE,
    ) -> Report:
        return self.run(self.report(worker, items, held=held, queues=queues))

    async def held(self, worker: str, *, lessee: Lessee | None = None) -> list[Lease]:
        """Return all leases that the store has for this lessee.

        Ask for them after a claim whose answer was lost, and when a lessee with a fixed id starts again. Do not ask
        while another claim of the same lessee is under way: its jobs may be among them.
        """
        store, cursor, jobs = self._runtime.store, None, list[Job]()
        where = Filter(worker=checked_id(worker), statuses=(Status.RUNNING,))
        await store.open()
        while True:
            page = await store.find(where, limit=MOST_LEASES, cursor=cursor)
            jobs += page.jobs
            if (cursor := page.cursor) is None:
                break
        by = lessee or Lessee(self, worker)
        return [lease_of(claim_of(job), by, round(job.started_at.timestamp() * 1000)) for job in jobs if job.started_at]

    def held_sync(self, worker: str) -> list[Lease]:
        return self.run(self.held(worker))

    async def steps(self, job_id: str) -> list[SavedStep]:
        """Return the recorded steps of a job, in order."""
        return await self._reporter.steps(job_id)

    def steps_sync(self, job_id: str) -> list[SavedStep]:
        return self.run(self.steps(job_id))


def batched(leases: Sequence[Lease], size: int) -> Iterator[Sequence[Lease]]:
    for start in range(0, len(leases), size):
        yield leases[start : start + size]


def with_lost(pulse: Pulse, more: Collection[str]) -> Pulse:
    return replace(pulse, lost=tuple(sorted({*pulse.lost, *more}))) if more else pulse


def news(before: Pulse, after: Pulse) -> bool:
    """Return whether a lessee should hear of something that has happened since `before`."""
    fresh_halts = {halt.number for halt in after.halts} - {halt.number for halt in before.halts}
    return bool(after.cancelled.keys() - before.cancelled.keys() or set(after.lost) - set(before.lost) or fresh_halts)


def lease_of(claim: Claim, lessee: Lessee, claimed_at: int) -> Lease:
    return Lease(
        id=claim.id,
        token=claim.token,
        worker=lessee.id,
        task=claim.task,
        queue=claim.queue,
        payload=from_json(claim.payload),
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        deadline=to_datetime(claimed_at + claim.timeout) if claim.timeout else None,
        suspect=claim.crashes > 0,
        priority=claim.priority,
        run_at=to_datetime(claim.run_at),
        created_at=to_datetime(claim.created_at),
        target=claim.target,
        tags=claim.tags,
        dedupe_key=claim.dedupe_key,
        trace=trace_of(claim.options),
        headers=options_of(claim.options).get("headers", {}),
        plan=plan_of(claim),
        _lessee=lessee,
    )


def plan_of(claim: Claim) -> tuple[PlannedStep, ...]:
    plan = StepPlan.from_options(options_of(claim.options))
    return tuple(PlannedStep(name, plan.timeout(name)) for name in plan)


def checked_id(worker: Any) -> str:
    """Return a lessee's id. It may come from another program, and becomes part of file names."""
    if not isinstance(worker, str) or not WORKER_ID.fullmatch(worker):
        msg = (
            f"{worker!r} cannot be the id of a lessee; give 1 to 100 letters, digits, dots, underscores and hyphens, "
            "of which the first is a letter or digit"
        )
        raise ConfigurationError(msg)
    return worker


def check_claim(limit: object, wait: Length) -> float:
    """Return the wait in seconds; raise ConfigurationError if it or the limit is out of bounds."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_LEASES:
        msg = f"limit is {limit!r}; give a whole number from 1 to {MOST_LEASES}"
        raise ConfigurationError(msg)
    seconds = delay_of(wait, "wait") / 1000
    if seconds > LONGEST_WAIT:
        msg = f"wait is {wait!r}; give at most an hour, and claim again after that"
        raise ConfigurationError(msg)
    return seconds


def check_items(items: Sequence[Item]) -> None:
    if isinstance(items, (str, Item)) or not all(isinstance(item, Item) for item in items):
        msg = f"a report takes a list of items, such as Complete(job_id, token), not {items!r}"
        raise ConfigurationError(msg)
    if len(items) > MOST_ITEMS:
        msg = f"a report takes up to {MOST_ITEMS} items, not {len(items)}; send them in several reports"
        raise ConfigurationError(msg)
