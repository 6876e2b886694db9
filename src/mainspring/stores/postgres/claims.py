"""Which due jobs a worker gets, and that they are its own.

A look shows where the levels begin. If only one has due jobs, they are taken with it; else what to take of each is
decided here, and `take` does it. One or two journeys, each a transaction by itself.

A worker that meets jobs of tasks it does not know sets them aside (`put_aside`): they stay due, and workers that know
their tasks take them from there (`take_mixed`), in one order with the others. Each job is moved once, so however many
there are, no claim reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mainspring.clock import Clock, Millis
from mainspring.job import Claim
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.halts import to_halt
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Halt, Want
from mainspring.stores.rules import Head, earliest, ends, head_of, shares
from mainspring.stores.tables import NEVER

SOON: Millis = 5  # then others have finished claiming what was due and not to be had
LOOK_AND_TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(claim)s, %(queues)s::text[], NULL, %(since)s::bigint[], NULL, NULL, NULL, %(room)s,
                       %(tasks)s::jsonb, {now}, %(stall_grace)s)
"""
TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(claim)s, %(queues)s::text[], %(priorities)s::smallint[], %(since)s::bigint[],
                       %(most)s::integer[], %(wants)s::integer[], %(rooms)s::integer[], %(room)s, %(tasks)s::jsonb,
                       %(at)s, %(stall_grace)s)
"""
TAKE_MIXED = """
SELECT * FROM {s}.take_mixed(%(worker)s, %(claim)s, %(queues)s::text[], %(priorities)s::smallint[], %(lines)s::jsonb,
                             %(most)s::integer[], %(wants)s::integer[], %(rooms)s::integer[], %(room)s,
                             %(tasks)s::jsonb, %(at)s, %(stall_grace)s)
