"""Lets jobs start as their limits allow.

A claimed job asks for a slot or token of each of its limits. One that does not get all of them is suspended until it is
woken. Where runs are short, it stays in its worker for a moment instead (`Standbys`), and the write that frees a slot
hands the slot to it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakKeyDictionary

from mainspring.clock import Millis
from mainspring.errors import Failure, InvalidPayload
from mainspring.feature import Candidate, Enqueue, Feature, Recheck, Refusal, refuse
from mainspring.features.limits.coordinator import LimitCoordinator
from mainspring.features.limits.options import DeclaredLimits, Fair, Limit, Rate, Ticket, limits_in
from mainspring.features.limits.rules import Acquire, Admit, LimitRequest, Refund, Release, Wait
from mainspring.features.limits.timer import LimitTimer
from mainspring.features.limits.token_cache import most_drawn
from mainspring.job import UNTIL_WOKEN, Claim, Move, NewJob
from mainspring.live_settings import Snapshot
from mainspring.services import Services
from mainspring.stored_options import with_options
from mainspring.stores.documents import Key

MAX_STANDBYS = 8  # jobs that wait for one limit in one process
QUICK_SECONDS = 0.1  # waiting is worth it if runs take less
MAX_KNOWN = 10_000  # limits that are known to have quick runs

Asking = tuple[Claim, Acquire, Release]
"""A job that wants to start, what it asks for, and what it gives back when it ends."""


class LimitsFeature(Feature):
    """Asks the coordinator of the running event loop for what claimed jobs need."""

    option = "limits"

    def __init__(self, services: Services, declared: DeclaredLimits) -> None:
        self._services = services
        self._declared = declared
        self.prepared_tasks = declared.fair
        self._timer = LimitTimer(services, declared)
        self.timers = (self._timer,)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLimits] = WeakKeyDictionary()
        self._inside: dict[tuple[str, int], tuple[Release, float]] = {}  # run -> what it gives back, and its start

    # -- at the enqueue: jobs of fair tasks ---------------------------------------------------------

    async def prepare(self, enqueue: Enqueue) -> None:
        """Make only the next jobs of fair tasks ready; the others wait for their turn.

        Jobs for later ask for their turn when they are due. Jobs in a transaction of the caller do the same, because
        it is not known when that commits.
        """
        if enqueue.in_transaction:
            return
        fair = self._declared.fair
        enqueue.jobs = [replace(job) if job.task in fair else job for job in enqueue.jobs]  # they are changed
        groups: dict[Ticket, list[NewJob]] = {}
        now = self._services.store.clock.now()
        for job in enqueue.jobs:
            if job.task in fair and (job.run_at or now) <= now and not job.delay and job.waits_for is None:
                groups.setdefault(self._declared.turn(job.task, job.payload), []).append(job)
        if not groups:
            return
        admits = {ticket: Admit((ticket,), len(jobs)) for ticket, jobs in groups.items()}
        decision = await self._loop().coordinator.settle(list(admits.values()))
        for ticket, jobs in groups.items():
            mark(jobs, ticket.key)
            for job in jobs[decision.ready[admits[ticket]] :]:
                job.waits_for, job.run_at = ticket.wait_key, None
        enqueue.afterwards.append(partial(self._enqueued, groups))

    async def _enqueued(self, groups: Mapping[Ticket, Sequence[NewJob]], created: Collection[str]) -> None:
        """Note that jobs wait, now that they are inserted: a process that looked before may have found none.

        Take back the count of ready jobs that were not inserted: duplicates, or all of them if the commit failed.
        """
        requests: list[LimitRequest] = []
        for ticket, jobs in groups.items():
            if jobs[-1].waits_for is not None:
                requests.append(Wait((ticket,)))
            if absent := sum(job.waits_for is None and job.id not in created for job in jobs):
                requests.append(Refund((ticket,), absent))
        if requests:
            await self._loop().coordinator.settle(requests)

    # -- between claim and start --------------------------------------------------------------------

    def concerns(self, claim: Claim) -> bool:
        return self._declared.concerns(claim.task, claim.queue)

    def pass_at_once(self, claims: list[Claim]) -> list[Claim]:
        """Return the jobs that did not pass. One with only rates and no keys passes if the cache has tokens."""
        kinds: dict[tuple[str, str], list[Claim]] = {}
        for claim in claims:
            kinds.setdefault((claim.task, claim.queue), []).append(claim)
        left: list[Claim] = []
        for kind, own in kinds.items():
            tickets = self._declared.only_rates(*kind)
            left += own[self._loop().coordinator.admit_at_once(tickets, len(own)) if tickets else 0 :]
        return left

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Find out now what each job needs, by today's limits and payload, not by those of its enqueue."""
        del now
        asking, refusals = list[Asking](), dict[str, Refusal]()
        for job in jobs:
            try:
                tickets = self._declared.tickets(job.claim)
            except InvalidPayload as error:
                refusals[job.claim.id] = hopeless(job.claim, error)
                continue
            acquire, release = requests_of(job, tickets)
            if acquire.tickets:
                asking.append((job.claim, acquire, release))
            else:
                self._let_in(release)
        if asking := await self._spend_tokens(asking):
            refusals |= await self._ask(asking)
        return refusals

    async def _spend_tokens(self, asking: Sequence[Asking]) -> list[Asking]:
        """Let in jobs that need only tokens, as far as there are any; return the others.

        The tokens for all of them are taken at once: asking for each job by itself costs about as much as running it.
        """
        coordinator = self._loop().coordinator
        wanted = Counter(acquire.tickets for _, acquire, _ in asking if all(map(can_be_drawn, acquire.tickets)))
        granted = Counter({tickets: coordinator.admit_at_once(tickets, number) for tickets, number in wanted.items()})
        if lacking := wanted - granted:
            await coordinator.draw(lacking)
            granted.update({tickets: coordinator.admit_at_once(tickets, number) for tickets, number in lacking.items()})
        left: list[Asking] = []
        for claim, acquire, release in asking:
            if granted[acquire.tickets]:
                granted[acquire.tickets] -= 1
                self._let_in(release)
            else:
                left.append((claim, acquire, release))
        return left

    async def _ask(self, asking: Sequence[Asking]) -> dict[str, Refusal]:
        loop = self._loop()
        decision = await loop.coordinator.settle([acquire for _, acquire, _ in asking])
        rechecks: dict[str, Recheck] = {}
        refusals: dict[str, Refusal] = {}
        for claim, acquire, release in asking:
            if (obstacle := decision.refused.get((claim.id, claim.token))) is not None:
                recheck = rechecks.setdefault(obstacle.wait_key, partial(self._line_up, obstacle))
                refusals[claim.id] = blocked(claim, obstacle, recheck, loop.standbys.wait(obstacle, acquire, release))
            else:
                self._let_in(release)
        return refusals

    def _let_in(self, release: Release) -> None:
        if release.tickets:
            self._inside[release.job_id, release.token] = release, self._services.store.clock.monotonic()
            self._loop().standbys.entered(release)

    async def _line_up(self, ticket: Ticket) -> bool:
        """Note that suspended jobs wait, which itself wakes as many of them as may go on.

        Return True, so that all of them are woken and ask again, if the limit was changed at run time since they were
        refused: then the change may not have woken them.
        """
        await self._loop().coordinator.settle([Wait((ticket,))])
        return ticket.limit not in self._declared.known_as(ticket.limit.name or "")

    # -- when a number is set at run time -------------------------------------------------------------

    def use_settings(self, after: Snapshot) -> None:
        self._declared.set_numbers(after.numbers())

    async def settings_changed(self, before: Collection[Snapshot], after: Snapshot) -> None:
        """Write new numbers, and wake jobs that may start by them. Each worker does this; the first one finds them."""
        new = after.numbers()
        old = [each.numbers() for each in before]
        for name in new.keys() | {name for each in old for name in each}:
            if any(limits_in(each.get(name), name) != limits_in(new.get(name), name) for each in old):
                await self._timer.renumber(name, self._declared.known_as(name, new))

    # -- after the end ------------------------------------------------------------------------------

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        runs = [(job.claim.id, job.claim.token) for job in jobs]
        if releases := [self._inside[run][0] for run in runs if run in self._inside]:
            await self._hand_over(releases)

    def disown(self, jobs: Sequence[Candidate]) -> None:
        for job in jobs:
            if (inside := self._inside.pop((job.claim.id, job.claim.token), None)) is not None:
                self._loop().standbys.left(inside[0], math.inf)

    async def adopt(self, jobs: Sequence[Candidate]) -> None:
        """Note what runs hold by the limits that hold now. What a changed limit leaves behind, the timer frees."""
        for job in jobs:
            with suppress(InvalidPayload):  # then it had no slot
                _, release = requests_of(job, self._declared.tickets(job.claim))
                self._let_in(replace(release, adopted=True))

    async def _hand_over(self, releases: Sequence[Release]) -> None:
        """Give slots back. Jobs that wait here for one of them get it by the same write."""
        loop = self._loop()
        heirs = loop.standbys.heirs(releases)
        requests = [with_spare(release, loop.standbys) for release in releases]
        try:
            decision = await loop.coordinator.settle([*requests, *(heir.acquire for heir in heirs)])
        except BaseException:
            for heir in heirs:
                heir.answer(granted=False)
            raise
        for release in releases:
            if (gone := self._inside.pop((release.job_id, release.token), None)) is not None:
                loop.standbys.left(release, self._services.store.clock.monotonic() - gone[1])
        granted = [heir for heir in heirs if (heir.acquire.job_id, heir.acquire.token) not in decision.refused]
        for heir in granted:
            if not heir.pending.cancelled():
                self._let_in(heir.release)
        for heir in heirs:
            heir.answer(granted=heir in granted)
        loop.standbys.dismiss(releases)
        if late := [heir.release for heir in granted if heir.pending.cancelled()]:
            await loop.coordinator.settle(late)

    async def settled(self) -> None:
        await self._loop().coordinator.settled()

    def _loop(self) -> LoopLimits:
        """Return what this event loop has. A fork, or a test's other store, must not use what it took."""
        running = asyncio.get_running_loop()
        loop = self._loops.get(running)
        if loop is None or loop.coordinator.store is not self._services.store:
            loop = self._loops[running] = LoopLimits(LimitCoordinator(self._services.store, self._declared.current))
        return loop


