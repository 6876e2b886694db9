"""Lets claimed jobs start as their limits allow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary, ref

from mainspring.errors import Failure, InvalidPayload
from mainspring.feature import Candidate, Recheck, Refusal, refuse
from mainspring.features.limits.coordinator import LimitCoordinator
from mainspring.features.limits.options import Fair, Rate, Ticket
from mainspring.features.limits.rules import Acquire, Admit, LimitRequest, Refund, Release, Wait
from mainspring.features.limits.standby import Standbys, limits_of
from mainspring.features.limits.token_cache import most_drawn
from mainspring.job import UNTIL_WOKEN, Claim, Move, NewJob
from mainspring.services import Services
from mainspring.stored_options import with_options

# a job that wants to start, what it asks for, and what it gives back when it ends
Asking = tuple[Claim, Acquire, Release]


class LimitAdmission:
    """Asks the coordinator of the running event loop for what claimed jobs need."""

    def __init__(self, services: Services, tickets: Callable[[Claim], tuple[Ticket, ...]]) -> None:
        self._services = services
        self._tickets = tickets
        self._coordinators: WeakKeyDictionary[asyncio.AbstractEventLoop, LimitCoordinator] = WeakKeyDictionary()
        # the loop that asked last
        self._latest: tuple[Callable[[], object], LimitCoordinator | None] = ((lambda: None), None)
        self._inside: dict[tuple[str, int], tuple[Release, float]] = {}  # run -> what it gives back, and its start

    async def admit(self, jobs: Sequence[Candidate]) -> Mapping[str, Refusal]:
        """Find out now what each job needs, by today's limits and payload, not by those of its enqueue."""
        coordinator, asks, refusals = self._coordinator(), list[Asking](), dict[str, Refusal]()
        for job in jobs:
            try:
                tickets = self._tickets(job.claim)
            except InvalidPayload as error:
                refusals[job.claim.id] = hopeless(job.claim, error)
                continue
            ask, leave = wishes_of(job, tickets)
            if ask.tickets:
                asks.append((job.claim, ask, leave))
            else:
                self._let_in(leave)
        if asks := await self._spend_tokens(coordinator, asks):
            refusals |= await self._ask(coordinator, asks)
        return refusals

    async def _spend_tokens(self, coordinator: LimitCoordinator, asks: Sequence[Asking]) -> list[Asking]:
        """Let in jobs that need only tokens, as far as there are any; return the others.

        The tokens for all of them are taken at once: asking for each job by itself costs about as much as running it.
        """
        wanted = Counter(ask.tickets for _, ask, _ in asks if all(map(can_be_drawn, ask.tickets)))
        granted = Counter({tickets: coordinator.admit_at_once(tickets, number) for tickets, number in wanted.items()})
        if lacking := wanted - granted:
            await coordinator.draw(lacking)
            granted.update({tickets: coordinator.admit_at_once(tickets, number) for tickets, number in lacking.items()})
        left: list[Asking] = []
        for claim, ask, leave in asks:
            if granted[ask.tickets]:
                granted[ask.tickets] -= 1
                self._let_in(leave)
            else:
                left.append((claim, ask, leave))
        return left

    def admit_at_once(self, tickets: Sequence[Ticket], number: int) -> int:
        return self._coordinator().admit_at_once(tickets, number)

    async def settled(self) -> None:
        await self._coordinator().settled()

    async def _ask(self, coordinator: LimitCoordinator, asks: Sequence[Asking]) -> dict[str, Refusal]:
        decision = await coordinator.settle([ask for _, ask, _ in asks])
        looks: dict[str, Recheck] = {}
        refusals: dict[str, Refusal] = {}
        for claim, ask, leave in asks:
            if (obstacle := decision.refused.get((ask.job_id, ask.token))) is not None:
                look = looks.setdefault(obstacle.call, partial(self._line_up, obstacle))
                refusals[claim.id] = blocked(claim, obstacle, look, coordinator.standbys.wait(obstacle, ask, leave))
            else:
                self._let_in(leave)
        return refusals

    def _let_in(self, leave: Release) -> None:
        if leave.tickets:
            self._inside[leave.job_id, leave.token] = leave, self._time()
            self._coordinator().standbys.entered(leave)

    def _time(self) -> float:
        return self._services.store.clock.monotonic()

    async def _line_up(self, ticket: Ticket) -> bool:
        """Note that suspended jobs wait. Never return True: this itself wakes as many of them as may go on."""
        await self._coordinator().settle([Wait((ticket,))])
        return False

    async def enter(self, groups: Mapping[Ticket, list[NewJob]]) -> None:
        """Decide which jobs of fair tasks are inserted as ready; the others wait for their turn."""
        wishes = {ticket: Admit((ticket,), len(jobs)) for ticket, jobs in groups.items()}
        decision = await self._coordinator().settle(list(wishes.values()))
        for ticket, jobs in groups.items():
            mark(jobs, ticket.key)
            for job in jobs[decision.ready[wishes[ticket]] :]:
                job.waits_for, job.run_at = ticket.call, None

    async def entered(self, lined_up: Iterable[Ticket], absent: Mapping[Ticket, int]) -> None:
        """Note that jobs wait, now that they are inserted: a process that looked before may have found none.

        `absent` are jobs that were counted as ready and were not inserted.
        """
        missing = [Refund((ticket,), number) for ticket, number in absent.items() if number]
        wishes: list[LimitRequest] = [*(Wait((ticket,)) for ticket in lined_up), *missing]
        if wishes:
            await self._coordinator().settle(wishes)

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        runs = [(job.claim.id, job.claim.token) for job in jobs]
        leaves = [self._inside[run][0] for run in runs if run in self._inside]
        if leaves:
            await self._hand_over(leaves)

    async def _hand_over(self, leaves: Sequence[Release]) -> None:
        """Give slots back. Jobs that wait here for one of them get it by the same write."""
        coordinator = self._coordinator()
        heirs = coordinator.standbys.heirs(leaves)
        wishes = [with_spare(leave, coordinator.standbys) for leave in leaves]
        try:
            decision = await coordinator.settle([*wishes, *(heir.ask for heir in heirs)])
        except BaseException:
            for heir in heirs:
                heir.answer(granted=False)
            raise
        for leave in leaves:
            if (gone := self._inside.pop((leave.job_id, leave.token), None)) is not None:
                coordinator.standbys.left(leave, self._time() - gone[1])
        granted = [heir for heir in heirs if (heir.ask.job_id, heir.ask.token) not in decision.refused]
        for heir in granted:
            if not heir.pending.cancelled():
                self._let_in(heir.leave)
        for heir in heirs:
            heir.answer(granted=heir in granted)
        coordinator.standbys.dismiss(leaves)
        if late := [heir.leave for heir in granted if heir.pending.cancelled()]:
            await coordinator.settle(late)

    def _coordinator(self) -> LimitCoordinator:
        """Return the coordinator of this event loop. A fork, or a test's other store, must not use what it took."""
        loop = asyncio.get_running_loop()
        home, coordinator = self._latest
        if home() is not loop:
            coordinator = self._coordinators.get(loop)
        if coordinator is None or coordinator.store is not self._services.store:
            coordinator = self._coordinators[loop] = LimitCoordinator(self._services.store)
        self._latest = ref(loop), coordinator
        return coordinator


