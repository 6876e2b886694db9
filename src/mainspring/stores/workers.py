"""Workers: what stores keep of them, and what one process sees of the others.

`Watch` says which workers are silent, and which runs last too long. It takes time from this process's monotonic clock.
So no clocks are compared, and a change of a wall clock makes neither a healthy worker look dead nor a healthy run look
stalled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mainspring.clock import Clock, Millis, to_datetime, to_millis
from mainspring.stores.protocol import WorkerInfo

Heartbeat = int | str
"""Anything that changes with each heartbeat of a worker."""


def to_data(worker: WorkerInfo) -> dict[str, Any]:
    """Return what a store keeps of a worker, as JSON data."""
    return {
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "heartbeat": worker.heartbeat,
        "tasks": list(worker.tasks),
        "version": worker.version,
        "started_at": None if worker.started_at is None else to_millis(worker.started_at),
        **({"remote": True} if worker.remote else {}),
    }


def from_data(worker: str, data: Mapping[str, Any], seen_at: Millis) -> WorkerInfo:
    """Make a worker from `to_data`, and from what its heartbeats have added."""
    return WorkerInfo(
        id=worker,
        host=data["host"],
        pid=data["pid"],
        queues=tuple(data["queues"]),
        concurrency=data["concurrency"],
        heartbeat=data["heartbeat"],
        tasks=tuple(data["tasks"]),
        version=data["version"],
        started_at=None if data["started_at"] is None else to_datetime(data["started_at"]),
        seen_at=to_datetime(seen_at),
        polling=data.get("polling", False),
        stuck=data.get("stuck", 0),
        remote=data.get("remote", False),
    )


@dataclass(slots=True)
class TimedRun:
    """A claim of a job with a timeout."""

    id: str
    token: int
    longest: Millis  # how long the run may last: the timeout plus the stall grace


class Watch:
    def __init__(self, clock: Clock, lease: float) -> None:
        self._clock = clock
        self._lease = lease  # seconds
        self._heartbeats: dict[str, tuple[Heartbeat, float]] = {}  # worker -> its last one, and when it was first seen
        self._runs: dict[tuple[str, int], float] = {}  # (job, token) -> when it was first seen
        self.dead: set[str] = set()  # workers that `reap` found dead

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Surrounds a look at the heartbeats. If it fails or takes long, silence counts from the next look on.

        While the store does not answer, no worker can send a heartbeat. If this process was stopped, perhaps the others
        were too.
        """
        began = self._clock.monotonic()
        try:
            yield
        except BaseException:
            self._heartbeats.clear()
            raise
        if self._clock.monotonic() - began > self._lease / 2:
            self._heartbeats.clear()

    def is_silent(self, worker: str, heartbeat: Heartbeat) -> bool:
        """Return whether the worker's heartbeat has not changed for a lease."""
        now = self._clock.monotonic()
        last, since = self._heartbeats.get(worker, (None, now))
        if last != heartbeat:
            self._heartbeats[worker] = heartbeat, now
            return False
        return now - since >= self._lease

    def last_heartbeat(self, worker: str) -> Heartbeat | None:
        return self._heartbeats.get(worker, (None, 0.0))[0]

    def forget_others(self, workers: Collection[str]) -> None:
        """Forget all workers except these."""
        self._heartbeats = {worker: seen for worker, seen in self._heartbeats.items() if worker in workers}

    def overdue(self, running: Iterable[TimedRun]) -> list[TimedRun]:
        """Return the runs that have lasted too long since this process first saw them. `running` are all of them."""
        runs, now, before = list(running), self._clock.monotonic(), self._runs
        self._runs = {(run.id, run.token): before.get((run.id, run.token), now) for run in runs}
        return [run for run in runs if now - self._runs[run.id, run.token] >= run.longest / 1000]

    def with_liveness(self, info: WorkerInfo) -> WorkerInfo:
        """Say whether a worker is alive. A process that has watched no heartbeats goes by the store's clock instead."""
        if info.seen_at is None or info.id in self._heartbeats:
            return info
        return replace(info, alive=self._clock.now() - to_millis(info.seen_at) < self._lease * 1000)

    def stop(self) -> None:
        """Forget everything: this process no longer watches other workers."""
        self._heartbeats, self._runs, self.dead = {}, {}, set()