def can_be_drawn(ticket: Ticket) -> bool:
    """Return whether it is for a rate that gains at least one token while tokens taken in advance are valid."""
    return isinstance(ticket.limit, Rate) and most_drawn(ticket.limit.per_milli) > 0


def mark(jobs: Iterable[NewJob], key: str) -> None:
    """Note in the jobs that they are counted for their key: when they are claimed, they need not ask for their turn."""
    for job in jobs:
        job.options = with_options(job, limits=key).options


def requests_of(job: Candidate, tickets: tuple[Ticket, ...]) -> tuple[Acquire, Release]:
    """Return what the job asks for and gives back. If it was claimed before, its turn may have gone to another job."""
    run = job.claim.id, job.claim.token
    fresh = job.option is not None and job.claim.token == 1
    turn = [ticket for ticket in tickets if fresh and isinstance(ticket.limit, Fair) and ticket.key == job.option]
    asked = tuple(ticket for ticket in tickets if ticket not in turn)
    places = (ticket for ticket in asked if not isinstance(ticket.limit, Rate))
    return Acquire(*run, asked), Release(*run, (*turn, *places), had_turn=bool(turn))


def blocked(claim: Claim, by: Ticket, recheck: Recheck, pending: asyncio.Future[bool] | None) -> Refusal:
    return refuse(
        claim,
        Move.SUSPEND,
        recheck=recheck,
        pending=pending,
        waits_for=by.wait_key,
        delay=UNTIL_WOKEN,
        reason=f"waits for the {by}" if not isinstance(by.limit, Fair) else f"waits for its turn among {by.key}'s",
    )


