"""Halts: which workers and jobs they stop, and what a second halt makes of the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from mainspring.errors import SystemHalted
from mainspring.queue_patterns import is_among
from mainspring.stores.protocol import COPIER, Halt, WorkerInfo


def refuse_while_halted(halts: Iterable[Halt], queues: Collection[str]) -> None:
    """Raise if one of the halts rejects new jobs of these queues.

    The error names the halt of the whole system first: to resume a queue would not help while that is in force.
    """
    for halt in sorted(halts, key=lambda halt: halt.queue or ""):
        if not halt.accept and (halt.queue is None or halt.queue in queues):
            what = "the system is halted" if halt.queue is None else f"queue {halt.queue!r} is paused"
            why = f"by {halt.actor} ({halt.reason or 'no reason given'})"
            msg = f"{what} {why} and rejects new jobs; resume it, or try again later"
            raise SystemHalted(msg)


def serves(worker: WorkerInfo, halt: Halt) -> bool:
    """Return whether the worker serves a queue that the halt stops, and holds jobs that it has not started.

    A remote worker holds none: a job that it has claimed counts as started.
    """
    return not worker.remote and (halt.queue is None or is_among(halt.queue, worker.queues))


def is_about(halt: Halt, within: Collection[str]) -> bool:
    """Return whether the halt stops jobs of these queues; without patterns, of any."""
    return not within or halt.queue is None or is_among(halt.queue, within)


def combined(before: Halt | None, new: Halt) -> Halt:
    """Merge a new halt with the one in force: keep both actors and reasons, the later end and the stricter `accept`.

    The halts of `mainspring copy` replace others and are replaced by them, because they record its progress.
    """
    if before is None or COPIER in {before.actor, new.actor}:
        return new
    endless = before.until is None or new.until is None
    return replace(
        new,
        actor=joined(", ", before.actor, new.actor),
        reason=joined("; ", before.reason, new.reason),
        since=before.since,
        until=None if endless else max(filter(None, (before.until, new.until))),
        accept=before.accept and new.accept,
    )


def joined(separator: str, old: str, new: str) -> str:
    return old if not new or new in old.split(separator) else separator.join(filter(None, (old, new)))
