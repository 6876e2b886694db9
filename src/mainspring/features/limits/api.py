"""The limits of an application and their current state: `app.limits`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.feature import Candidate, Enqueue, Feature, Features, Refusal
from mainspring.features.limits.admission import LimitAdmission
from mainspring.features.limits.options import (
    COLLECTION,
    AnyLimit,
    Fair,
    Limit,
    Rate,
    Ticket,
    call_of,
    named,
    ticket_for,
)
from mainspring.features.limits.state import Bucket, State, Turns
from mainspring.features.limits.storage import states_in
from mainspring.job import Claim, NewJob, Status
from mainspring.services import Services
from mainspring.stores.documents import Key, Listing
from mainspring.stores.protocol import Filter

PAGE_SIZE = 500  # documents per read
CLOCK_SKEW: Millis = 5_000  # a job may be due now although its time, by the store's clock, is slightly ahead
MAX_OUT = 20_000  # ready or running jobs of a fair task; if there are more, they are not counted by key

Declared = tuple[AnyLimit, ...]  # the limits of one task or queue


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of one limit, or of one key of it."""

    kind: str  # limit, rate or fair
    name: str
    key: str  # empty if the limit has no keys
    waits_for: str  # the `waits_for` of jobs that it blocks
    waiting: bool  # whether jobs may wait for it
    size: int  # a limit's slots; a rate's burst
    jobs: tuple[str, ...] = ()  # the jobs that hold its slots
    tokens: float | None = None  # only of a rate
    per_second: float | None = None  # only of a rate
    called: int = 0  # only of a fair key: how many more jobs are ready or running

    @property
    def used(self) -> int:
        return len(self.jobs) + self.called