def hopeless(claim: Claim, error: InvalidPayload) -> Refusal:
    """Refuse a job that has no key any more. It had one at its enqueue; the code or the payload has changed since."""
    return refuse(claim, Move.DEAD, failure=Failure(type(error).__name__, str(error)), reason=str(error))


# -- refused jobs that stay in their worker for a moment ---------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Standby:
    """A refused job that waits for a slot."""

    acquire: Acquire
    release: Release  # what it gives back when it has run
    pending: asyncio.Future[bool]  # cancelled when the job stops waiting

    def answer(self, *, granted: bool) -> None:
        if not self.pending.done():
            self.pending.set_result(granted)


class Standbys:
    """The refused jobs that wait in this process; belongs to one event loop.

    The next job would otherwise have to be suspended, woken, claimed and admitted first. Jobs wait only while a run of
    this process holds a slot: they would not hear of a slot that another process frees.
    """

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[Standby]] = {}
        self._inside: Counter[Key] = Counter()  # runs of this process that hold a slot
        self._quick: set[Key] = set()  # limits whose last run that ended here was short

    def entered(self, release: Release) -> None:
        self._inside.update(ticket.document for ticket in limits_of(release))

    def left(self, release: Release, lasted: float) -> None:
        if len(self._quick) > MAX_KNOWN:
            self._quick.clear()
        for ticket in limits_of(release):
            (self._quick.add if lasted < QUICK_SECONDS else self._quick.discard)(ticket.document)
            self._inside[ticket.document] -= 1
            if self._inside[ticket.document] <= 0:
                del self._inside[ticket.document]

    def wait(self, obstacle: Ticket, acquire: Acquire, release: Release) -> asyncio.Future[bool] | None:
        """Let a refused job wait; return None if that is not worth it, or enough jobs wait already."""
        if not isinstance(obstacle.limit, Limit) or not self.lacking(obstacle.document):
            return None
        standby = Standby(acquire, release, asyncio.get_running_loop().create_future())
        others = (other for other in self._waiting.get(obstacle.document, ()) if not other.pending.done())
        self._waiting[obstacle.document] = deque([*others, standby])  # drops those that have stopped waiting
        return standby.pending

    def lacking(self, key: Key) -> int:
        """Return how many more jobs could wait here."""
        if key not in self._quick or not self._inside[key]:
            return 0
        return max(0, MAX_STANDBYS - sum(not standby.pending.done() for standby in self._waiting.get(key, ())))

    def heirs(self, releases: Iterable[Release]) -> list[Standby]:
        """Return, for each slot that becomes free, the job that has waited longest here."""
        found = (self._next(ticket.document) for release in releases for ticket in limits_of(release))
        return [standby for standby in found if standby is not None]

    def dismiss(self, releases: Iterable[Release]) -> None:
        """Refuse jobs that wait for a limit of which this process holds no slot any more."""
        for key in {ticket.document for release in releases for ticket in limits_of(release)} - self._inside.keys():
            while (standby := self._next(key)) is not None:
                standby.answer(granted=False)

    def _next(self, key: Key) -> Standby | None:
        waiting = self._waiting.get(key)
        while waiting:
            if not (standby := waiting.popleft()).pending.done():
                return standby
        self._waiting.pop(key, None)
        return None


def limits_of(release: Release) -> list[Ticket]:
    return [ticket for ticket in release.tickets if isinstance(ticket.limit, Limit)]


def with_spare(release: Release, standbys: Standbys) -> Release:
    """Where runs are short, ask to wake some more jobs, which wait here for the next free slots."""
    spare = max((standbys.lacking(ticket.document) for ticket in limits_of(release)), default=0)
    return replace(release, spare=spare) if spare else release


@dataclass(frozen=True, slots=True, eq=False)
class LoopLimits:
    """What one event loop has for all limits."""

    coordinator: LimitCoordinator
    standbys: Standbys = field(default_factory=Standbys)