def can_be_drawn(ticket: Ticket) -> bool:
    """Return whether it is for a rate that gains at least one token while tokens taken in advance are valid."""
    return isinstance(ticket.limit, Rate) and most_drawn(ticket.limit.per_milli) > 0


def mark(jobs: Iterable[NewJob], key: str) -> None:
    """Note in the jobs that they are counted for their key: when they are claimed, they need not ask for their turn."""
    for job in jobs:
        job.options = with_options(job, limits=key).options


def wishes_of(job: Candidate, tickets: tuple[Ticket, ...]) -> tuple[Acquire, Release]:
    """Return what the job asks for and gives back. If it was claimed before, its turn may have gone to another job."""
    run = job.claim.id, job.claim.token
    fresh = job.option is not None and job.claim.token == 1
    turn = [ticket for ticket in tickets if fresh and isinstance(ticket.limit, Fair) and ticket.key == job.option]
    asked = tuple(ticket for ticket in tickets if ticket not in turn)
    places = (ticket for ticket in asked if not isinstance(ticket.limit, Rate))
    return Acquire(*run, asked), Release(*run, (*turn, *places), called=bool(turn))


def with_spare(leave: Release, standbys: Standbys) -> Release:
    """Where runs are short, ask to wake some more jobs, which wait here for the next free slots."""
    spare = max((standbys.lacking(ticket.document) for ticket in limits_of(leave)), default=0)
    return replace(leave, spare=spare) if spare else leave


def blocked(claim: Claim, by: Ticket, recheck: Recheck, pending: asyncio.Future[bool] | None) -> Refusal:
    return refuse(
        claim,
        Move.SUSPEND,
        recheck=recheck,
        pending=pending,
        waits_for=by.call,
        delay=UNTIL_WOKEN,
        blocked=True,
        reason=f"waits for the {by}" if not isinstance(by.limit, Fair) else f"waits for its turn among {by.key}'s",
    )


def hopeless(claim: Claim, error: InvalidPayload) -> Refusal:
    """Refuse a job that has no key any more. It had one at its enqueue; the code or the payload has changed since."""
    return refuse(claim, Move.DEAD, failure=Failure(type(error).__name__, str(error)), reason=str(error))