"""
TAKE_SUSPECT = """
SELECT * FROM {s}.take_suspect(%(worker)s, %(claim)s, %(queues)s, %(of_tasks)s, %(at)s, %(stall_grace)s)
"""
PUT_ASIDE = """
SELECT {s}.put_aside(%(queues)s::text[], %(priorities)s::smallint[], %(tasks)s::jsonb, %(look)s, %(most)s, {now})
"""
ID, TASK, QUEUE, PAYLOAD, PRIORITY = 0, 2, 3, 4, 5  # columns of `take`
ASIDE_LOOK = 1000  # jobs of a level that are looked through at once for those of unknown tasks
MOST_ASIDE = 4000  # jobs that one journey sets aside, about
ROUNDS = 3  # of setting aside, in one claim
VERY_FIRST = -NEVER  # before any time that a job can have; times before 1970 are negative


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    tasks: frozenset[str] | None  # that the worker knows; None: any
    stall_grace: Millis
    patience: Millis
    turn: int  # counts the claims: for the small ones' share of starving levels, and to know one again

    @property
    def known(self) -> str | None:
        """The tasks as the keys of a JSON object, in which the server finds one quickly."""
        return None if self.tasks is None else as_keys(self.tasks)


@lru_cache(maxsize=16)
def as_keys(tasks: frozenset[str]) -> str:
    return json.dumps(dict.fromkeys(sorted(tasks), 0))


Row = tuple[Any, ...]


@dataclass(slots=True)
class Seen:
    """What a look showed of one queue: the first job of each priority, and what is kept by task, if there is any."""

    queue: str
    apart: dict[str, Any] | None
    heads: list[Millis | None]

    def head(self, request: ClaimRequest, now: Millis) -> Head:
        apart = self.apart or {"suspects": {}, "aside": ()}
        return head_of(self.queue, self.heads, apart["suspects"], apart["aside"], tasks=request.tasks, now=now)


@dataclass(slots=True)
class Sight:
    """What a look showed."""

    now: Millis
    halts: list[Halt]
    queues: list[Seen]
    tried: bool  # to take jobs with it
    taken: list[Row]

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

    def swept(self, began: float, queues: Sequence[Seen]) -> None:
        self.swept_at = self.clock.monotonic()
        self.cost = self.swept_at - began
        self.begins = {seen.queue: [VERY_FIRST] * 4 for seen in queues}
        self.rise(queues)

    def rise(self, queues: Sequence[Seen]) -> None:
        for seen in queues:
            for priority, head in enumerate(seen.heads):
                if head is not None:
                    self.begins[seen.queue][priority] = head


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
        tasks=request.known,
        stall_grace=request.stall_grace,
    )
    sight = to_sight(rows)
    if begins:
        water.rise(sight.queues)
    else:
        water.swept(began, sight.queues)
    return sight


def to_sight(rows: list[Row]) -> Sight:
    seen = json.loads(rows[0][PAYLOAD])  # the first row is no job
    return Sight(
        seen["at"],
        [to_halt(halt) for halt in seen["halts"] or ()],
        [Seen(queue, apart, heads) for queue, apart, *heads in seen["heads"] or ()],
        seen["tried"],
        rows[1:],
    )


async def claim(transaction: Transaction, request: ClaimRequest, water: LowWater) -> Claims:
    """Again, if all that it met were jobs of unknown tasks, which are set aside now."""
    claims, strange = await claim_once(transaction, request, water)
    for _ in range(ROUNDS):
        if not strange:
            return claims
        await put_aside(transaction, request, strange)
        if claims.jobs:
            return claims
        claims, strange = await claim_once(transaction, request, water)
    return claims


Strange = list[Row]  # rows that are no jobs: each tells of a level at whose beginning there are jobs of an unknown task


async def claim_once(transaction: Transaction, request: ClaimRequest, water: LowWater) -> tuple[Claims, Strange]:
    sight = await look(transaction, request, water)
    if sight.is_halted:
        return Claims([], next_due=earliest(ends(sight.halts, {None}))), []
    paused = {halt.queue for halt in sight.halts}
    heads = [seen.head(request, sight.now) for seen in sight.queues if seen.queue not in paused]
    take = take_suspect if request.solo else take_waiting
    rows = sight.taken if sight.tried else await take(transaction, request, heads, sight.now)
    strange = [row for row in rows if row[ID] is None]
    suspects = [moment for head in heads for moment in head.suspects.values()]
    due_suspect = any(moment <= sight.now for moment in suspects)
    unknown = frozenset(task for head in heads for task in head.unknown).union(row[TASK] for row in strange)
    if len(rows) > len(strange):
        jobs = [to_claim(row) for row in rows if row[ID] is not None]
        return Claims(jobs, suspects=due_suspect, unknown=unknown), strange
    water.begins.clear()
    later = (moment for moment in suspects if moment > sight.now)
    wanted = {want.queue for want in request.wants}
    waiting = (max(level.head, sight.now + SOON) for head in heads for level in head.levels)
    times = [*(() if request.solo else waiting), *later, *ends(sight.halts, wanted)]
    return Claims([], earliest(times), due_suspect, unknown), strange


async def put_aside(transaction: Transaction, request: ClaimRequest, strange: Strange) -> None:
    levels = sorted({(row[QUEUE], row[PRIORITY]) for row in strange})
    await transaction.rows(
        PUT_ASIDE,
        queues=[queue for queue, _ in levels],
        priorities=arrays.of_plain(priority for _, priority in levels),
        tasks=request.known,
        look=max(ASIDE_LOOK, request.limit),
        most=MOST_ASIDE,
    )


async def take_waiting(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[Row]:
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
    lines = [level.aside for _, level, _ in chosen]
    parts = (
        {"lines": json.dumps(lines)} if any(lines) else {"since": arrays.of_plain(level.head for _, level, _ in chosen)}
    )
    return await transaction.rows(
        TAKE_MIXED if any(lines) else TAKE,
        **parts,
        worker=request.worker,
        claim=request.turn,
        queues=[level.queue for _, level, _ in chosen],
        priorities=arrays.of_plain(level.priority for _, level, _ in chosen),
        most=arrays.of_plain(most for _, _, most in chosen),
        wants=arrays.of_plain(number for number, _, _ in chosen),
        rooms=arrays.of_plain(rooms),
        room=request.limit,
        tasks=request.known,
        at=now,
        stall_grace=request.stall_grace,
    )


async def take_suspect(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[Row]:
    """One, and nothing beside it."""
    due = [
        (head.queue, task)
        for want in request.wants
        for head in heads
        if want.queue in {EVERY_QUEUE, head.queue}
        for moment, task in sorted((moment, task) for task, moment in head.suspects.items())
        if moment <= now
    ]
    if not due:
        return []
    return await transaction.rows(
        TAKE_SUSPECT,
        worker=request.worker,
        claim=request.turn,
        queues=[queue for queue, _ in due],
        of_tasks=[task for _, task in due],
        at=now,
        stall_grace=request.stall_grace,
    )


def to_claim(row: Row) -> Claim:
    """From the columns of `take`."""
    target = None if row[13] is None else (row[13], row[14])
    return Claim(*row[:13], target, tuple(row[15] or ()), row[16])  # type: ignore[call-arg]
