"""Which due jobs a worker gets, and that they are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Claim
from mainspring.stores.postgres.halts import IN_COMMON, current_halts
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import EVERY_QUEUE, Claims, Want
from mainspring.stores.rules import Level, earliest, ends, shares
from mainspring.stores.tables import RUNNING

PRIORITIES = range(4)
SOON: Millis = 5  # then others have finished claiming what was due and not to be had
WAITING = "FROM {s}.jobs WHERE queue = name AND priority = %d AND status < 2 AND crashes = 0"
HEADS = f"""
SELECT {{now}}, name,
       (SELECT run_at FROM {{s}}.jobs WHERE queue = name AND status < 2 AND crashes > 0 ORDER BY run_at LIMIT 1),
       {", ".join(f"(SELECT run_at {WAITING % level} ORDER BY run_at LIMIT 1)" for level in PRIORITIES)}
FROM queues
"""
HEADS_OF = f"""
WITH queues AS (SELECT name FROM unnest(%(queues)s::text[]) AS name) {HEADS}
"""
HEADS_OF_ALL = f"""
WITH RECURSIVE
waiting(name) AS (
    (SELECT queue FROM {{s}}.jobs WHERE status < 2 AND crashes = 0 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM {{s}}.jobs WHERE status < 2 AND crashes = 0 AND queue > name ORDER BY queue LIMIT 1)
    FROM waiting WHERE name IS NOT NULL),
suspect(name) AS (
    (SELECT queue FROM {{s}}.jobs WHERE status < 2 AND crashes > 0 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM {{s}}.jobs WHERE status < 2 AND crashes > 0 AND queue > name ORDER BY queue LIMIT 1)
    FROM suspect WHERE name IS NOT NULL),
queues AS (
    SELECT name FROM waiting WHERE name IS NOT NULL UNION SELECT name FROM suspect WHERE name IS NOT NULL)
{HEADS}
"""
TAKE = """
SELECT * FROM {s}.take(%(worker)s, %(claim)s, %(queues)s, %(priorities)s::smallint[], %(since)s::bigint[],
                       %(most)s::integer[], %(room)s, %(at)s, %(stall_grace)s)
"""
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


async def claim(transaction: Transaction, request: ClaimRequest) -> Claims:
    await transaction.rows(IN_COMMON)
    halts = await current_halts(transaction)
    if any(halt.queue is None for halt in halts):
        return Claims([], next_due=earliest(ends(halts, {None})))
    now, heads = await read_heads(transaction, request.wants, {halt.queue for halt in halts})
    rows = await (take_suspect if request.solo else take_waiting)(transaction, request, heads, now)
    suspects = [head.suspect for head in heads if head.suspect is not None]
    due_suspect = any(suspect <= now for suspect in suspects)
    if rows:
        count(transaction, rows)
        return Claims([to_claim(row) for row in rows], suspects=due_suspect)
    later = (suspect for suspect in suspects if suspect > now)
    wanted = {want.queue for want in request.wants}
    waiting = (max(level.head, now + SOON) for head in heads for level in head.levels)
    return Claims([], earliest([*(() if request.solo else waiting), *later, *ends(halts, wanted)]), due_suspect)


async def read_heads(
    transaction: Transaction, wants: Sequence[Want], paused: set[str | None]
) -> tuple[Millis, list[Head]]:
    if any(want.queue == EVERY_QUEUE for want in wants):
        rows = await transaction.rows(HEADS_OF_ALL)
    else:
        rows = await transaction.rows(HEADS_OF, queues=list(dict.fromkeys(want.queue for want in wants)))
    now = rows[0][0] if rows else 0
    return now, [to_head(*row[1:]) for row in rows if row[1] not in paused]


def to_head(queue: str, suspect: Millis | None, *heads: Millis | None) -> Head:
    levels = [Level(priority, queue, head) for priority, head in enumerate(heads) if head is not None]
    return Head(queue, suspect, levels)


async def take_waiting(
    transaction: Transaction, request: ClaimRequest, heads: Sequence[Head], now: Millis
) -> list[tuple[Any, ...]]:
    taken: list[tuple[Any, ...]] = []
    for want in request.wants:
        room = min(want.limit, request.limit - len(taken))
        levels = [level for head in heads if want.queue in {EVERY_QUEUE, head.queue} for level in head.levels]
        chosen = shares(levels, room, now=now, patience=request.patience, turn=request.turn)
        if room > 0 and chosen:
            taken += await transaction.rows(
                TAKE,
                worker=request.worker,
                claim=request.turn,
                queues=[level.queue for level, _ in chosen],
                priorities=[level.priority for level, _ in chosen],
                since=[0 for _ in chosen],
                most=[most for _, most in chosen],
                room=room,
                at=now,
                stall_grace=request.stall_grace,
            )
    return taken


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


def count(transaction: Transaction, rows: Iterable[tuple[Any, ...]]) -> None:
    for (queue, status), number in Counter((row[3], row[17]) for row in rows).items():
        transaction.count(queue, status, -number)
        transaction.count(queue, RUNNING, number)


def to_claim(row: tuple[Any, ...]) -> Claim:
    """From the columns of `take`."""
    target = None if row[13] is None else (row[13], row[14])
    return Claim(*row[:13], target, tuple(row[15] or ()), row[16])  # type: ignore[call-arg]
