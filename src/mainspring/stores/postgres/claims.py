"""Choose the due jobs that a worker gets, and claim them for it.

A look shows the first waiting job of each level (one priority of one queue). If only one level has due jobs, the same
statement takes them. Otherwise this module decides how many to take of each level, and `take` takes them. So a claim is
one or two round trips, each a transaction by itself.

A worker that meets jobs of tasks it does not know sets them aside (`put_aside`). They stay due, and workers that know
their tasks take them from there (`take_mixed`), in one order with the others. Each job is set aside once, so later
claims do not read it again, however many such jobs there are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mainspring.clock import Clock, Millis
from mainspring.job import Claim
from mainspring.queue_patterns import REST, covers
from mainspring.stores.engine.claim import Head, due_suspects, earliest, ends, head_of, shares
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.halts import to_halt
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Halt, Want
from mainspring.stores.tables import NEVER

CONTENDED_RETRY: Millis = 5  # after this time other workers have finished claiming due jobs that this one did not get
LOOK_AND_TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(version)s, %(claim)s, %(queues)s::text[], NULL, %(since)s::bigint[], NULL, NULL,
                       NULL, %(room)s, %(tasks)s::jsonb, {now}, %(stall_grace)s)
"""
TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(version)s, %(claim)s, %(queues)s::text[], %(priorities)s::smallint[],
                       %(since)s::bigint[], %(most)s::integer[], %(wants)s::integer[], %(rooms)s::integer[], %(room)s,
                       %(tasks)s::jsonb, %(at)s, %(stall_grace)s)
"""
TAKE_MIXED = """
SELECT * FROM {s}.take_mixed(%(worker)s, %(version)s, %(claim)s, %(queues)s::text[], %(priorities)s::smallint[],
                             %(lines)s::jsonb, %(most)s::integer[], %(wants)s::integer[], %(rooms)s::integer[],
                             %(room)s, %(tasks)s::jsonb, %(at)s, %(stall_grace)s)