class Limits(Feature):
    """All limits of an application: `app.limits`. They become one of its features when the first one is declared."""

    option = "limits"

    def __init__(self, services: Services, features: Features) -> None:
        self._services = services
        self._features = features
        self._admission = LimitAdmission(services, self.tickets)
        self._of_task: dict[str, Declared] = {}
        self._of_queue: dict[str, Declared] = {}
        self.prepared_tasks = self._fair = dict[str, Declared]()
        self._whole: dict[tuple[str, str], tuple[Ticket, ...]] = {}  # by task and queue; empty if not only plain rates
        self._is_used = False  # whether any limit is declared
        self.keyed = False  # whether any limit has keys

    # -- declaring ------------------------------------------------------------------------------

    def of_task(self, task: str, limits: Iterable[Limit | Rate]) -> None:
        self._of_task[task] = (*self._declare(self._of_task, task, named(task, limits)), *self._fair.get(task, ()))

    def of_fair_task(self, task: str, fair: Fair, queue: str) -> None:
        """Make a task fair, besides its limits: its jobs become ready in turn, then the limits let them start."""
        others = [limit for limit in self._of_task.get(task, ()) if not isinstance(limit, Fair)]
        if not isinstance(fair, Fair):
            msg = f"task {task!r}: fair is Fair(key=lambda p: p.tenant), not {fair!r}"
            raise ConfigurationError(msg)
        self._fair[task] = named(task, [replace(fair, queue=queue)])
        self._of_task[task] = (*others, *self._declare(self._of_task, task, self._fair[task]))

    def of_queue(self, queue: str, limits: Iterable[Limit | Rate]) -> None:
        if queue in {"", "*"}:
            msg = f"{queue!r} is not a name for a queue; give the name of a single queue"
            raise ConfigurationError(msg)
        self._of_queue[queue] = self._declare(self._of_queue, queue, named(f"queue {queue}", limits))

    def _declare(self, owners: Mapping[str, Declared], owner: str, made: Declared) -> Declared:
        kept = {name: own for name, own in owners.items() if name != owner}  # an owner may declare its limits again
        others = [kept, self._of_queue if owners is self._of_task else self._of_task]
        for other in (limit for own in others for limits in own.values() for limit in limits):
            for limit in made:
                if is_same(limit, other) and numbers(limit) != numbers(other):
                    what = f"the {limit.kind} named {limit.name!r}"
                    msg = f"{what} is declared as {other} and as {limit}: one name is one limit"
                    raise ConfigurationError(msg)
        self._whole.clear()
        self.keyed = self.keyed or any(limit.key is not None for limit in made)
        if not self._is_used:
            self._is_used = True
            self._features.add(self)
        return made

    # -- enqueuing fairly -----------------------------------------------------------------------

    async def prepare(self, enqueue: Enqueue) -> None:
        """Make only the next jobs of fair tasks ready. Jobs for later are admitted when they are due.

        So do those in a transaction of the caller, as nobody knows when it commits.
        """
        if enqueue.in_transaction:
            return
        enqueue.jobs = [replace(job) if job.task in self._fair else job for job in enqueue.jobs]  # they are changed
        groups: dict[Ticket, list[NewJob]] = {}
        now = self._services.store.clock.now()
        for job in enqueue.jobs:
            if job.task in self._fair and (job.run_at or now) <= now and not job.delay and job.waits_for is None:
                groups.setdefault(self._turn(job.task, job.payload), []).append(job)
        await self._admission.enter(groups)
        enqueue.afterwards.append(partial(self._entered, groups))

    async def _entered(self, groups: Mapping[Ticket, Sequence[NewJob]], created: Collection[str]) -> None:
        """Note which jobs are in. Some may be missing: duplicates, or all of them if they were not committed."""
        lined_up = [ticket for ticket, own in groups.items() if own[-1].waits_for is not None]
        ready = {ticket: [job for job in own if job.waits_for is None] for ticket, own in groups.items()}
        absent = {ticket: sum(job.id not in created for job in own) for ticket, own in ready.items()}
        await self._admission.entered(lined_up, absent)

    def _turn(self, task: str, payload: str) -> Ticket:
        (fair,) = self._fair[task]
        return ticket_for(fair, lambda: self._services.tasks[task].payload.view(payload), task)

    def is_fair(self, name: str) -> bool:
        """Return whether this program declares a fair task with a limit of this name."""
        return any(limit.name == name for limits in self._fair.values() for limit in limits)

    async def jobs_out(self, name: str, now: Millis) -> Counter[str] | None:
        """Count the ready or running jobs of a fair task by key. Return None if there are too many to look through."""
        tasks = tuple(task for task, limits in self._fair.items() if name in {limit.name for limit in limits})
        ready = Filter(statuses=(Status.PENDING,), tasks=tasks or (name,), due_before=to_datetime(now + CLOCK_SKEW))
        running = Filter(statuses=(Status.RUNNING,), tasks=tasks or (name,))
        found: dict[str, str] = {}
        for where in (ready, running):  # in this order, a job claimed in between is seen twice rather than missed
            if await self._services.store.count(where) > (MAX_OUT if tasks else 0):
                return None
            found |= {job_id: key async for job_id, key in self._keys(where)}
        return Counter(found.values())

    async def _keys(self, where: Filter) -> AsyncIterator[tuple[str, str]]:
        cursor: str | None = None
        while True:
            page = await self._services.store.find(where, limit=PAGE_SIZE, cursor=cursor)
            for job in page.jobs:
                with contextlib.suppress(InvalidPayload):
                    yield job.id, self._turn(job.task, json.dumps(job.payload)).key
            if (cursor := page.cursor) is None:
                return

    # -- what a job needs -----------------------------------------------------------------------

    def concerns(self, claim: Claim) -> bool:
        return claim.task in self._of_task or claim.queue in self._of_queue

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        del now
        return await self._admission.admit(jobs)

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        await self._admission.ended(jobs)

    async def settled(self) -> None:
        await self._admission.settled()

    def pass_at_once(self, claims: list[Claim]) -> list[Claim]:
        """Return the jobs that did not pass. One with only rates and no keys passes if the cache has tokens."""
        kinds: dict[tuple[str, str], list[Claim]] = {}
        for claim in claims:
            kinds.setdefault((claim.task, claim.queue), []).append(claim)
        left: list[Claim] = []
        for kind, own in kinds.items():
            tickets = self._only_rates(*kind)
            left += own[self._admission.admit_at_once(tickets, len(own)) if tickets else 0 :]
        return left

    def _only_rates(self, task: str, queue: str) -> tuple[Ticket, ...]:
        tickets = self._whole.get((task, queue))
        if tickets is None:
            wanted = (*self._of_task.get(task, ()), *self._of_queue.get(queue, ()))
            simple = all(isinstance(limit, Rate) and limit.key is None for limit in wanted)
            made = {ticket.document: ticket for ticket in (Ticket(limit, "") for limit in wanted if simple)}
            tickets = self._whole[task, queue] = tuple(made.values())
        return tickets

    def tickets(self, claim: Claim) -> tuple[Ticket, ...]:
        """Return what a job needs; nothing if its task does not accept its payload, as it will not start."""
        try:
            return self._whole.get((claim.task, claim.queue)) or self._tickets(claim.task, claim.queue, claim.payload)
        except BadPayload:
            return ()

    def check(self, task: str, queue: str, payload: str) -> None:
        """Raise InvalidPayload if a key function has no key for the payload, so that the enqueue fails, not the job."""
        self._tickets(task, queue, payload)

    def _tickets(self, task: str, queue: str, payload: str) -> tuple[Ticket, ...]:
        def view() -> Any:
            try:
                return self._services.tasks[task].payload.view(payload)
            except InvalidPayload as error:
                raise BadPayload(str(error)) from error

        wanted = (*self._of_task.get(task, ()), *self._of_queue.get(queue, ()))
        return tuple(
            {ticket.document: ticket for ticket in (ticket_for(limit, view, task) for limit in wanted)}.values()
        )

    # -- looking --------------------------------------------------------------------------------

    async def list(self, name: str | None = None) -> list[LimitState]:
        """Return all limits that are in use, or those of one name, by name and key."""
        found: list[LimitState] = []
        after = None
        while page := await self._services.store.browse(Listing(COLLECTION, None, after, PAGE_SIZE)):
            after = page[-1].key[1:]
            found += [shown(key, state) for key, state in states_in(page).items()]
        return [state for state in found if name in (None, state.name)]

    async def get(self, name: str, key: str = "", *, kind: str = Limit.kind) -> LimitState | None:
        """Return the state of a limit; None if it is not in use now."""
        documents = await self._services.store.documents([Key(COLLECTION, f"{kind}:{name}", key)])
        return next((shown(key, state) for key, state in states_in(documents).items()), None)


class BadPayload(InvalidPayload):
    """The task does not accept the payload; the key function is not at fault."""


def is_same(limit: AnyLimit, other: AnyLimit) -> bool:
    keyed = limit.key is not None, other.key is not None
    return (limit.name, limit.kind) == (other.name, other.kind) and keyed[0] == keyed[1]


def numbers(limit: AnyLimit) -> tuple[float, ...]:
    if isinstance(limit, Rate):
        return limit.per_milli, limit.most
    return (limit.size,) if isinstance(limit, Limit) else (limit.size or 0,)


def shown(key: Key, state: State) -> LimitState:
    kind, _, name = key.group.partition(":")
    one = LimitState(kind, name, key.id, call_of(key), state.waiting, 0)
    if isinstance(state, Bucket):
        return replace(one, size=state.burst, tokens=round(state.tokens, 3), per_second=state.drip * 1000)
    called = state.called if isinstance(state, Turns) else 0
    return replace(one, size=state.size, jobs=tuple(state.holders), called=called)
