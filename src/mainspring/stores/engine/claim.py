"""Which jobs a claim takes, and what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis, to_millis
from mainspring.job import UNTIL_WOKEN, Status
from mainspring.queue_patterns import covers, is_among
from mainspring.stores.protocol import Halt, Want

SMALLEST_SHARED_CLAIM = 4  # jobs; smaller claims are not divided among starving levels, see `shares`


def claimed(worker: str, version: str, now: Millis) -> dict[str, Any]:
    """Return the columns of a job that a worker claims now. Its token grows by one."""
    return {
        "status": Status.RUNNING,
        "worker": worker,
        "version": version or None,
        "claimed_at": now,
        "progress": None,
        "note": None,
        "waits_for": None,
    }


@dataclass(slots=True)
class Level:
    """One priority of one queue, and when its first job is or was due."""

    priority: int
    queue: str
    head: Millis
    aside: tuple[str, ...] = ()  # tasks, known to the worker, with jobs of this level that were set aside


@dataclass(slots=True)
class Head:
    """The first waiting jobs of a queue."""

    queue: str
    levels: list[Level]  # including jobs that were set aside
    suspects: dict[str, Millis]  # task -> when its first suspect is or was due
    unknown: set[str]  # tasks of due jobs that must be left to other workers


Aside = Sequence[tuple[str, int, Millis]]  # task, priority, and due time of the first job that was set aside


def head_of(
    queue: str,
    heads: Sequence[Millis | None],
    suspects: Mapping[str, Millis],
    aside: Aside,
    *,
    tasks: Collection[str] | None,
    now: Millis,
) -> Head:
    """Return what a worker that knows `tasks` (None: any) may claim from a queue.

    `heads` has one entry per priority: when its first job is due, None if it has no job.
    """
    levels = {number: Level(number, queue, head) for number, head in enumerate(heads) if head is not None}
    unknown = {task for task, head in suspects.items() if head <= now and not knows(tasks, task)}
    for task, priority, head in aside:
        if knows(tasks, task):
            level = levels.setdefault(priority, Level(priority, queue, head))
            level.head, level.aside = min(level.head, head), (*level.aside, task)
        elif head <= now:
            unknown.add(task)
    own = {task: head for task, head in suspects.items() if knows(tasks, task)}
    return Head(queue, [levels[priority] for priority in sorted(levels)], own, unknown)


def due_suspects(want: Want, heads: Iterable[Head], now: Millis) -> list[tuple[str, str]]:
    """Return the queues and tasks that have due suspects, the one whose suspect has waited longest first."""
    wanted = [head for head in heads if want.limit > 0 and covers(want.queue, head.queue)]
    due = [(moment, head.queue, task) for head in wanted for task, moment in head.suspects.items() if moment <= now]
    return [(queue, task) for _, queue, task in sorted(due)]


def knows(tasks: Collection[str] | None, task: str) -> bool:
    return tasks is None or task in tasks


def shares(levels: Sequence[Level], limit: int, *, now: Millis, patience: Millis, turn: int) -> list[tuple[Level, int]]:
    """Return the levels to claim from, in order, each with the maximum number of jobs.

    Levels are served by priority. But a lower priority whose first job has waited longer than `patience` first gets a
    quarter of the claim; of claims below SMALLEST_SHARED_CLAIM jobs it gets every fourth one completely. A larger share
    would let an old backlog of low priority delay urgent jobs.
    """
    due = sorted((level for level in levels if level.head <= now), key=lambda level: (level.priority, level.head))
    by_priority = [(level, limit) for level in due]
    starving = [level for level in heads_by_priority(due)[1:] if now - level.head > patience]
    if not starving:
        return by_priority
    if limit >= SMALLEST_SHARED_CLAIM:
        return [(level, limit // SMALLEST_SHARED_CLAIM) for level in starving] + by_priority
    rounds, is_theirs = turn // SMALLEST_SHARED_CLAIM, turn % SMALLEST_SHARED_CLAIM == 0
    return [(starving[rounds % len(starving)], limit), *by_priority] if is_theirs else by_priority


def heads_by_priority(due: Sequence[Level]) -> list[Level]:
    """Return the longest waiting level of each priority."""
    first: dict[int, Level] = {}
    for level in due:
        first.setdefault(level.priority, level)
    return list(first.values())


def earliest(times: Iterable[Millis]) -> Millis | None:
    """Return the earliest time; None if there is none, or every job waits to be woken."""
    return min((moment for moment in times if moment < UNTIL_WOKEN), default=None)


def ends(halts: Iterable[Halt], queues: Collection[str | None]) -> list[Millis]:
    """Return when the pauses of these queues (None: the halt of the system) end by themselves."""
    patterns = [queue for queue in queues if queue is not None]
    relevant = (halt for halt in halts if halt.queue in queues or is_among(halt.queue or "", patterns))
    return [to_millis(halt.until) for halt in relevant if halt.until is not None]