"""
TAKE_SUSPECT = """
SELECT * FROM {s}.take_suspect(%(worker)s, %(version)s, %(claim)s, %(queues)s, %(of_tasks)s, %(at)s, %(stall_grace)s)
"""
PUT_ASIDE = """
SELECT {s}.put_aside(%(queues)s::text[], %(priorities)s::smallint[], %(tasks)s::jsonb, %(look)s, %(most)s, {now})
"""
ID, TASK, QUEUE, PAYLOAD, PRIORITY = 0, 2, 3, 4, 5  # columns of `take`
ASIDE_LOOK = 1000  # first jobs of a level that one statement searches for unknown tasks
MAX_ASIDE = 4000  # jobs, about, that one statement sets aside
ASIDE_ROUNDS = 3  # in one claim
VERY_FIRST = -NEVER  # before any time that a job can have; times before 1970 are negative


@dataclass(slots=True)
class ClaimRequest:
    worker: str
    wants: Sequence[Want]
    limit: int
    solo: bool
    tasks: frozenset[str] | None  # those that the worker knows; None: any
    stall_grace: Millis
    patience: Millis
    turn: int  # number of the claim: gives starving levels their share of small claims, and identifies lost claims
    version: str | None = None  # of the worker's code

    @property
    def known(self) -> str | None:
        """The tasks as the keys of a JSON object, in which the server finds a task quickly."""
        return None if self.tasks is None else as_keys(self.tasks)


@lru_cache(maxsize=16)
def as_keys(tasks: frozenset[str]) -> str:
    return json.dumps(dict.fromkeys(sorted(tasks), 0))


Row = tuple[Any, ...]


@dataclass(slots=True)
class QueueLook:
    """What a look showed of one queue: the first job of each priority, and the suspect or set-aside jobs, if any."""

    queue: str
    apart: dict[str, Any] | None
    heads: list[Millis | None]

    def head(self, request: ClaimRequest, now: Millis) -> Head:
        apart = self.apart or {"suspects": {}, "aside": ()}
        return head_of(self.queue, self.heads, apart["suspects"], apart["aside"], tasks=request.tasks, now=now)


@dataclass(slots=True)
class Look:
    """What a look showed."""

    now: Millis
    halts: list[Halt]
    queues: list[QueueLook]
    tried: bool  # the same statement tried to take jobs
    starts: bool  # readers of the change feed ask for starts
    taken: list[Row]

    @property
    def is_halted(self) -> bool:
        return any(halt.queue is None for halt in self.halts)


@dataclass(slots=True)
class LowWater:
    """Where the levels began at the last look.

    While any transaction holds an old snapshot, the index keeps rows of jobs that are long gone. A look from the very
    beginning (a sweep) passes over all of them. So the next look begins where the last one found a job. That misses a
    job that was inserted later with an earlier time. Therefore a sweep follows every claim that found nothing.
    Otherwise it happens at least every second, and sooner if its cost is a small part of the time since the last one.
    """

    clock: Clock
    begins: dict[str, list[Millis]] = field(default_factory=dict)  # queue -> per priority
    swept_at: float = 0.0  # monotonic seconds
    cost: float = 0.0  # seconds that the last sweep took

    COST_FACTOR = 10.0  # the pause between sweeps is this many times what the last one took
    MAX_PAUSE = 1.0  # seconds

    def known(self, queues: set[str]) -> dict[str, list[Millis]]:
        """Return where to begin to look at these queues. If empty, begin at the very beginning."""
        pause = min(self.MAX_PAUSE, self.cost * self.COST_FACTOR)
        if self.clock.monotonic() - self.swept_at >= pause:
            return {}
        if EVERY_QUEUE in queues:
            return self.begins
        return {queue: self.begins[queue] for queue in queues} if queues <= self.begins.keys() else {}

    def swept(self, began: float, queues: Sequence[QueueLook]) -> None:
        self.swept_at = self.clock.monotonic()
        self.cost = self.swept_at - began
        self.begins = {seen.queue: [VERY_FIRST] * 4 for seen in queues}
        self.rise(queues)

    def rise(self, queues: Sequence[QueueLook]) -> None:
        for seen in queues:
            for priority, head in enumerate(seen.heads):
                if head is not None:
                    self.begins[seen.queue][priority] = head


QUEUES = """
SELECT DISTINCT queue FROM {s}.counts
WHERE EXISTS (SELECT 1 FROM unnest(%(beginnings)s::text[]) AS given(beginning) WHERE starts_with(queue, beginning))
"""


async def named_queues(transaction: Transaction, wants: Sequence[Want]) -> set[str]:
    """Return the wanted queues: names, or `*` for all of them. Other patterns are replaced by the names they fit."""
    queues = {want.queue for want in wants}
    beginnings = [queue[:-1] for queue in queues if queue.endswith(REST)]
    if not beginnings or EVERY_QUEUE in queues:
        return queues
    found = await transaction.rows(QUEUES, beginnings=beginnings)
    return {queue for queue in queues if not queue.endswith(REST)}.union(queue for (queue,) in found)


async def look(transaction: Transaction, request: ClaimRequest, water: LowWater) -> Look:
    """Look where jobs wait, and take some in the same statement if there is nothing to decide."""
    queues = await named_queues(transaction, request.wants)
    begins = water.known(queues)
    began = water.clock.monotonic()
    named = list(begins) if begins else None if EVERY_QUEUE in queues else list(queues)
    is_simple = len(request.wants) == 1 and not request.solo and not request.wants[0].queue.endswith(REST)
    rows = await transaction.rows(
        LOOK_AND_TAKE,
        worker=request.worker,
        version=request.version,
        claim=request.turn,
        queues=named,
        since=arrays.of_plain(begin for of_levels in begins.values() for begin in of_levels) if begins else None,
        room=min(request.limit, request.wants[0].limit) if is_simple else 0,
        tasks=request.known,
        stall_grace=request.stall_grace,
    )
    seen = to_look(rows)
    if begins:
        water.rise(seen.queues)
    else:
        water.swept(began, seen.queues)
    return seen


def to_look(rows: list[Row]) -> Look:
    seen = json.loads(rows[0][PAYLOAD])  # the first row is not a job
    return Look(
        seen["at"],
        [to_halt(halt) for halt in seen["halts"] or ()],
        [QueueLook(queue, apart, heads) for queue, apart, *heads in seen["heads"] or ()],
        seen["tried"],
        seen["starts"],
        rows[1:],
    )


async def claim(transaction: Transaction, request: ClaimRequest, water: LowWater) -> Claims:
    """Claim due jobs. If all that it met were jobs of unknown tasks, set those aside and try again."""
    claims, unknown_rows = await claim_once(transaction, request, water)
    for _ in range(ASIDE_ROUNDS):
        if not unknown_rows:
            return claims
        await put_aside(transaction, request, unknown_rows)
        if claims.jobs:
            return claims
        claims, unknown_rows = await claim_once(transaction, request, water)
    return claims


UnknownRows = list[Row]  # not jobs: each row names a level that begins with jobs of an unknown task


async def claim_once(transaction: Transaction, request: ClaimRequest, water: LowWater) -> tuple[Claims, UnknownRows]:
    sight = await look(transaction, request, water)
    if sight.is_halted:
        return Claims([], next_due=earliest(ends(sight.halts, {None}))), []
    paused = {halt.queue for halt in sight.halts}
    heads = [seen.head(request, sight.now) for seen in sight.queues if seen.queue not in paused]
    take = take_suspect if request.solo else take_waiting
    rows = sight.taken if sight.tried else await take(transaction, request, heads, sight.now)
    unknown_rows = [row for row in rows if row[ID] is None]
    suspects = [moment for head in heads for moment in head.suspects.values()]
    due_suspect = any(moment <= sight.now for moment in suspects)
    unknown = frozenset(task for head in heads for task in head.unknown).union(row[TASK] for row in unknown_rows)
    if len(rows) > len(unknown_rows):
        jobs = [to_claim(row) for row in rows if row[ID] is not None]
        transaction.recorded |= sight.starts
        return Claims(jobs, suspects=due_suspect, unknown=unknown), unknown_rows
    water.begins.clear()
    later = (moment for moment in suspects if moment > sight.now)
    wanted = {want.queue for want in request.wants}
    waiting = [level.head for head in heads for level in head.levels]
    waiting = [moment if moment > sight.now else sight.now + CONTENDED_RETRY for moment in waiting]
    times = [*(() if request.solo else waiting), *later, *ends(sight.halts, wanted)]
    return Claims([], earliest(times), due_suspect, unknown), unknown_rows


async def put_aside(transaction: Transaction, request: ClaimRequest, unknown_rows: UnknownRows) -> None:
    levels = sorted({(row[QUEUE], row[PRIORITY]) for row in unknown_rows})
    await transaction.rows(
        PUT_ASIDE,
        queues=[queue for queue, _ in levels],
        priorities=arrays.of_plain(priority for _, priority in levels),
        tasks=request.known,
        look=max(ASIDE_LOOK, request.limit),
        most=MAX_ASIDE,
    )


async def take_waiting(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[Row]:
    rooms = [min(want.limit, request.limit) for want in request.wants]
    chosen = [
        (number, level, most)
        for number, (want, room) in enumerate(zip(request.wants, rooms, strict=True), 1)
        for level, most in shares(
            [level for head in heads if covers(want.queue, head.queue) for level in head.levels],
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
        version=request.version,
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
    """Take one suspect and nothing else."""
    due = [place for want in request.wants for place in due_suspects(want, heads, now)]
    if not due or request.limit <= 0:
        return []
    return await transaction.rows(
        TAKE_SUSPECT,
        worker=request.worker,
        version=request.version,
        claim=request.turn,
        queues=[queue for queue, _ in due],
        of_tasks=[task for _, task in due],
        at=now,
        stall_grace=request.stall_grace,
    )


def to_claim(row: Row) -> Claim:
    """Convert a row of `take`, whose columns are those of `CLAIMED`: 13 and 14 are its target, 15 its tags."""
    target = None if row[13] is None else (row[13], row[14])
    return Claim(*row[:13], target, tuple(row[15] or ()), *row[16:])  # type: ignore[call-arg]
