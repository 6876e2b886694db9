"""Which due jobs a worker gets, and that they are its own.

A look shows where the levels begin. If only one has due jobs, they are taken with it; else what to take of each is
decided here, and `take` does it. One or two journeys, each a transaction by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Clock, Millis
from mainspring.job import Claim
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.halts import to_halt
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Halt, Want
from mainspring.stores.rules import Level, earliest, ends, shares

SOON: Millis = 5  # then others have finished claiming what was due and not to be had
LOOK_AND_TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(claim)s, %(queues)s::text[], NULL, %(since)s::bigint[], NULL, NULL, NULL, %(room)s,
                       {now}, %(stall_grace)s)
"""
TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(claim)s, %(queues)s::text[], %(priorities)s::smallint[], %(since)s::bigint[],
                       %(most)s::integer[], %(wants)s::integer[], %(rooms)s::integer[], %(room)s, %(at)s,
                       %(stall_grace)s)
"""
PAYLOAD = 4  # column of `take`
TAKE_SUSPECT = "SELECT * FROM {s}.take_suspect(%(worker)s, %(claim)s, %(queues)s, %(at)s, %(stall_grace)s)"


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    stall_grace: Millis
    patience: Millis
    turn: int  # counts the claims: for the small ones' share of starving levels, and to know one again


@dataclass(slots=True)
class Head:
    """The first jobs of a queue: of each priority, and of the suspects."""

    queue: str
    suspect: Millis | None
    levels: list[Level]


@dataclass(slots=True)
class Sight:
    """What a look showed."""

    now: Millis
    halts: list[Halt]
    heads: list[Head]
    tried: bool  # to take jobs with it
    taken: list[tuple[Any, ...]]

    @property
    def is_halted(self) -> bool:
        return any(halt.queue is None for halt in self.halts)


@dataclass(slots=True)
class LowWater:
    """Where the levels began at the last look.

    While somebody holds an old snapshot, rows of jobs long gone stay in the index, and a look from the very beginning
    passes over all of them again. So the next look begins where the last one found something. That misses a job which
    came in later for an earlier time; hence one from the very beginning whenever its cost is a small part of the time
    since the last one, and at least each second. And after any claim that found nothing.
    """

    clock: Clock
    begins: dict[str, list[Millis]] = field(default_factory=dict)  # queue -> per priority
    swept_at: float = 0.0
    cost: float = 0.0

    SHARE = 10.0  # a sweep, with what it takes, costs at most one part in so many
    LONGEST = 1.0  # seconds between sweeps

    def known(self, queues: set[str]) -> dict[str, list[Millis]]:
        """Where to begin to look at these queues; none: at the very beginning."""
        pause = min(self.LONGEST, self.cost * self.SHARE)
        if self.clock.monotonic() - self.swept_at >= pause:
            return {}
        if EVERY_QUEUE in queues:
            return self.begins
        return {queue: self.begins[queue] for queue in queues} if queues <= self.begins.keys() else {}

    def swept(self, began: float, heads: Sequence[Head]) -> None:
        self.swept_at = self.clock.monotonic()
        self.cost = self.swept_at - began
        self.begins = {head.queue: [0, 0, 0, 0] for head in heads}
        self.rise(heads)

    def rise(self, heads: Sequence[Head]) -> None:
        for head in heads:
            for level in head.levels:
                self.begins[head.queue][level.priority] = level.head


async def look(transaction: Transaction, request: ClaimRequest, water: LowWater) -> Sight:
    """And take, if it is that simple."""
    queues = {want.queue for want in request.wants}
    begins = water.known(queues)
    began = water.clock.monotonic()
    named = list(begins) if begins else None if EVERY_QUEUE in queues else list(queues)
    is_simple = len(request.wants) == 1 and not request.solo
    rows = await transaction.rows(
        LOOK_AND_TAKE,
        worker=request.worker,
        claim=request.turn,
        queues=named,
        since=arrays.of_plain(begin for of_levels in begins.values() for begin in of_levels) if begins else None,
        room=min(request.limit, request.wants[0].limit) if is_simple else 0,
        stall_grace=request.stall_grace,
    )
    sight = to_sight(rows)
    if begins:
        water.rise(sight.heads)
    else:
        water.swept(began, sight.heads)
    return sight


def to_sight(rows: list[tuple[Any, ...]]) -> Sight:
    seen = json.loads(rows[0][PAYLOAD])  # the first row is no job
    return Sight(
        seen["at"],
        [to_halt(halt) for halt in seen["halts"] or ()],
        [to_head(*head) for head in seen["heads"] or ()],
        seen["tried"],
        rows[1:],
    )


def to_head(queue: str, suspect: Millis | None, *heads: Millis | None) -> Head:
    levels = [Level(priority, queue, head) for priority, head in enumerate(heads) if head is not None]
    return Head(queue, suspect, levels)


async def claim(transaction: Transaction, request: ClaimRequest, water: LowWater) -> Claims:
    sight = await look(transaction, request, water)
    if sight.is_halted:
        return Claims([], next_due=earliest(ends(sight.halts, {None})))
    paused = {halt.queue for halt in sight.halts}
    heads = [head for head in sight.heads if head.queue not in paused]
    take = take_suspect if request.solo else take_waiting
    rows = sight.taken if sight.tried else await take(transaction, request, heads, sight.now)
    suspects = [head.suspect for head in heads if head.suspect is not None]
    due_suspect = any(suspect <= sight.now for suspect in suspects)
    if rows:
        return Claims([to_claim(row) for row in rows], suspects=due_suspect)
    water.begins.clear()
    later = (suspect for suspect in suspects if suspect > sight.now)
    wanted = {want.queue for want in request.wants}
    waiting = (max(level.head, sight.now + SOON) for head in heads for level in head.levels)
    times = [*(() if request.solo else waiting), *later, *ends(sight.halts, wanted)]
    return Claims([], earliest(times), due_suspect)


async def take_waiting(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[tuple[Any, ...]]:
    rooms = [min(want.limit, request.limit) for want in request.wants]
    chosen = [
        (number, level, most)
        for number, (want, room) in enumerate(zip(request.wants, rooms, strict=True), 1)
        for level, most in shares(
            [level for head in heads if want.queue in {EVERY_QUEUE, head.queue} for level in head.levels],
            room,
            now=now,
            patience=request.patience,
            turn=request.turn,
        )
    ]
    if not chosen or request.limit <= 0:
        return []
    return await transaction.rows(
        TAKE,
        worker=request.worker,
        claim=request.turn,
        queues=[level.queue for _, level, _ in chosen],
        priorities=arrays.of_plain(level.priority for _, level, _ in chosen),
        since=arrays.of_plain(level.head for _, level, _ in chosen),
        most=arrays.of_plain(most for _, _, most in chosen),
        wants=arrays.of_plain(number for number, _, _ in chosen),
        rooms=arrays.of_plain(rooms),
        room=request.limit,
        at=now,
        stall_grace=request.stall_grace,
    )


async def take_suspect(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[tuple[Any, ...]]:
    """One, and nothing beside it."""
    queues = [
        head.queue
        for want in request.wants
        for head in heads
        if want.queue in {EVERY_QUEUE, head.queue} and head.suspect is not None and head.suspect <= now
    ]
    if not queues:
        return []
    return await transaction.rows(
        TAKE_SUSPECT,
        worker=request.worker,
        claim=request.turn,
        queues=queues,
        at=now,
        stall_grace=request.stall_grace,
    )


def to_claim(row: tuple[Any, ...]) -> Claim:
    """From the columns of `take`."""
    target = None if row[13] is None else (row[13], row[14])
    return Claim(*row[:13], target, tuple(row[15] or ()), row[16])  # type: ignore[call-arg]
