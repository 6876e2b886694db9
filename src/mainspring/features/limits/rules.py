"""Decides which of the jobs that ask may start, and how many of those that wait are woken. It does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.features.limits.options import Fair, Rate, Ticket
from mainspring.features.limits.storage import Bucket, Slots, State, Turns
from mainspring.stores.documents import Key


@dataclass(frozen=True, slots=True)
class Acquire:
    """A claimed job wants to start."""

    job_id: str
    token: int
    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A run has ended."""

    job_id: str
    token: int
    tickets: tuple[Ticket, ...]
    had_turn: bool = False  # it did not ask for its turn of a fair key, as it had it when it was claimed
    spare: int = 0  # how many more jobs to wake, so that they wait in this worker for the next free slots
    adopted: bool = False  # perhaps another process has acquired what this one releases


@dataclass(frozen=True, slots=True)
class Wait:
    """Jobs were suspended until this limit wakes them."""

    tickets: tuple[Ticket]


@dataclass(frozen=True, slots=True, eq=False)
class Admit:
    """A number of jobs of a fair task will be inserted: some as ready, the others suspended until woken."""

    tickets: tuple[Ticket]
    number: int


@dataclass(frozen=True, slots=True)
class Refund:
    """So many jobs that were counted as ready were not inserted."""

    tickets: tuple[Ticket]
    number: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Tokens to take in advance, for the jobs that come next."""

    tickets: tuple[Ticket]
    number: int


LimitRequest = Acquire | Release | Wait | Admit | Refund | Prefetch
FIRST_COME = {kind: place for place, kind in enumerate((Release, Acquire, Wait, Refund, Admit, Prefetch))}


@dataclass(slots=True)
class LimitDecision:
    """What the requests get, and which jobs to wake."""

    admitted: list[Acquire] = field(default_factory=list)
    refused: dict[tuple[str, int], Ticket] = field(default_factory=dict)  # job and token -> the limit that blocks it
    taken: Counter[Key] = field(default_factory=Counter)  # slots or tokens taken, per limit
    wakeups: Counter[Key] = field(default_factory=Counter)  # waiting jobs to wake, per limit
    spare: Counter[Key] = field(default_factory=Counter)  # more to wake, where any are woken
    ready: dict[Admit, int] = field(default_factory=dict)  # how many of the jobs may be inserted as ready

    def add(self, other: LimitDecision) -> None:
        self.admitted += other.admitted
        self.refused |= other.refused
        self.ready |= other.ready


def decide(requests: Iterable[LimitRequest], states: Mapping[Key, State], now: Millis) -> LimitDecision:
    """Decide the requests and change the states. A job gets all that it needs, or nothing."""
    decision = LimitDecision()
    for request in sorted(requests, key=lambda request: FIRST_COME[type(request)]):
        match request:
            case Release():
                let_go(request, states, decision)
            case Acquire():
                admit(request, states, decision)
            case Wait():
                line_up(request.tickets[0].document, states, decision, now)
            case Refund():
                forget(request, states, now)
            case Admit():
                let_in(request, states, decision, now)
    if decision.wakeups:
        for key, number in decision.wakeups.items():
            room = min(number, states[key].room)
            decision.wakeups[key] = room + decision.spare[key] if room else 0
        decision.wakeups = +decision.wakeups
    return decision


def wake_next(
    decision: LimitDecision, states: Mapping[Key, State], now: Millis, *, known: Mapping[Key, Millis]
) -> None:
    """Wake as many jobs of each key as it has room for. Skip keys where none waited last time and none came since."""
    for key, state in states.items():
        if isinstance(state, Turns) and state.waiting and known.get(key) != state.noted_at:
            decision.wakeups[key] = state.wake(state.room, now)


def let_go(release: Release, states: Mapping[Key, State], decision: LimitDecision) -> None:
    for ticket in release.tickets:
        state = states[ticket.document]
        if isinstance(state, Turns):
            state.depart(release.job_id, release.token, had_turn=release.had_turn)
        elif isinstance(state, Slots) and state.leave(release.job_id, release.token) and state.waiting:
            decision.wakeups[ticket.document] += 1
            decision.spare[ticket.document] = release.spare


def admit(acquire: Acquire, states: Mapping[Key, State], decision: LimitDecision) -> None:
    obstacle = next(
        (ticket for ticket in acquire.tickets if not states[ticket.document].has_room_for(acquire.job_id)), None
    )
    if obstacle is not None:
        decision.refused[acquire.job_id, acquire.token] = obstacle
        pass_on(acquire, states, decision)
        return
    decision.admitted.append(acquire)
    for ticket in acquire.tickets:
        states[ticket.document].take(acquire.job_id, acquire.token)
        decision.taken[ticket.document] += 1


def pass_on(acquire: Acquire, states: Mapping[Key, State], decision: LimitDecision) -> None:
    """Wake another job for the free slots of a refused one: it may have been woken for a slot that it cannot use."""
    for ticket in acquire.tickets:
        state = states[ticket.document]
        if isinstance(state, Slots) and not isinstance(state, Turns) and state.waiting and state.room:
            decision.wakeups[ticket.document] += 1


def line_up(key: Key, states: Mapping[Key, State], decision: LimitDecision, now: Millis) -> None:
    state = states[key]
    if isinstance(state, Turns):
        state.note(now)
        return
    if isinstance(state, Bucket):
        state.note()
        return
    state.waiting = True
    if state.room:  # a slot became free before this process noted that jobs wait
        decision.wakeups[key] += state.room


def let_in(admit: Admit, states: Mapping[Key, State], decision: LimitDecision, now: Millis) -> None:
    """Decide how many jobs are inserted as ready. No job overtakes those of its own key that wait."""
    key = admit.tickets[0].document
    state = states[key]
    if isinstance(state, Turns):
        decision.ready[admit] = 0 if state.waiting else state.wake(admit.number, now)
        if decision.ready[admit] < admit.number:
            state.note(now)


def forget(refund: Refund, states: Mapping[Key, State], now: Millis) -> None:
    state = states[refund.tickets[0].document]
    if isinstance(state, Turns):
        state.nobody_came(refund.number, now)


def state_of(ticket: Ticket, data: Mapping[str, Any] | None, now: Millis, size: int = 1) -> State:
    """Return the stored state, with the numbers that this program declares."""
    limit = ticket.limit
    if isinstance(limit, Fair):
        turns = Turns(size) if data is None else Turns.from_data(data)
        turns.size = size
        return turns
    if isinstance(limit, Rate):
        if data is None:
            return Bucket.full(limit.per_milli, limit.most, now)
        bucket = Bucket.from_data(data)
        bucket.drip, bucket.burst = limit.per_milli, limit.most
        bucket.fill(now)
        return bucket
    slots = Slots(limit.size) if data is None else Slots.from_data(data)
    slots.size = limit.size
    return slots


def cases(requests: Iterable[LimitRequest], most: int) -> list[list[LimitRequest]]:
    """Group requests that have a limit in common; each group is decided and written by itself.

    A group of more than `most` documents is split, and its parts are written one after the other.
    """
    made: list[tuple[set[Key], list[LimitRequest]]] = []
    home: dict[Key, int] = {}  # the index of the group that a document belongs to
    for request in requests:
        keys = [ticket.document for ticket in request.tickets]
        near = {home[key] for key in keys if key in home}
        if not near or len(set(keys).union(*(made[group][0] for group in near))) > most:
            near = {len(made)}
            made.append((set(), []))
        first, *others = sorted(near)
        documents, together = made[first]
        for group in others:
            documents |= made[group][0]
            together += made[group][1]
            made[group] = set(), []
        documents.update(keys)
        together.append(request)
        home.update(dict.fromkeys(documents if others else keys, first))
    return [together for _, together in made if together]
